"""The suite's report on its parts, and the tests that `make test` omits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import suite
from demo import REPO

JUNIT = """<?xml version="1.0"?><testsuites>
<testsuite name="pytest" errors="1" failures="2" skipped="3" tests="40" time="1.5"></testsuite>
</testsuites>"""


def test_the_table_counts_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RUN", tmp_path)
    (tmp_path / "node-0.xml").write_text(JUNIT)
    head, node, rest = suite.table({"node-0": suite.Result(1, 61.2, 3600), "rest": suite.Result(130)}).splitlines()
    assert head.split() == ["part", "wall", "cpu", "tests", "failed", "skipped"]
    assert node.split() == ["node-0", "1:01", "60:00", "40", "3", "3"]
    assert rest.split() == ["rest", "0:00", "0:00", "0", "0", "0"]


def test_failed_tests_are_named_with_the_first_line_of_their_message() -> None:
    case = '<testcase classname="tests.unit.test_a" name="test_{0}">{1}</testcase>'
    tests = (
        case.format("good", ""),
        case.format("bad", '<failure message="assert 1 == 2&#10;more">a traceback</failure>'),
        case.format("setup", '<error message="failed on setup">a traceback</error>'),
    )
    assert suite.failures(f"<testsuites><testsuite>{''.join(tests)}</testsuite></testsuites>") == [
        "tests.unit.test_a::test_bad: assert 1 == 2",
        "tests.unit.test_a::test_setup: failed on setup",
    ]


def collected(*words: str) -> list[str]:
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words]
    told = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    return [line for line in told.splitlines() if "::" in line]


def test_the_long_ones_are_left_out() -> None:
    left_out = {
        "tests/system/test_keys.py::test_a_key_comes_and_goes_while_slivers_run[kvm]",
        "tests/system/test_keys.py::test_a_machine_without_a_guest_agent_says_so_and_learns_it_at_its_start",
    }
    assert set(collected("-m", "long", "tests/system/test_keys.py")) == left_out


def test_each_file_is_taken_by_one_part(tmp_path: Path) -> None:
    files = [f"tests/system/test_{number}.py" for number in range(50)]
    with ThreadPoolExecutor(4) as pool:
        parts = [one for _ in range(2) for one in suite.NODES]
        taken = list(pool.map(lambda part: {file for file in files if suite.take(tmp_path, file, part)}, parts))
    first, second = taken[0] | taken[2], taken[1] | taken[3]
    assert first | second == set(files) and not first & second


def test_each_part_with_a_node_can_run_what_needs_one() -> None:
    file = "tests/browser/test_screens.py"
    node, spare = (collected("-m", "not long", "--part", part, file) for part in (suite.NODES[1], "spare"))
    assert len(node) == 3 and spare == [f"{file}::test_the_screen_of_a_machine"]


BUSY = """
import time

def test_idle():
    pass

def test_busy():
    while time.process_time() < begun + 0.3:
        pass

begun = time.process_time()
"""
WITH_TIMES = "import sys, pytest, cpu_times; sys.exit(pytest.main(sys.argv[1:], [cpu_times.CpuTimes(1)]))"


@pytest.mark.long
def test_the_test_that_costs_most_is_listed(tmp_path: Path) -> None:
    (tmp_path / "test_cost.py").write_text(BUSY)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPO / "tests", REPO / "tools")))}
    argv = [sys.executable, "-c", WITH_TIMES, "-q", "-p", "no:cacheprovider", "test_cost.py"]
    told = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    dear, whole = (line.split(None, 2) for line in told.splitlines() if re.match(r" *\d+\.\d\d ", line))
    assert dear[2].split() == ["call", "test_cost.py::test_busy"] and whole[2] == "all tests"
    assert 0.2 < float(dear[0]) <= float(whole[0])
