"""A machine gets more memory than it started with while it runs, and gives it back. Its guest is emulated.

The tests use one boot, in this order. The small image does not load the driver itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from guest import Guest, booted
from test_guest import KERNEL, memory_limit
from test_guest_balloon import available, controller, stats
from test_slices import MIB
from testbed import IMAGE, Node, eventually

from slicemgr import names

NAME, BASE, MOST = "grows", 256, 768
MACHINE = ("--memory", f"{BASE}M", "--memory-max", f"{MOST}M")
TOTAL = "awk '/MemTotal/ {print $2}' /proc/meminfo"
ONLINE = "/sys/devices/system/memory/auto_online_blocks"
DRIVER = "modprobe virtio_mem"


def fill(size: int) -> str:
    """A command that uses so many MiB at once."""
    return f"python3 -c 'x = bytearray({size} << 20); print(len(x) >> 20)'"


@pytest.fixture(scope="module")
def node(spare_node: Node) -> Node:
    spare_node.ensure_machines()
    spare_node.await_machines()
    return spare_node


@pytest.fixture(scope="module")
def booted_guest(node: Node) -> Iterator[Guest]:
    with booted(node, NAME, *MACHINE) as guest:
        yield guest


def total(guest: Guest) -> int:
    """What the guest has in all, in MiB."""
    return int(guest.inside(TOTAL)) >> 10


def plugged(guest: Guest) -> tuple[int, int]:
    """What is requested of the device, and what the guest has plugged, in MiB."""
    words = ["virsh", "-c", "qemu:///system", "dumpxml", names.domain(guest.sliver()["id"])]
    tree = ET.fromstring(guest.node.box.run(words, check=True).stdout)
    target = "devices/memory/target"
    requested, current = (int(tree.findtext(f"{target}/{name}") or 0) >> 10 for name in ("requested", "current"))
    return requested, current


def resize(guest: Guest, memory: int) -> None:
    guest.node.ok("resize", NAME, "--memory", f"{memory}M")


def refused(guest: Guest, memory: int) -> str:
    """The error of a resize."""
    done = guest.node.slicectl("resize", NAME, "--memory", f"{memory}M")
    assert done.returncode != 0, done.stdout
    return done.stderr


def back(guest: Guest, limit: int, size: int) -> None:
    """After a failure, the guest has what it had."""
    eventually(lambda: memory_limit(guest) == limit, "the limit is as it was", 60)
    resize(guest, BASE)  # otherwise the agent tries again
    assert plugged(guest) == (0, 0)
    assert (memory_limit(guest), total(guest)) == (limit, size)
    guest.node.agrees()


@pytest.mark.long
def test_a_guest_without_the_driver_keeps_what_it_has(guest: Guest) -> None:
    limit, size = memory_limit(guest), total(guest)
    assert size > BASE - 64, "little is reserved for the range that it may get"
    error = refused(guest, 704)
    assert "does not take more memory" in error and "virtio_mem" in error and "stop and start" in error
    back(guest, limit, size)
    words = (guest.node.slicectl("resize", NAME, "--memory", f"{MOST + 1}M"), "its memory_max is 768 MiB")
    assert words[0].returncode != 0 and words[1] in words[0].stderr


@pytest.mark.long
def test_a_guest_that_does_not_bring_it_online_keeps_what_it_has(guest: Guest) -> None:
    limit, size = memory_limit(guest), total(guest)
    guest.inside(f"echo offline > {ONLINE}; {DRIVER}")
    try:
        error = refused(guest, 704)
        assert "does not use the memory" in error and "auto_online_blocks" in error
        back(guest, limit, size)
    finally:
        guest.inside(f"echo online > {ONLINE}")


def test_it_gets_more_than_it_started_with(guest: Guest) -> None:
    """A program fills it, which in the control, before, is ended by the guest's kernel."""
    guest.inside(f"{DRIVER}; cat {ONLINE} | grep -qx online")
    limit, size, boot = memory_limit(guest), total(guest), guest.inside(KERNEL)
    assert guest.node.ssh(NAME, fill(480)).returncode != 0
    resize(guest, 704)
    assert (memory_limit(guest), plugged(guest)) == (limit + (704 - BASE) * MIB, (448, 448))
    eventually(lambda: total(guest) > size + 430, "the guest has it", 30)
    assert guest.inside(fill(480)) == "480\n"
    assert guest.inside(KERNEL) == boot
    assert guest.sliver()["limits"]["memory"] == 704 * MIB
    guest.node.agrees()


@pytest.mark.long
def test_nothing_of_it_is_lost_while_agent_and_libvirt_start_again(guest: Guest) -> None:
    """The memory controller leaves it alone, although little memory is available."""
    node = guest.node
    guest.inside(DRIVER)
    resize(guest, 640)
    limit = memory_limit(guest)
    node.box.libvirtd("kill")
    node.box.libvirtd("start")
    eventually(lambda: node.slicectl("pause", NAME).returncode == 0, "the new libvirtd has it", 60)
    node.ok("resume", NAME)
    assert plugged(guest) == (384, 384)
    with controller(guest):
        guest.inside("head -c 200M /dev/vda > /dev/null")
        available(guest, 0.05)
        eventually(lambda: "memory short" in node.ok("event", "list"), "the node is short", 60)
        guest.inside("sleep 15")
        assert stats(guest)["actual"] >> 10 == BASE
        available(guest, 1.0)
    assert (plugged(guest), memory_limit(guest)) == ((384, 384), limit)
    node.agrees()
    node.ok("pause", NAME)
    waiting = node.slicectl("resize", NAME, "--memory", "704M")
    assert waiting.returncode == 0 and plugged(guest) == (384, 384), "a paused guest takes nothing"
    node.ok("resume", NAME)
    assert plugged(guest) == (448, 448)


@pytest.mark.long
def test_it_gives_memory_back_and_starts_with_its_new_size(guest: Guest) -> None:
    node = guest.node
    guest.inside(DRIVER)
    resize(guest, 704)
    size, limit = total(guest), memory_limit(guest)
    guest.inside(fill(480))
    resize(guest, 300)
    requested, current = plugged(guest)
    print("plugged", requested, current, "of", size, "left", total(guest))
    assert requested == 44 and current <= 120
    assert memory_limit(guest) == limit - 404 * MIB
    assert abs(size - total(guest) - 404) < 24, "what it did not unplug, the balloon holds"
    assert guest.inside(fill(100)) == "100\n"
    resize(guest, 200)
    assert memory_limit(guest) == limit - 504 * MIB
    assert guest.inside("echo alive") == "alive\n"
    resize(guest, 512)
    assert guest.inside(fill(300)) == "300\n"
    node.agrees()


@pytest.mark.long
def test_a_guest_with_cloud_init_takes_it_by_itself(node: Node, second_node: Node) -> None:
    """After a start with its new size, too. In the control, a machine without memory_max is refused with a hint."""
    assert node is second_node, "it also has the image"
    node.type = "kvm"
    try:
        node.create("exp", "--image", IMAGE, "--memory", "384M", "--memory-max", "1G")
        guest = Guest(node, "exp", node.show("exp"))
        node.inside("exp", "cloud-init status --wait > /dev/null || true", 600)
        size = total(guest)
        node.ok("resize", "exp", "--memory", "768M")
        eventually(lambda: total(guest) > size + 360, "the guest has it", 30)
        node.ok("stop", "exp")
        node.ok("start", "exp")
        assert node.inside("exp", fill(500)) == "500\n"
        node.ok("resize", "exp", "--memory", "1G")
        eventually(lambda: total(guest) > 940, "the guest has more", 30)
        node.ok("delete", "exp")
        node.create("exp")
        done = node.slicectl("resize", "exp", "--memory", "193M")
        assert done.returncode != 0 and "it started with 192 MiB" in done.stderr and "--memory-max" in done.stderr
        shown = json.loads(node.ok("show", "exp", "-f", "json"))
        assert shown["slivers"][0]["limits"]["memory_max"] is None
    finally:
        node.type = "lxc"
