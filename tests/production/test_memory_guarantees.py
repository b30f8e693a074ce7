"""With cgroup v2 the kernel spares what is guaranteed to a sliver; without the guarantee, it takes the same memory.

And with swap, the node takes memory of programs, too, although a sliver cannot use swap by itself.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_units import MIB, SCOPES, init_of, systemctl
from testbed import Node, eventually

from slicemgr.client.nodes import MemoryRequest
from slicemgr.drivers.kernel import cgroup, memory_groups
from slicemgr.drivers.kernel.counters import meminfo, value_in
from slicemgr.drivers.kernel.memory_groups import Take
from slicemgr.drivers.kernel.throttle import Throttle, Throttled

GUARANTEE = 320 * MIB
FILE = 256 * MIB
LEFT = 64 * MIB  # what the program of the host leaves of the memory that is available and not guaranteed
CACHE = (
    f"test -e cache || dd if=/dev/zero of=cache bs=1M count={FILE // MIB} status=none && sync && cat cache >/dev/null"
)
SWAP = Path("/var/tmp/swap")
HELD, TAKEN = 128 * MIB, 64 * MIB  # by a program of a sliver, and by the node of that
HOLDS = f"""
import os, time
x = bytearray(os.urandom({MIB})) * {HELD // MIB}
while not os.path.exists("go"):
    time.sleep(0.5)
open("sum", "w").write(str(len(x[::4096])))
time.sleep(600)
"""
GROWN = 200 * MIB
GROWS = f"""
import os, time
time.sleep(3)
found = []
for _ in range({GROWN // MIB}):
    found.append(os.urandom({MIB}))
    time.sleep(0.02)
while not os.path.exists("enough"):
    time.sleep(0.5)
"""
BOMB = "echo 1000 >/proc/self/oom_score_adj; exec python3 -c 'x = bytearray(400 << 20)'"
HOLD = "import sys; x = bytearray(int(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


def group(node: Node, name: str) -> Path:
    return cgroup.group_of(init_of(node, name), "memory")


def spared(group: Path) -> int:
    return int((group / "memory.min").read_text())


def cached(group: Path) -> int:
    """Bytes of page cache."""
    return value_in((group / "memory.stat").read_bytes(), b"file")


@pytest.fixture(scope="module")
def two(bare_node: Node) -> Iterator[Node]:
    for name, guarantee in (("kept", GUARANTEE), ("idle", 0)):
        bare_node.create(name, "--memory", "512M", "--memory-guarantee", str(guarantee))
    yield bare_node
    bare_node.ok("delete", "kept", "idle")
    bare_node.agrees()


def await_spared(node: Node, guarantee: int) -> None:
    """Wait until the kernel spares the guarantee of `kept`: in its group and those above it."""
    own = group(node, "kept")
    above = [one for one in own.parents if one in (SCOPES, *SCOPES.glob("*")) or SCOPES in one.parents]
    assert above[-1] == SCOPES
    deadline = time.monotonic() + 120  # an emulated host beside other loads is slow
    while (found := {str(one): spared(one) for one in (own, *above)}) != dict.fromkeys(found, guarantee):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def kept(node: Node) -> dict[str, float]:
    """The parts of their page cache that both slivers keep while a program of the host takes nearly all memory."""
    for name in ("kept", "idle"):
        node.inside(name, CACHE)
    groups = {name: group(node, name) for name in ("kept", "idle")}
    before = {name: cached(one) for name, one in groups.items()}
    assert min(before.values()) > FILE * 0.9, before
    bytes_ = meminfo()["MemAvailable"] - before["kept"] - LEFT
    words = [sys.executable, "-c", HOLD, str(bytes_)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holds:
        assert holds.stdout is not None
        assert holds.stdout.readline() == "held\n"
        found = {name: cached(one) / before[name] for name, one in groups.items()}
        holds.communicate()
    return found


def test_the_kernel_spares_it_again_after_systemd_has_read_its_units(two: Node) -> None:
    await_spared(two, GUARANTEE)
    assert spared(group(two, "idle")) == 0
    systemctl(two, "daemon-reload")
    systemctl(two, "set-property", "--runtime", "machine.slice", "MemoryMin=0")
    await_spared(two, GUARANTEE)


def test_guarantees_reach_the_groups_inside_of_slivers(two: Node) -> None:
    """lxcfs, which has just started, clears the option of the hierarchy; so does this control."""

    def reaches() -> bool:
        return memory_groups.RECURSIVE in cgroup.options(Path("/proc/mounts").read_text())

    eventually(reaches, "the option is set", 30)
    subprocess.run(["mount", "-o", "remount,rw", "cgroup2", cgroup.MOUNT], check=True)
    assert not reaches()
    eventually(reaches, "the option is set again", 30)


def test_what_is_guaranteed_stays_and_without_a_guarantee_it_goes(two: Node) -> None:
    await_spared(two, GUARANTEE)
    guarded = kept(two)
    two.ok("resize", "kept", "--memory-guarantee", "0")
    try:
        await_spared(two, 0)
        control = kept(two)
    finally:
        two.ok("resize", "kept", "--memory-guarantee", str(GUARANTEE))
    assert guarded["kept"] > 0.95 and guarded["idle"] < 0.7, (guarded, control)
    assert control["kept"] < 0.9, (guarded, control)


@pytest.fixture
def swap() -> Iterator[None]:
    """The host with swap."""
    try:
        for words in ("fallocate -l 512M", "chmod 600", "mkswap", "swapon"):
            subprocess.run([*words.split(), str(SWAP)], check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["swapoff", SWAP], check=False)
        SWAP.unlink(missing_ok=True)


@pytest.mark.usefixtures("swap")
def test_a_throttled_sliver_does_not_grow_until_that_ends(two: Node, tmp_path: Path) -> None:
    own, throttle = group(two, "idle"), Throttle()

    def current() -> int:
        return int((own / "memory.current").read_text())

    two.inside("idle", f"rm -f cache; nohup python3 -c {shlex.quote(GROWS)} >/dev/null 2>&1 </dev/null &")
    before = current()
    with throttle.kept(tmp_path / "lock"):
        throttle.set({own: Throttled(before + 8 * MIB)})
        time.sleep(20)
        grown = current() - before
        throttle.set({})
        eventually(lambda: current() - before > GROWN * 0.9, "it grows", 60)
    assert grown < GROWN / 4, grown // MIB
    two.inside("idle", "touch enough")
    eventually(lambda: current() - before < GROWN / 2, "its program has ended", 30)


@pytest.mark.parametrize(("setting", "is_set_back"), [("", True), ("KillMode=mixed", False)], ids=["ours", "weakened"])
def test_what_was_throttled_is_not_if_the_agent_is_killed(two: Node, setting: str, is_set_back: bool) -> None:
    """And does not start again. In the control, systemd kills the program that sets the limit back, too."""
    own = group(two, "idle")

    def is_throttled() -> bool:
        return (own / "memory.high").read_text() != "max\n"

    two.inside("idle", CACHE)
    with other_unit(two, f"[Service]\nRestart=no\n{setting}\n"):
        hold_nearly_all(two)
        eventually(is_throttled, "it is throttled", 90)
        assert keepers()
        systemctl(two, "kill", "--signal=KILL", "--kill-who=main", "slicemgr-agent")
        eventually(lambda: not keepers(), "the program has ended", 30)
        assert is_throttled() is not is_set_back
    eventually(lambda: not is_throttled(), "an agent that starts sets it back", 60)


@contextmanager
def other_unit(node: Node, text: str) -> Iterator[None]:
    """The agent runs with other settings of systemd."""
    file = Path("/run/systemd/system/slicemgr-agent.service.d/test.conf")
    file.parent.mkdir(parents=True)
    try:
        file.write_text(text)
        systemctl(node, "daemon-reload")
        yield
    finally:
        file.unlink()
        file.parent.rmdir()
        systemctl(node, "daemon-reload")
        systemctl(node, "restart", "slicemgr-agent")


def hold_nearly_all(node: Node) -> None:
    """The agent starts a program that leaves so little of the host's memory that the controller throttles slivers."""
    found, [name] = meminfo(), (one["name"] for one in node.nodes())
    bytes_ = found["MemAvailable"] - int(0.055 * found["MemTotal"])
    request: MemoryRequest = {"bytes": bytes_, "before": 0, "hold": 120, "after": 0, "controller": "on", "locked": True}
    with node.client() as client:
        client.nodes.measure_memory(name, request)


def keepers() -> str:
    return subprocess.run(["pgrep", "-f", "sliver-throttle /"], capture_output=True, text=True).stdout


@pytest.mark.usefixtures("swap")
def test_memory_of_programs_is_moved_to_swap_by_the_node_alone(two: Node) -> None:
    two.ok("resize", "idle", "--memory", "192M")
    own = group(two, "idle")

    def number(name: str) -> int:
        return int((own / f"memory.{name}").read_text())

    two.inside("idle", f"rm -f cache; nohup python3 -c {shlex.quote(HOLDS)} >/dev/null 2>&1 </dev/null &")
    eventually(lambda: number("current") > HELD, "the program has its memory", 60)
    two.ssh("idle", BOMB)
    assert (number("swap.max"), number("swap.current")) == (0, 0), "it has passed its limit by swap"
    takeable = [held.takeable for swap in (False, True) if (held := memory_groups.held(own, "v2", swap=swap))]
    assert takeable[1] - takeable[0] > HELD
    taken = 0
    for _ in range(5):  # each step has a deadline
        if taken < TAKEN // 2:
            taken += memory_groups.take({"idle": Take(own, TAKEN - taken, 192 * MIB)}).get("idle", 0)
    assert TAKEN // 4 < taken < 2 * TAKEN, "the kernel may take less than it should"
    assert 0 < number("swap.current") <= number("swap.max") < 2 * TAKEN
    two.inside("idle", "touch go")
    eventually(lambda: two.inside("idle", "cat sum || true") == str(HELD // 4096), "it reads its memory again", 60)
    two.ssh("idle", BOMB)
    assert number("swap.current") <= number("swap.max") < 2 * TAKEN
