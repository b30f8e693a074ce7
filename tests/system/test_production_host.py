"""The core tests once more where slicemgr will run: Debian with systemd and pure cgroup v2, set up by the README.

The base comes from the box's own import: in the emulated machine the import's appliance would be emulated once more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import prodhost
import pytest
from testbed import Node

SUITES = {"12": "bookworm", "13": "trixie"}
TESTS = (  # what depends on the host, the whole path first: the drivers' own slivers have no rows
    "tests/production",
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
)
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


@pytest.mark.timeout(2400)
def test_core_tests_on_a_production_like_host(node: Node, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    suite = SUITES[request.config.getoption("--debian")]
    disk, row = tmp_path / "pool.raw", tmp_path / "base.json"
    columns = [name for _, name, *_ in node.rows("pragma table_info(images)")]
    values = node.rows(f"select {', '.join(columns)} from images")[0]
    base = dict(zip(columns, values, strict=True))
    row.write_text(json.dumps(base))
    node.box.run(["sh", "-c", POOL, "sh", disk, base["sha256"]], check=True, timeout=300)
    program = [sys.executable, prodhost.__file__, "--suite", suite, "--pool-disk", disk, "--base", row]
    words = ["unshare", "--mount", "--", *map(str, program), "--console", str(tmp_path / "console.log"), "--", *TESTS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=2300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    results = ET.fromstring(done.stdout)
    broken = [
        f"{case.get('classname')}::{case.get('name')}\n{fault.text}"
        for case in results.iter("testcase")
        for fault in (*case.iter("failure"), *case.iter("error"), *case.iter("skipped"))
    ]
    assert not broken, "\n\n".join(broken)
    modules = {str(case.get("classname")).rpartition(".")[2] for case in results.iter("testcase")}
    assert modules == {"test_units", "test_slices", "test_limits", "test_launcher", "test_hypervisor"}
