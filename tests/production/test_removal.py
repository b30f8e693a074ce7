"""The documented commands for the removal, or for the purge of the packages, leave nothing of the program.

Run it last: nothing works afterwards.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(3600)
# Files of the tests and of systemd.
KEPT = ("/opt/tests", "/opt/testenv", "/opt/packages", "/root", "/var/log", "/proc", "/sys")


@pytest.fixture(scope="module", autouse=True)
def removal() -> subprocess.CompletedProcess[str]:
    """The documented commands, run."""
    return subprocess.run(
        ["sh", "/opt/tests/remove"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3000
    )


def output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout


def command_of(process: Path) -> bytes:
    """b"" if it has just ended."""
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_the_commands_work(removal: subprocess.CompletedProcess[str]) -> None:
    assert removal.returncode == 0, removal.stderr


def test_no_file_is_left() -> None:
    found = []
    for directory, names, files in os.walk("/"):
        names[:] = [name for name in names if str(Path(directory) / name) not in KEPT]
        found += [f"{directory}/{name}" for name in (*names, *files) if "slicemgr" in name or name.startswith("sm-")]
    tests = "/etc/systemd/system/slicemgr-tests.service"
    assert [one for one in found if not one.endswith("slicemgr-tests.service")] == [], f"besides {tests}"


def test_no_rule_link_domain_mount_or_cgroup_is_left() -> None:
    for program in ("iptables-legacy-save", "iptables-nft-save"):
        assert "SLICEMGR" not in output(program)
    assert "sm-" not in output("ip", "-o", "link")
    assert output("virsh", "-c", "lxc:///system", "list", "--all", "--name").split() == []
    assert "slicemgr" not in Path("/proc/self/mountinfo").read_text()
    assert [one for one, *_ in os.walk("/sys/fs/cgroup") if "sm-" in Path(one).name] == []


def test_no_unit_process_or_user_is_left() -> None:
    units = output("systemctl", "list-unit-files", "--no-legend", "slicemgr-*").split("\n")
    assert [line.split()[0] for line in units if line] == ["slicemgr-tests.service"]
    accounts = Path("/etc/passwd").read_text() + Path("/etc/group").read_text()
    assert [line for line in accounts.splitlines() if line.startswith("slicemgr")] == []
    running = [
        command
        for command in map(command_of, Path("/proc").glob("[0-9]*"))
        if any(one in command for one in (b"/opt/slicemgr/", b"/usr/lib/slicemgr/", b"libvirt_lxc"))
    ]
    assert running == []
