"""Reading cgroups: parsing, and the values of each limit on v1 and v2."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicemgr.drivers.kernel import cgroup
from slicemgr.model import GIB, MIB, Limits

LIMITS = Limits(memory=512 * MIB + 1, disk=GIB, pids=64, cpu=0.5, memory_soft=256 * MIB, io_weight=300)
V1 = """\
9:name=systemd:/
8:pids:/slicemgr/sm-k3wz8n2q-0
6:freezer:/machine/lxc-1-x.libvirt-lxc
4:memory:/machine/lxc-1-x.libvirt-lxc
2:cpu,cpuacct:/machine/lxc-1-x.libvirt-lxc
0::/
"""
V2 = "0::/machine.slice/machine-lxc\\x2d1\\x2dx.scope/libvirt\n"


def test_membership() -> None:
    v1 = cgroup.parse_membership(V1)
    assert v1["pids"] == "/slicemgr/sm-k3wz8n2q-0"
    assert v1["cpu"] == v1["cpuacct"] == v1["memory"] == "/machine/lxc-1-x.libvirt-lxc"
    assert v1["systemd"] == v1[""] == "/"
    assert cgroup.parse_membership(V2) == {"": "/machine.slice/machine-lxc\\x2d1\\x2dx.scope/libvirt"}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_every_limit_is_expected_somewhere(version: str) -> None:
    rows = {row.name: row for row in cgroup.expected(LIMITS, version)}
    assert set(rows) == {"memory", "memory_soft", "pids", "cpu", "cpu_shares", "io_weight"}
    assert rows["memory"].wanted == str(512 * MIB)  # the kernel counts whole pages
    assert rows["pids"].wanted == "64"
    assert rows["cpu"].wanted.split()[0] == "50000"
    assert rows["io_weight"].normal("default 300\n8:0 500") == "300"


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_limits_that_were_not_asked_for_are_not_checked(version: str) -> None:
    bare = Limits(memory=MIB, disk=GIB, pids=64, cpu=1)
    assert {row.name for row in cgroup.expected(bare, version)} == {"memory", "pids", "cpu", "cpu_shares"}


def test_the_version_is_the_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
    assert cgroup.version() == "v1"
    assert cgroup.pids_group_v1("sm-x") == tmp_path / "pids" / "slicemgr" / "sm-x"
    (tmp_path / "cgroup.controllers").touch()
    assert cgroup.version() == "v2"
    assert cgroup.pids_group_v1("sm-x") is None


def test_the_groups_of_importers() -> None:
    """v1 limits swap together with memory; v2 limits it separately."""
    v1 = cgroup.own_limits("v1", "slicemgr-import-x", memory=5, processes=7)
    assert {str(path.relative_to(cgroup.MOUNT)): files for path, files in v1.items()} == {
        "memory/slicemgr/slicemgr-import-x": {"memory.limit_in_bytes": 5, "memory.memsw.limit_in_bytes": 5},
        "pids/slicemgr/slicemgr-import-x": {"pids.max": 7},
    }
    v2 = cgroup.own_limits("v2", "slicemgr-import-x", memory=5, processes=7)
    assert list(v2.values()) == [{"memory.max": 5, "memory.swap.max": 0, "pids.max": 7}]


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (r"/machine.slice/machine-lxc\x2d764\x2dsm\x2d7s5y3vcu\x2d0.scope/libvirt", True),
        ("/machine/lxc-764-sm-7s5y3vcu-0.libvirt-lxc", True),
        ("/system.slice/libvirtd.service", False),
        ("/", False),
    ],
)
def test_a_domain_that_starts_has_no_group_yet(path: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process begins in libvirtd's, whose memory is none of a sliver's."""
    monkeypatch.setattr(cgroup, "group_of", lambda pid, controller: cgroup.MOUNT / path.lstrip("/"))
    found = cgroup.own_group("7s5y3vcu-0", 764, "memory")
    assert (found is not None) == own
