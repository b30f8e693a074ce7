"""The core tests on a production-like host: Debian with systemd and pure cgroup v2, set up as documented.

Each machine is booted once, at the same time as the other tests; each result in it is a test here.
"""

from __future__ import annotations

import os
import subprocess
import sys

import prodhost
import pytest
from host_node import NO_BOX
from production_run import LISTS, SECONDS, SUITES, Outcome, Runs, chosen_debians, paths_of

pytestmark = [pytest.mark.timeout((len(SUITES) + len(LISTS) - 1) * SECONDS), pytest.mark.long]


def planned(kind: str, debian: str = "") -> list[str]:
    """The tests that are to be run on a kind of machine, as JUnit names them."""
    tests = [one for boot in paths_of(debian, kind) for one in boot]
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, NO_BOX: "1", "PYTEST_ADDOPTS": ""}
    told = subprocess.run(words, cwd=prodhost.REPO, env=environment, check=True, capture_output=True, text=True).stdout
    identities = [line.split("::", 1) for line in told.splitlines() if "::" in line]
    return [f"{path.removesuffix('.py').replace('/', '.')}::{name}" for path, name in identities]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        pairs = [(one, case) for one in chosen_debians(metafunc.config) for case in planned("source", one)]
        metafunc.parametrize(("debian", "case"), pairs)
        return
    for name, kind in (
        ("packaged_case", "packaged"),
        ("centre_case", "centre"),
        ("source_centre_case", "centre-source"),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, planned(kind))
    if "debian" in metafunc.fixturenames:
        metafunc.parametrize("debian", chosen_debians(metafunc.config))


@pytest.fixture
def outcome(production_runs: Runs, debian: str) -> Outcome:
    """The results of the machine."""
    return production_runs.wait(debian)


def test_the_machine_came_to_its_end(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome.log


def test_there(outcome: Outcome, case: str) -> None:
    """One case in the machine."""
    assert case in outcome.results, "no result came out of the machine"
    assert outcome.results[case] == ""


def test_with_the_debian_packages(production_runs: Runs, pytestconfig: pytest.Config, packaged_case: str) -> None:
    """One case in the machine with the Debian packages: their upgrade while slivers run, and their purge."""
    _check(production_runs.wait(chosen_debians(pytestconfig)[0], "packaged"), packaged_case)


def test_as_the_centre_of_a_testbed(production_runs: Runs, pytestconfig: pytest.Config, centre_case: str) -> None:
    """One case in the machine with the Debian packages that becomes a centre, and its removal."""
    _check(production_runs.wait(chosen_debians(pytestconfig)[0], "centre"), centre_case)


def test_as_a_centre_from_source(production_runs: Runs, pytestconfig: pytest.Config, source_centre_case: str) -> None:
    """One case in the machine that was installed from source and becomes a centre, and its removal."""
    _check(production_runs.wait(chosen_debians(pytestconfig)[-1], "centre-source"), source_centre_case)


def _check(outcome: Outcome, case: str) -> None:
    assert outcome.status == 0, outcome.log
    assert case in outcome.results, "no result came out of the machine"
    assert outcome.results[case] == ""
