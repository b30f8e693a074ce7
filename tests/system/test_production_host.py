"""The core tests once more where slicemgr will run: Debian with systemd and pure cgroup v2, set up by the README.

The machine is booted once; what each test in it found is a test here. The base comes from the box's own import: in the
emulated machine the import's appliance would be emulated once more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from xml.etree import ElementTree as ET

import prodhost
import pytest
from testbed import Node

SUITES = {"12": "bookworm", "13": "trixie"}
TESTS = (  # what depends on the host, the whole path first: the drivers' own slivers have no rows
    "tests/production/test_units.py",
    "tests/system/test_slices.py::test_a_slice_from_request_to_root_shell",
    "tests/system/test_slices.py::test_stop_start_restart_keep_files_and_key",
    "tests/system/test_slices.py::test_pause_freezes_and_resume_goes_on",
    "tests/system/test_slices.py::test_slices_are_apart_and_a_slice_is_together",
    "tests/system/test_limits.py",
    "tests/system/test_launcher.py",
    "tests/contract/test_hypervisor.py::test_pause_and_resume[lxc]",
    "tests/contract/test_hypervisor.py::test_a_domain_ends[lxc-stop-True]",
    "tests/contract/test_hypervisor.py::test_a_dead_controller_takes_its_container_along",
    "tests/contract/test_hypervisor.py::test_many_come_and_go_at_once",
    "tests/contract/test_hypervisor.py::test_a_sliver_that_ignores_the_shutdown_is_ended_by_force",
    "tests/production/test_reboot.py::test_slices_are_left_for_the_reboot",
)
AFTER_REBOOT = (
    "tests/production/test_reboot.py::test_a_running_sliver_comes_back_as_it_was",
    "tests/production/test_reboot.py::test_host_and_database_agree_after_the_reboot",
    "tests/production/test_removal.py",
)
pytestmark = pytest.mark.timeout(2400)
POOL = """\
set -e
truncate -s 4G "$1"
mkfs.btrfs -q "$1"
mkdir -p /tmp/pool
mount -o loop "$1" /tmp/pool
trap 'umount -d /tmp/pool' EXIT
mkdir -m 700 /tmp/pool/bases
btrfs -q subvolume create "/tmp/pool/bases/$2"
cp -a "/var/lib/slicemgr/pool/bases/$2/." "/tmp/pool/bases/$2"
btrfs property set "/tmp/pool/bases/$2" ro true
"""


@dataclass(frozen=True)
class Told:
    """What came out of the machine. results: by test, "" if it passed, else why not."""

    status: int
    results: dict[str, str]
    log: str


def planned() -> list[str]:
    """The tests that are to be run there, as JUnit names them."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *TESTS, *AFTER_REBOOT]
    environment = {**os.environ, "SLICEMGR_NO_BOX": "1", "PYTEST_ADDOPTS": ""}
    told = subprocess.run(words, cwd=prodhost.REPO, env=environment, check=True, capture_output=True, text=True).stdout
    identities = [line.split("::", 1) for line in told.splitlines() if "::" in line]
    return [f"{path.removesuffix('.py').replace('/', '.')}::{name}" for path, name in identities]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = planned()
        metafunc.parametrize("case", cases, ids=cases)


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Made, booted and gone. The box is only asked for its base, so that it is not looked at after each case."""
    node: Node = request.getfixturevalue("node")
    suite = SUITES[request.config.getoption("--debian")]
    work = tmp_path_factory.mktemp("machine")
    disk, row = work / "pool.raw", work / "base.json"
    columns = [name for _, name, *_ in node.rows("pragma table_info(images)")]
    values = node.rows(f"select {', '.join(columns)} from images")[0]
    base = dict(zip(columns, values, strict=True))
    row.write_text(json.dumps(base))
    node.box.run(["sh", "-c", POOL, "sh", disk, base["sha256"]], check=True, timeout=300)
    program = [sys.executable, prodhost.__file__, "--suite", suite, "--pool-disk", str(disk), "--base", str(row)]
    second = [word for test in AFTER_REBOOT for word in ("--after-reboot", test)]
    words = ["unshare", "--mount", "--", *program, *second, "--", *TESTS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=2300, stdin=subprocess.DEVNULL)
    disk.unlink()
    results = {}
    for case in ET.fromstring(done.stdout or "<testsuites/>").iter("testcase"):
        faults = [*case.iter("failure"), *case.iter("error"), *case.iter("skipped")]
        results[f"{case.get('classname')}::{case.get('name')}"] = "\n".join(f"{one.text}" for one in faults)
    return Told(done.returncode, results, done.stderr)


def test_the_machine_came_to_its_end(machine: Told) -> None:
    assert machine.status == 0, machine.log


def test_there(machine: Told, case: str) -> None:
    """One case in the machine."""
    assert case in machine.results, "no result came out of the machine"
    assert machine.results[case] == ""
