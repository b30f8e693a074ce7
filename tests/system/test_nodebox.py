"""Node boxes: created once even if requested again, separate from each other, and removed completely."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import demo
import nodebox_box
import nodebox_network
import pytest
from nodebox_box import Box
from nodebox_linux import BoxError, loop_files
from nodebox_switch import Switch
from testbed import eventually

from slicemgr.drivers.kernel import idle_pages

CGROUPS = Path("/sys/fs/cgroup")


def traces(*names: str) -> dict[str, set[str]]:
    """Objects that a box may leave on the host, by kind: those with one of the names or with an unknown owner."""
    processes = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = (process / "cgroup").read_text() + (process / "cmdline").read_text()
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"  # zombies do not count
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(name in where for name in names) and not ended and int(process.name) != os.getpid():
            processes.add(process.name)
    others = {nodebox_network.host_device(name) for name in nodebox_box.names() if name not in names}
    return {
        "processes": processes,
        "mounts": {line for line in Path("/proc/self/mountinfo").read_text().splitlines() if _names(line, names)},
        "loops": {line for line in loop_files() if _names(line, names)},
        "links": {path.name for path in Path("/sys/class/net").iterdir()} - others,
        "cgroups": {str(path) for path in CGROUPS.glob("*/*") if _names(path.name, names)}
        | {str(path) for path in CGROUPS.glob("*/*/*") if _names(path.name, names)},
        "files": {path.name for path in nodebox_box.BOXES.glob("*") if _names(path.name, names)},
    }


def _names(text: str, names: tuple[str, ...]) -> bool:
    return any(name in text for name in names)


def host_settings() -> str:
    """The network settings of the host that a box might change."""
    saved = [subprocess.run([f"iptables-{kind}-save"], capture_output=True, text=True) for kind in ("legacy", "nft")]
    rules = [line for one in saved for line in one.stdout.splitlines() if not line.startswith("#")]
    return "\n".join([*rules, *(Path(f"/proc/sys/net/ipv4/{name}").read_text() for name in ("ip_forward",))])


@pytest.fixture
def box() -> Iterator[Box]:
    made = Box(f"one-{demo.CLONE}")
    made.destroy()
    yield made
    made.destroy()


def shell(box: Box, script: str) -> str:
    return box.run(["sh", "-c", script], check=True).stdout


def test_made_twice_it_is_the_same_box(box: Box) -> None:
    first = box.make(link="host", pool_size="1G")
    shell(box, "echo here > /var/lib/slicemgr/pool/file")
    again = box.make(link="host", pool_size="1G")
    assert (again.keeper, again.libvirtd, again.address) == (first.keeper, first.libvirtd, first.address)
    with pytest.raises(BoxError, match=r"pool_size=1G.*destroy it first"):
        box.make(pool_size="2G")
    assert shell(box, "cat /var/lib/slicemgr/pool/file") == "here\n"


def test_a_program_in_it_has_its_exit_status_and_sees_no_host(box: Box) -> None:
    facts = box.make(link="host", pool_size="1G")
    assert box.run(["sh", "-c", "exit 7"]).returncode == 7
    assert shell(box, "ls /sys/class/net | tr '\\n' ' '").split() == ["eth0", "lo"]
    assert shell(box, "virsh -c lxc:///system list --all --name").strip() == ""
    assert "refused" in shell(box, f"bash -c ': <>/dev/tcp/{facts.gateway}/9' 2>&1 || true")  # it answers


def test_its_agent_tracks_no_pages_of_the_machine(box: Box) -> None:
    """A machine has one tracker. The control is a process of the machine itself."""
    box.make(link="host", pool_size="1G")
    asks = "from slicemgr.drivers.kernel import idle_pages; print(idle_pages.is_whole_machine())"
    assert box.run([sys.executable, "-c", asks]).stdout == "False\n"
    assert idle_pages.is_whole_machine() is (str(Path("/proc/self/ns/cgroup").readlink()) == "cgroup:[4026531835]")


def test_two_boxes_are_apart(box: Box) -> None:
    other = Box(f"two-{demo.CLONE}")
    other.destroy()
    try:
        box.make(link="none", pool_size="1G")
        other.make(link="none", pool_size="1G")
        shell(
            box, "echo mine > /var/lib/slicemgr/pool/file; ip link add only type veth peer name other; iptables -N MINE"
        )
        assert not shell(other, "ls /var/lib/slicemgr/pool").strip()
        assert "only" not in shell(other, "ls /sys/class/net")
        assert "MINE" not in shell(other, "iptables -S")
        assert other.facts().libvirtd != box.facts().libvirtd
        other.destroy()
        assert shell(box, "cat /var/lib/slicemgr/pool/file") == "mine\n"
        assert box.facts().healthy
    finally:
        other.destroy()


def test_a_reboot_keeps_what_is_on_disk_and_nothing_else(box: Box) -> None:
    before = box.make(link="host", pool_size="1G")
    shell(box, "echo kept > /var/lib/slicemgr/pool/file; touch /run/gone; ip link add gone type veth peer name gone2")
    after = box.reboot()
    assert after.healthy
    assert (after.address, after.keeper != before.keeper) == (before.address, True)
    assert shell(box, "cat /var/lib/slicemgr/pool/file; ls /run/gone 2>&1; ls /sys/class/net").split() == [
        "kept", "ls:", "cannot", "access", "'/run/gone':", "No", "such", "file", "or", "directory", "eth0", "lo",
    ]  # fmt: skip


@pytest.mark.parametrize("killed", ["nobody", "keeper", "libvirtd", "both"])
def test_destroyed_it_leaves_nothing(box: Box, killed: str) -> None:
    before, settings = traces(box.name), host_settings()
    facts = box.make(link="host", pool_size="1G")
    box.background("sleeper", ["sleep", "1000"])
    assert host_settings() == settings
    assert traces(box.name) != before  # otherwise the comparison below proves nothing
    for name, pid in (("keeper", facts.keeper), ("libvirtd", facts.libvirtd)):
        if killed in (name, "both"):
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
    box.destroy()
    assert traces(box.name) == before
    assert host_settings() == settings
    box.destroy()  # of none: fine


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.6, 1.2])
def test_a_maker_killed_midway_leaves_what_destroy_removes(box: Box, seconds: float) -> None:
    before = traces(box.name)
    words = [sys.executable, str(demo.HERE / "nodebox"), "make", box.name, "--link", "host", "--pool-size", "1G"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as maker:
        time.sleep(seconds)
        maker.kill()
    box.destroy()
    eventually(lambda: traces(box.name) == before, "a program that the maker had started ends by itself", 20)


def test_a_maker_killed_midway_leaves_what_make_mends(box: Box) -> None:
    words = [sys.executable, str(demo.HERE / "nodebox"), "make", box.name, "--link", "host", "--pool-size", "1G"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as maker:
        eventually(lambda: box.exists, "the box is registered", 60)
        maker.kill()
    assert box.make(link="host", pool_size="1G").healthy


def test_boxes_at_a_switch_reach_each_other_and_the_host(box: Box) -> None:
    """Also the outside namespace of a box; and again after a reboot of the box and the end of the switch."""
    other, switch = Box(f"two-{demo.CLONE}"), Switch(f"one-{demo.CLONE}")
    before, settings = traces(box.name, other.name, switch.name), host_settings()
    other.destroy()
    try:
        switch.make()
        box.make(link="none", with_libvirt=False)
        other.make(link="outside", with_libvirt=False)
        near, far = box.plug(switch), other.plug(switch, outside=True)
        assert (near, box.plug(switch)) == (box.plug(switch), near) and near != far
        assert other.facts().cables == {switch.name: far}
        assert answers_on(other.outside_prefix, near) and answers_on([], near) and answers_on(box.prefix, far)
        box.reboot()
        assert answers_on([], near)
        os.kill(switch.facts().keeper or 0, signal.SIGKILL)
        eventually(lambda: switch.pid is None, "the switch has ended")
        switch.make()
        box.make()
        assert answers_on([], near)
        assert host_settings() == settings
    finally:
        box.destroy()
        other.destroy()
        switch.destroy()
    assert traces(box.name, other.name, switch.name) == before


def test_a_cable_with_a_delay(box: Box) -> None:
    """Also after a reboot of the box, and without one again."""
    switch = Switch(f"one-{demo.CLONE}")
    try:
        switch.make()
        box.make(link="none", with_libvirt=False)
        address = box.plug(switch, delay=40)
        assert round_trip(address) >= 0.08
        box.reboot()
        assert round_trip(address) >= 0.08
        assert box.plug(switch) == address and round_trip(address) < 0.08
    finally:
        box.destroy()
        switch.destroy()


def round_trip(address: str) -> float:
    """Seconds until a host refuses a connection, the shortest of several."""
    found = []
    for _ in range(10):
        began = time.monotonic()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, 1), timeout=10)
        found.append(time.monotonic() - began)
    return min(found)


def answers_on(prefix: list[str], address: str) -> bool:
    """Whether a host refuses a connection, which shows that packets pass in both directions."""
    words = [*prefix, "timeout", "10", "bash", "-c", f": <>/dev/tcp/{address}/9"]
    return "refused" in subprocess.run(words, capture_output=True, text=True, timeout=60).stderr
