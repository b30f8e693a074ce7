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
TESTS = (
    "tests/system/test_launcher.py",
    "tests/contract/test_hypervisor.py",
    "tests/system/test_slices.py",
    "tests/system/test_limits.py",
    "tests/production",
)
NOT_THERE = ("twice_is_one", "outlive_libvirtd", "hung_libvirtd")  # want the disk image; a box's libvirtd
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
    chosen = [*TESTS, "-k", " and ".join(f"not {one}" for one in NOT_THERE)]
    program = [sys.executable, prodhost.__file__, "--suite", suite, "--pool-disk", disk, "--base", row]
    words = ["unshare", "--mount", "--", *map(str, program), "--console", str(tmp_path / "console.log"), "--", *chosen]
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
    assert modules == {Path(one).stem for one in TESTS if one.endswith(".py")} | {"test_units"}
