"""The verdicts of an audit: every check passes with the required values of the probe, and fails with others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slicemgr.audit import checks, machine
from slicemgr.audit.checks import MIB, Target
from slicemgr.audit.row import LONGEST, Row, inapplicable

TARGET = Target("exp", memory=256 * MIB, disk=128 * MIB, pids=64, cpu=1.5, terminals=64, capabilities=0x200435FB)

# row → (values that pass, values that fail)
CASES: dict[str, tuple[str, str]] = {
    "table 3: hostname": ("view.hostname\texp-0", "view.hostname\tnode1"),
    "table 3: machine": ("view.machine\tx86_64", "view.machine\tppc"),
    "table 3: syslog": ("call64.syslog\tEPERM", "call64.syslog\tok"),
    "table 3: network": ("view.link\tlo\nview.link\teth0", "view.link\tlo\nview.link\teth0\nview.link\tsm4"),
    "table 3: mount points": ("view.mount\t/ /", "view.mount\t/pool/roots/x /"),
    "table 3: memory": ("view.meminfo\t268435456", "view.meminfo\t25000000000"),
    "table 3: sysfs": ("entries./sys/firmware\t0", "entries./sys/firmware\t4"),
    "table 3: procfs": ("read./proc/kcore\t0\nread./proc/keys\tEACCES", "read./proc/kcore\t4096"),
    "table 3: procfs, writable": (
        "writable\t/proc/sys/net/ipv4/ip_forward\nwritable.count\t1",
        "writable\t/proc/sys/vm/drop_caches\nwritable.count\t1",
    ),
    "table 3: tools": ("view.cpuinfo\t2\nview.stat\t2", "view.cpuinfo\t64\nview.stat\t64"),
    "table 3: PID": ("view.init\tinit\nview.processes\t9", "view.init\tsystemd\nview.processes\t300"),
    "table 3: devpts": ("terminals\t63", "terminals\t264"),
    "table 3: quota": (
        "disk.file\t133000000\ndisk.subvolume\t133000000",
        "disk.file\t133000000\ndisk.subvolume\t190000000",
    ),
    "system calls, 64 bit": ("call64.keyctl\tEPERM\ncall64.bpf\tENOSYS", "call64.keyctl\tEPERM\ncall64.bpf\tEFAULT"),
    "system calls, 32 bit": ("call32.keyctl\tEPERM", "call32.keyctl\tok"),
    "system calls, x32": ("x32.getpid\tENOSYS", "x32.getpid\tok"),
    "socket families, 64 bit": ("families64\t1,2,10,16,17", "families64\t1,2,10,16,17,40"),
    "socket families, 32 bit": ("families32\t1,2", "families32\t1,2,44"),
    "socket families, socketcall": ("families_socketcall\tnone", "families_socketcall\t1,2"),
    "capabilities": ("status.CapBnd\t00000000200435fb", "status.CapBnd\t00000000202435fb"),
    "seccomp": ("status.Seccomp\t2", "status.Seccomp\t0"),
    "host ids": ("status.first_id\t3000000", "status.first_id\t0"),
    "protection from the OOM killer": ("status.oom_lower\tEACCES", "status.oom_lower\tok"),
    "devices": ("device.loop\tEPERM", "device.loop\tok"),
    "requests to the pool": ("pool.sync\tEPERM", "pool.sync\tok"),
    "processes": ("processes\t60", "processes\t164"),
    "memory": ("memory\tkilled", "memory\tok"),
    "packet ring, large": ("rings.large\tENOMEM", "rings.large\tok"),
    "packet ring, tcpdump's": ("rings.capture\tok", "rings.capture\tEPERM"),
    "packet rings, sum": ("rings.sum\t4194304", "rings.sum\t134217728"),
    "fragments' threshold": (
        "fragments.ipv4_raise\tEROFS\nfragments.ipv6_raise\tEROFS",
        "fragments.ipv4_raise\tok\nfragments.ipv6_raise\tEROFS",
    ),
    "TCP buffers": ("buffers.tcp\t1048576\nbuffers.sockets\t4", "buffers.tcp\t300000000\nbuffers.sockets\t4"),
    "UDP buffers": ("buffers.udp\t1048576", "buffers.udp\t300000000"),
}

MACHINE: dict[str, tuple[str, str]] = {
    **{name: CASES[name] for name in CASES if name not in machine.INAPPLICABLE and name != "memory"},
    "disks": (
        "disk.size.vda\t134217728\ndisk.read_only.vda\t0\ndisk.size.vdb\t9999999999\ndisk.read_only.vdb\t1",
        "disk.size.vda\t134217728\ndisk.read_only.vda\t0\ndisk.size.vdb\t512\ndisk.read_only.vdb\t0",
    ),
    "hardware": (
        "hardware.virtio\t0x1af4:0x0001\nhardware.pci\t0x1af4:0x1041\nhardware.pci\t0x8086:0x29c0",
        "hardware.virtio\t0x1af4:0x0013\nhardware.pci\t0x1af4:0x1053",  # a socket to the node
    ),
    "firmware": (
        "hardware.sys_vendor\tQEMU\nhardware.product_serial\t",
        "hardware.sys_vendor\tQEMU\nhardware.product_serial\t5CG0123XYZ",
    ),
    "memory": ("memory\tkilled", "memory\tok"),
}


def row(check: checks.Check, text: str) -> Row:
    return checks.judged(check, "lxc", checks.parse(text), TARGET)


def test_every_check_has_a_case() -> None:
    assert [check.row for check in checks.INSIDE] == list(CASES)


@pytest.mark.parametrize("check", checks.INSIDE, ids=lambda check: check.row)
def test_a_check_tells_good_from_bad(check: checks.Check) -> None:
    good, bad = CASES[check.row]
    assert row(check, good).ok
    assert not row(check, bad).ok
    assert not row(check, "").ok, "a probe without output proves nothing"


@pytest.mark.parametrize(("version", "ok"), [("v1", False), ("v2", True)])
def test_the_node_s_stat_is_shown_where_lxcfs_cannot_compute_another(version: str, ok: bool) -> None:
    (of_container,) = [one for one in checks.PAPER if one.row == "table 3: tools"]
    (of_machine,) = [one for one in machine.CHECKS if one.row == "table 3: tools"]
    target, values = replace(TARGET, cgroup=version), checks.parse("view.cpuinfo\t2\nview.stat\t64")
    assert checks.judged(of_container, "lxc", values, target).ok is ok
    assert not checks.judged(of_machine, "kvm", values, target).ok


@pytest.mark.parametrize(("version", "socket"), [("v1", 128 << 10), ("v2", 64 << 10)])
def test_each_socket_may_have_one_write_beyond_the_limit(version: str, socket: int) -> None:
    (check,) = [one for one in checks.LIMITS if one.row == "TCP buffers"]
    target, most = replace(TARGET, cgroup=version), TARGET.memory + 4 * socket
    for held, ok in ((most, True), (most + 1, False)):
        values = checks.parse(f"buffers.tcp\t{held}\nbuffers.sockets\t4")
        assert checks.judged(check, "lxc", values, target).ok is ok


def test_every_check_of_a_container_is_one_of_a_machine_or_says_why_not() -> None:
    rows = [check.row for check in machine.CHECKS]
    assert sorted(rows) == sorted(MACHINE) and len(set(rows)) == len(rows)
    assert {check.row for check in checks.INSIDE} - set(rows) == machine.INAPPLICABLE.keys()
    assert not machine.INAPPLICABLE.keys() & set(rows)
    assert all(machine.INAPPLICABLE.values())


@pytest.mark.parametrize("check", machine.CHECKS, ids=lambda check: check.row)
def test_a_check_of_a_machine_tells_good_from_bad(check: checks.Check) -> None:
    good, bad = MACHINE[check.row]
    assert row(check, good).ok
    assert row(check, bad).ok is False
    assert row(check, "").ok is False, "a probe without output proves nothing"


@pytest.mark.parametrize("line", ["pci\t0x10de:0x1eb8", "pci\t0x8086:0x10fb", "pci\t0x8086", "usb\t046d:c077"])
def test_hardware_of_the_node_is_noticed(line: str) -> None:
    (check,) = [one for one in machine.CHECKS if one.row == "hardware"]
    own = "hardware.virtio\t0x1af4:0x0001\nhardware.usb\t1d6b:0002"
    assert row(check, own).ok
    assert not row(check, f"{own}\nhardware.{line}").ok


def test_a_check_that_does_not_apply_is_neither_passed_nor_failed() -> None:
    shown = inapplicable("seccomp", "kvm", "a reason").shown()
    assert (shown["verdict"], shown["seen"], shown["expected"]) == ("not applicable", "a reason", "")


def test_lines_that_are_not_the_probe_s_are_left_out() -> None:
    text = "motd\nseccomp\t\x1b[31m2\n" + "x" * 101 + "\t1\nname\t" + "y" * 201 + "\nstatus.Seccomp\t2\n"
    assert checks.parse(text) == {"status.Seccomp": ["2"]}


def test_a_cell_is_printable_and_bounded() -> None:
    shown = Row("row", "lxc", "x", "\x1b]0;title\x07" + "y" * 1000, False).shown()
    seen = str(shown["seen"])
    assert seen.isprintable() and len(seen) <= LONGEST
    assert shown["verdict"] == "fail"
