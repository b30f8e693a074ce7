"""The node takes memory from a virtual machine by its balloon, and the guest gets it back, also if the agent is killed.

The agent is the real one, but it finds as much memory available as the test says.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from guest import Guest
from test_slices import MIB
from testbed import eventually

from slicemgr.drivers.kernel import cgroup, memory_groups

FULL, FLOOR = 192 * MIB, 64 * MIB
AGENT = """
import dataclasses, sys
from pathlib import Path
from slicemgr.drivers.kernel import counters
true = counters.memory
def memory(root=None):
    found, part = true(root), float(Path("/run/available").read_text())
    return dataclasses.replace(found, available=int(part * found.total), free=int(part * found.total))
counters.memory = memory
from slicemgr.drivers.libvirt import balloons
if len(sys.argv) > 1:
    balloons.KEEPER = Path(sys.argv[1])
sys.argv = ["slicemgr", "agent"]
from slicemgr.main import main
main()
"""
CACHE = "head -c 130M /dev/vda > /dev/null"
FILL = "python3 -c 'x = bytearray(95 << 20); print(len(x) >> 20)'"  # at once, which needs all of its memory
GROW = """python3 -c '
import time
x = []
for _ in range(24):
    x.append(bytearray(4 << 20))
    time.sleep(0.5)
print(len(x))'"""


def stats(guest: Guest) -> dict[str, int]:
    """What libvirt knows of the guest's memory, in KiB."""
    words = ["virsh", "-c", "qemu:///system", "dommemstat", f"sm-{guest.sliver()['id']}"]
    lines = guest.node.box.run(words, check=True).stdout.splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines if line)}


def balloon(guest: Guest) -> int:
    """What the balloon leaves to the guest, in bytes."""
    return stats(guest)["actual"] << 10


def charged(guest: Guest) -> int:
    held = memory_groups.held(cgroup.group_of(guest.qemu(), "memory"), cgroup.version(), swap=False)
    assert held is not None
    return held.charged


def details(guest: Guest, action: str) -> list[str]:
    """The texts of the events of an action, oldest first."""
    events = json.loads(guest.node.ok("event", "list", "-f", "json"))
    return [one["detail"] for one in sorted(events, key=lambda one: str(one["at"])) if one["action"] == action]


def available(guest: Guest, part: float) -> None:
    """Have the agent find this part of the node's memory available."""
    guest.node.box.path("/run/available").write_text(str(part))


@contextmanager
def controller(guest: Guest, mode: str = "on", *keeper: str) -> Iterator[None]:
    """An agent whose memory controller works. keeper: a program in place of the one that gives memory back."""
    node, file = guest.node, guest.node.box.path("/etc/slicemgr/slicemgr.toml")
    before = file.read_text()
    available(guest, 1.0)
    file.write_text(f'{before}\n[memory]\ncontroller = "{mode}"\n')
    node.kill("agent")
    node.start_agent((sys.executable, "-c", AGENT, *keeper))
    try:
        yield
    finally:
        file.write_text(before)
        node.kill("agent")
        node.start_agent()


def lowered(guest: Guest) -> int:
    """Wait until the balloon was lowered and holds no more for 10 s; what it leaves."""
    eventually(lambda: balloon(guest) < FULL - 8 * MIB, "the balloon is lower", 90)
    seen, since = balloon(guest), time.monotonic()

    def rests() -> bool:
        nonlocal seen, since
        if (now := balloon(guest)) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > 10

    eventually(rests, "no more is taken", 120)
    return seen


def test_what_is_idle_beyond_the_guarantee_is_taken_and_comes_back(guest: Guest) -> None:
    node = guest.node
    node.ok("resize", guest.name, "--memory-guarantee", "150M")
    try:
        guest.inside(CACHE)
        with controller(guest, "observe"):
            available(guest, 0.05)
            eventually(lambda: [one for one in details(guest, "memory short") if "would take" in one], "it says so")
            time.sleep(5)
            available(guest, 1.0)
            ended = lambda: [one for one in details(guest, "memory short") if "would have taken" in one]  # noqa: E731
            [text] = eventually(ended, "the shortage ends")
            assert text.endswith("from 1 sliver"), text
            assert balloon(guest) == FULL, "it only observes"
        with controller(guest):
            before = charged(guest)
            available(guest, 0.05)
            assert 150 * MIB <= lowered(guest) < 152 * MIB
            node.ok("resize", guest.name, "--memory-guarantee", "0")
            eventually(lambda: balloon(guest) < 150 * MIB, "more is taken without the guarantee", 90)
            left, lost = lowered(guest), before - charged(guest)
            assert stats(guest)["usable"] << 10 > FLOOR - 8 * MIB
            assert lost > 20 * MIB
            node.agrees()
            guest.inside(GROW)
            assert left < balloon(guest) == FULL, "it has back what it wants"
            available(guest, 1.0)
            [text] = eventually(lambda: details(guest, "memory taken"), "its users learn of it")
            print(before >> 20, left >> 20, lost >> 20, text)
            assert text.endswith("of sliver 0")
    finally:
        node.ok("resize", guest.name, "--memory-guarantee", "0")


@pytest.mark.long
def test_a_resize_a_pause_and_the_end_of_a_shortage_give_its_memory_back(guest: Guest) -> None:
    node = guest.node
    guest.inside(CACHE)
    try:
        with controller(guest):
            available(guest, 0.05)
            assert lowered(guest) < 150 * MIB
            node.ok("resize", guest.name, "--memory", "160M")
            assert balloon(guest) >= 150 * MIB
            node.agrees()
            node.ok("resize", guest.name, "--memory", "192M")
            available(guest, 1.0)
            eventually(lambda: balloon(guest) == FULL, "a calm node gives back", 30)
            guest.inside(CACHE)
            available(guest, 0.05)
            assert lowered(guest) < 150 * MIB
            node.ok("pause", guest.name)
            node.agrees()
            time.sleep(10)
            node.ok("resume", guest.name)
            eventually(lambda: balloon(guest) == FULL, "a guest that does not answer for long gets all back", 60)
            assert guest.inside(FILL) == "95\n"
    finally:
        node.ok("resize", guest.name, "--memory", "192M")


@pytest.mark.long
def test_a_guest_gets_its_memory_back_if_the_agent_is_killed(guest: Guest) -> None:
    """Or ends. In the control, a program in place of the one that gives back does nothing; the next agent does."""
    node = guest.node
    for wait, number in ((0.0, signal.SIGKILL), (0.7, signal.SIGKILL), (2.9, signal.SIGTERM)):
        guest.inside(CACHE)
        with controller(guest):
            available(guest, 0.05)
            eventually(lambda: balloon(guest) < FULL - 8 * MIB, "the balloon is lower", 90)
            time.sleep(wait)
            node.box.signal_daemon("agent", number)
            eventually(lambda: balloon(guest) == FULL, "the guest has its memory", 30)
            assert guest.inside(FILL) == "95\n"
    nothing = node.box.path("/run/nothing")
    nothing.write_text("#!/bin/sh\necho ready\nexec cat > /dev/null\n")
    nothing.chmod(0o755)
    guest.inside(CACHE)
    with controller(guest, "on", "/run/nothing"):
        available(guest, 0.05)
        left = lowered(guest)
        node.box.signal_daemon("agent", signal.SIGKILL)
        time.sleep(5)
        assert balloon(guest) == left
        assert node.ssh(guest.name, FILL).returncode != 0
    eventually(lambda: balloon(guest) == FULL, "the next agent gives it back", 60)
    assert guest.inside(FILL) == "95\n"
