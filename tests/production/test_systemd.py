"""An image's systemd as the init of a container, with cgroup v2: its units have limits, the sliver keeps its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from test_units import MIB, init_of, systemctl
from testbed import IMAGE, Node

from slicemgr.drivers.kernel import cgroup

LONGEST = 3600.0  # seconds of one audit on an emulated host
WANTED = {"memory.max": str(256 * MIB), "pids.max": "200", "cpu.max": "100000 100000"}


def limits(node: Node) -> dict[str, str]:
    """The limits of the group above those that systemd manages."""
    group = cgroup.group_of(init_of(node, "units"), "memory")
    assert group.name == "libvirt"
    return {name: (group / name).read_text().strip() for name in WANTED}


@pytest.fixture(scope="module")
def systemd_here(bare_node: Node) -> Iterator[Node]:
    """One slice with systemd for all of these tests."""
    bare_node.create("units", "--init", "systemd", "--memory", "256M", "--pids", "200", "--cpu", "1")
    yield bare_node
    bare_node.ok("delete", "units")
    bare_node.agrees()


def test_every_unit_starts(systemd_here: Node) -> None:
    assert systemd_here.show("units")["init"] == "systemd"
    assert systemd_here.inside(
        "units", "systemctl is-system-running --wait; systemctl --failed --plain --no-legend"
    ) == ("running\n")
    assert systemd_here.inside("units", "systemctl restart ssh && systemctl is-active ssh systemd-logind") == (
        "active\nactive\n"
    )


def test_a_unit_has_limits_of_its_own(systemd_here: Node) -> None:
    own = "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max"
    assert systemd_here.inside("units", f"systemd-run -q --pipe -p MemoryMax=50M sh -c '{own}'") == f"{50 * MIB}\n"


def test_the_slivers_limits_cannot_be_changed_inside(systemd_here: Node) -> None:
    assert limits(systemd_here) == WANTED
    files = "memory.max pids.max cpu.max memory.swap.max"
    script = f"for one in {files}; do echo max >/sys/fs/cgroup/$one && echo $one; done; true"
    assert systemd_here.inside("units", script) == ""
    assert systemd_here.inside("units", "ls -d /sys/fs/cgroup/../*.slice /sys/fs/cgroup/emulator || true") == ""
    assert systemd_here.inside("units", "cat /proc/1/cgroup") == "0::/init.scope\n"
    assert systemd_here.inside("units", "free -m | awk '/Mem/ { print $2 }'") == "256\n"
    assert limits(systemd_here) == WANTED
    systemctl(systemd_here, "daemon-reload")
    assert limits(systemd_here) == WANTED


def test_it_can_be_paused_and_restarted(systemd_here: Node) -> None:
    systemd_here.ok("pause", "units")
    assert systemd_here.show("units")["state"] == "paused"
    systemd_here.ok("resume", "units")
    before = init_of(systemd_here, "units")
    systemd_here.ok("restart", "units")
    assert init_of(systemd_here, "units") != before
    assert systemd_here.inside("units", "systemctl is-system-running --wait") == "running\n"


@pytest.mark.timeout(LONGEST + 600)
def test_the_audit_passes(bare_node: Node) -> None:
    words = ("--type", "lxc", "--image", IMAGE, "--init", "systemd", "--no-rest", "-f", "json")
    done = bare_node.slicectl("audit", *words, timeout=LONGEST)
    assert done.stdout, done.stderr
    assert not [one for one in json.loads(done.stdout)["rows"] if one["verdict"] == "fail"]
