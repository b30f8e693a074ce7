"""Tests of a running virtual machine, which share one emulated boot.

Tests that need a separate boot are in test_machines, and are variants of many tests of containers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guest import Guest
from test_console_ends import see_the_screen, signed_in
from test_keys import add_and_remove, new_key
from test_recorder import be_at_work
from test_slices import MIB, greets
from testbed import IMAGES, eventually

from slicemgr.drivers.kernel import cgroup, memory_groups

KERNEL = "cat /proc/sys/kernel/random/boot_id"


def test_it_is_what_was_asked_for(guest: Guest) -> None:
    """Name, address, keys and size are as requested, as read over ssh through its port."""
    made, sliver = guest.made, guest.made["slivers"][0]
    assert (made["state"], made["type"], made["image"]) == ("running", "kvm", IMAGES["kvm"])
    assert (sliver["booted"], sliver["limits"]["memory"]) == ("yes", 192 * MIB)
    assert sliver["ports"]["first"] == sliver["ssh"]["port"]
    told = guest.inside("id -u; hostname; sed -n 's/^ID=//p' /etc/os-release; cat /proc/cmdline")
    assert told.split()[:3] == ["0", f"{guest.name}-0", "debian"] and "console=ttyS0" in told
    link = guest.inside("ip -4 -o addr show dev eth0; ip route").split()
    assert f"{sliver['address']}/32" in link or sliver["address"] in link
    own = guest.inside("ssh-keygen -y -f /etc/ssh/ssh_host_ed25519_key").split()
    assert " ".join(own[:2]) == sliver["ssh"]["host_key"]
    assert int(guest.inside("awk '/MemTotal/ {print $2}' /proc/meminfo")) << 10 < 192 * MIB


def test_qemu_is_confined(guest: Guest) -> None:
    """QEMU has its own user, no capability, a system call filter, and VNC only on a private socket."""
    node, pid, sliver = guest.node, guest.qemu(), guest.sliver()["id"]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["Uid"].split()[0] == str(node.rows(f"select uid_first from slivers where id = '{sliver}'")[0][0])
    assert (status["CapEff"].strip("0"), status["Seccomp"]) == ("", "2")
    disk = f"/var/lib/slicemgr/pool/slivers/{sliver}/disk.qcow2"
    other = node.box.run(["setpriv", "--reuid", "123456", "--clear-groups", "cat", disk])
    assert other.returncode != 0, "another sliver's QEMU cannot read this disk"
    assert node.box.run(["test", "-s", disk]).returncode == 0, "the control: it is there"
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    assert not [word for word in words if word.startswith(("0.0.0.0", "127.0.0.1", ":"))]
    assert any("unix:" in word for word in words), "the screen is a unix socket"
    assert node.box.run(["ss", "-ltnp"]).stdout.count("qemu") == 0


@pytest.mark.long
def test_pause_freezes_and_resume_goes_on(guest: Guest) -> None:
    node, port = guest.node, guest.sliver()["ssh"]["port"]
    guest.inside("echo kept > /dev/shm/memory")
    eventually(lambda: greets(node, port), "its sshd answers")
    node.ok("pause", guest.name)
    assert node.show(guest.name)["state"] == "paused"
    assert not greets(node, port)
    node.agrees()
    node.ok("resume", guest.name)
    assert guest.inside("cat /dev/shm/memory; rm /dev/shm/memory") == "kept\n"


@pytest.mark.long
def test_a_larger_disk_is_seen_while_it_runs(guest: Guest) -> None:
    sectors = "cat /sys/block/vda/size"
    before = int(guest.inside(sectors)) * 512
    guest.node.ok("resize", guest.name, "--disk", f"{before // MIB + 1024}M")
    assert int(guest.inside(sectors)) * 512 == before + (1 << 30)


@pytest.mark.long
def test_a_key_comes_and_goes(guest: Guest, tmp_path: Path) -> None:
    with new_key(guest.node, tmp_path / "second") as key:
        add_and_remove(guest.node, guest.name, key)


@pytest.mark.long
def test_a_snapshot_is_made_while_it_runs(guest: Guest) -> None:
    node, before = guest.node, guest.inside(f"echo old > /root/file; sync; {KERNEL}")
    node.ok("snapshot", "create", guest.name, "one")
    (made,) = json.loads(node.ok("snapshot", "list", guest.name, "-f", "json"))
    assert made["state"] == "ready" and 0 < made["size"] < 1 << 30
    assert guest.inside(KERNEL) == before, "it was not started again"
    node.agrees()
    node.ok("snapshot", "delete", guest.name, "one")
    assert guest.inside("cat /root/file") == "old\n"


@pytest.mark.long
def test_what_it_uses_is_recorded(guest: Guest) -> None:
    be_at_work(guest.node, guest.name)


def test_it_runs_on_without_libvirtd(guest: Guest) -> None:
    guest.node.box.libvirtd("kill")
    assert guest.inside("id -u") == "0\n"
    guest.node.box.libvirtd("start")
    eventually(lambda: guest.node.slicectl("pause", guest.name).returncode == 0, "the new libvirtd has it", 60)
    guest.node.ok("resume", guest.name)
    assert guest.inside("id -u") == "0\n"


@pytest.mark.long
def test_memory_goes_back_to_the_node_and_comes_again(guest: Guest) -> None:
    """The guest sees less by its balloon, and its group is limited to less."""
    node, sliver = guest.node, guest.sliver()["id"]
    total = "awk '/MemTotal/ {print $2}' /proc/meminfo"
    before, limit = int(guest.inside(total)) << 10, memory_limit(guest)
    try:
        node.ok("resize", guest.name, "--memory", "160M")
        assert int(guest.inside(total)) << 10 == before - 32 * MIB
        assert memory_limit(guest) == limit - 32 * MIB
        node.agrees()
        refused = node.slicectl("resize", guest.name, "--memory", "193M")
        assert refused.returncode != 0 and "it started with 192 MiB" in refused.stderr
    finally:
        node.ok("resize", guest.name, "--memory", "192M")
    assert int(guest.inside(total)) << 10 == before and memory_limit(guest) == limit
    assert guest.sliver()["id"] == sliver


def memory_limit(guest: Guest) -> int:
    """Bytes that the group of QEMU may use."""
    group = cgroup.group_of(guest.qemu(), "memory")
    found = memory_groups.limit(group)
    assert found is not None
    return found


@pytest.mark.long
def test_a_memory_bomb_is_killed_inside(guest: Guest) -> None:
    bomb = guest.node.ssh(guest.name, "python3 -c 'x = bytearray(400 << 20); print(len(x))'")
    assert bomb.returncode != 0
    assert guest.inside("echo alive") == "alive\n"


def test_its_screen(guest: Guest) -> None:
    with signed_in(guest.node) as eve:
        see_the_screen(guest.node, eve, guest.name)
