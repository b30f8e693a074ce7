"""The node takes memory from slivers beyond their guarantees, and never leaves a limit behind."""

from __future__ import annotations

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from testbed import Node, eventually

from slicemgr.bench.frame import folder
from slicemgr.bench.report import memory_repetitions as repetitions
from slicemgr.client.nodes import MemoryRequest
from slicemgr.drivers.kernel.memory_groups import RECLAIM

MIB = 1 << 20
CEILING = 512 * MIB
CACHE = "dd if=/dev/zero of=/root/cache bs=1M count=200 status=none && sync && cat /root/cache > /dev/null"
# One step of the controller in the node's namespaces, as if the node had these parts of its memory available and free.
# The agent's own controller sees the true ones, which are plenty, and does nothing.
STEP = """
import dataclasses, json, sys
from collections.abc import Iterator
from pathlib import Path
import slicemgr.config, slicemgr.store
from slicemgr.agent.chores.memory import MemoryController
from slicemgr.drivers.kernel import counters
from slicemgr.drivers.kernel.counters import Memory
mode, available, free = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
config = slicemgr.config.load(Path("/etc/slicemgr/slicemgr.toml"))
config = dataclasses.replace(config, memory=slicemgr.config.MemoryConfig(mode))
with slicemgr.store.open(config) as store:
    total = counters.memory().total
    controller = MemoryController(config, store, lambda: Memory(total, int(available * total), int(free * total)))
    targets = controller.step(0.0)
    controller.measure = lambda: Memory(total, total, total)
    controller.step(1.0)
    taken = {name: amount for name, (_, amount) in controller.reclaimed.items()}
    print(json.dumps([dict(targets.take), dict(targets.guarantees), targets.needed, taken]))
"""


Bytes = dict[str, int]


def step(node: Node, mode: str, available: float, free: float = 1.0) -> tuple[Bytes, Bytes, int, Bytes]:
    """What was to be taken of each sliver, what is guaranteed, what the node lacks, and what was taken."""
    words = [sys.executable, "-c", STEP, mode, str(available), str(free)]
    take, guarantees, needed, taken = json.loads(node.box.run(words, check=True).stdout)
    return take, guarantees, needed, taken


def group(node: Node, name: str) -> Path:
    sliver = node.show(name)["slivers"][0]["id"]
    (found,) = Path(node.box.path("/sys/fs/cgroup/memory")).glob(f"machine/lxc-*sm-{sliver}.libvirt-lxc")
    return found


def value(group: Path, file: str) -> int:
    return int((group / file).read_text())


def taken_events(node: Node) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(node.ok("event", "list", "-f", "json"))
    return [one for one in events if one["action"] == "memory taken"]


@pytest.fixture
def two(node: Node) -> tuple[Path, Path]:
    """The groups of a sliver with a guarantee and of one without, which hold 200 MiB of page cache each."""
    for name, more in (("kept", ("--memory-guarantee", "450M")), ("idle", ())):
        node.create(name, "--memory", "512M", *more)
        node.inside(name, CACHE, timeout=120)
    return group(node, "kept"), group(node, "idle")


def test_what_is_idle_is_taken_and_what_is_guaranteed_stays(node: Node, two: tuple[Path, Path]) -> None:
    ids = {name: node.show(name)["slivers"][0]["id"] for name in ("kept", "idle")}
    before = [value(one, "memory.usage_in_bytes") for one in two]
    take, guarantees, needed, taken = step(node, "observe", 0.05)
    assert taken == {}
    assert set(take) == {ids["idle"]} and 0 < take[ids["idle"]] <= needed
    assert guarantees == {ids["kept"]: 450 * MIB, ids["idle"]: 0}
    assert value(two[1], "memory.usage_in_bytes") > before[1] - 10 * MIB, "it only observes"
    assert min(value(one, "memory.soft_limit_in_bytes") for one in two) > 1 << 60
    take, _, _, taken = step(node, "on", 0.05)
    assert taken.keys() == take.keys() and taken[ids["idle"]] > take[ids["idle"]] // 2
    left = [value(one, "memory.usage_in_bytes") for one in two]
    assert before[1] - left[1] > take[ids["idle"]] // 2
    assert left[0] > before[0] - 10 * MIB
    assert [value(one, "memory.limit_in_bytes") for one in two] == [CEILING, CEILING]
    assert [value(one, "memory.soft_limit_in_bytes") for one in two] == [450 * MIB, 0], "the kernel takes it first"
    events = json.loads(node.ok("event", "list", "-f", "json"))
    said = [one["detail"] for one in events if one["action"] == "memory short"]
    assert any("would take" in one for one in said) and any("ended; the node took" in one for one in said), said
    [event] = [one for one in events if one["action"] == "memory taken"]
    assert (event["slice"], event["detail"].endswith(" of sliver 0")) == ("idle", True), event


def test_with_time_a_little_of_what_is_idle_is_taken(node: Node, two: tuple[Path, Path]) -> None:
    """The users learn nothing of it. In the control, the controller only observes."""
    idle, events = node.show("idle")["slivers"][0]["id"], taken_events(node)
    before = [value(one, "memory.usage_in_bytes") for one in two]
    assert step(node, "observe", 0.085, 0.08)[0] == {}
    take, _, _, taken = step(node, "on", 0.085, 0.08)
    assert set(take) == {idle} and take[idle] < before[1] // 20
    assert taken[idle] > take[idle] // 2
    left = [value(one, "memory.usage_in_bytes") for one in two]
    assert before[1] - left[1] > take[idle] // 2
    assert left[0] > before[0] - 10 * MIB
    assert [value(one, "memory.limit_in_bytes") for one in two] == [CEILING, CEILING]
    assert taken_events(node) == events


def test_a_killed_agent_leaves_no_lower_limit(node: Node, two: tuple[Path, Path]) -> None:
    """The program that takes survives its caller, at whatever moment that is killed."""
    idle, dice = two[1], random.Random(1)
    script = "import subprocess, sys; subprocess.run(sys.argv[1], input=sys.argv[2].encode(), start_new_session=True)"
    for _ in range(20):
        node.inside("idle", "cat /root/cache > /dev/null")
        line = f"{idle} {100 * MIB} {CEILING}\n"
        caller = subprocess.Popen([sys.executable, "-c", script, str(RECLAIM), line], stdout=subprocess.DEVNULL)
        time.sleep(0.02 + dice.random() * 0.05)
        caller.send_signal(signal.SIGKILL)
        caller.wait()
        eventually(lambda: value(idle, "memory.limit_in_bytes") == CEILING, "the limit is set again", 10)
    node.inside("idle", "python3 -c 'x = bytearray(400 << 20)'")
    assert node.show("idle")["slivers"][0].get("oom_kills") in (0, None)


def test_a_limit_that_was_left_lower_is_set_again_when_the_agent_starts(node: Node, two: tuple[Path, Path]) -> None:
    """As by a kill of the program itself between its two writes."""
    (two[1] / "memory.limit_in_bytes").write_text(str(300 * MIB))
    node.kill("agent")
    node.start_agent()
    eventually(lambda: value(two[1], "memory.limit_in_bytes") == CEILING, "the limit is set again", 30)
    node.inside("idle", "python3 -c 'x = bytearray(400 << 20)'")


def test_what_cannot_be_taken_leaves_the_limit(node: Node, two: tuple[Path, Path]) -> None:
    """Without swap, anonymous memory stays; the control takes from page cache."""

    def told(bytes_: int) -> list[Any]:
        line = f"{two[1]} {bytes_} {CEILING}\n"
        done = subprocess.run([str(RECLAIM)], input=line, capture_output=True, text=True, check=True)
        return [int(done.stdout) > bytes_ // 2, value(two[1], "memory.limit_in_bytes")]

    assert told(50 * MIB) == [True, CEILING]
    node.inside(
        "idle", "rm /root/cache; nohup python3 -c 'x = bytearray(300 << 20); import time; time.sleep(99)' >&- 2>&- &"
    )
    eventually(lambda: value(two[1], "memory.usage_in_bytes") > 300 * MIB, "the memory is used", 20)
    assert told(200 * MIB) == [False, CEILING]
    assert node.inside("idle", "pgrep -c python3") == "1\n"


def test_a_measurement_does_not_begin_again_with_the_next_agent(node: Node) -> None:
    """Which would be short of memory, too."""
    [name] = (one["name"] for one in node.nodes())
    with node.client() as client:
        operation = client.nodes.measure_memory(name, {"bytes": MIB, "hold": 300})["id"]
        eventually(lambda: client.operations.get(operation)["state"] == "running", "it has begun", 30)
        node.kill("agent")
        node.start_agent()
        ended = client.operations.wait(operation, 60)
    assert (ended["state"], ended["error"]) == ("failed", "the agent ended during the measurement")


@pytest.mark.parametrize("line", ["x", "/sys/fs/cgroup/memory 1", "/sys/fs/cgroup/memory -1 5\n", "/tmp 1 2 3\n"])
def test_a_line_that_is_none_is_refused(line: str) -> None:
    done = subprocess.run([str(RECLAIM)], input=line, capture_output=True, text=True)
    assert done.returncode == 1 and "is not `DIRECTORY BYTES LIMIT`" in done.stderr


@pytest.fixture
def small_node(node: Node) -> Iterator[Node]:
    """A node with 2 GiB of memory: the group of its box has that limit."""
    limit = Path(node.box.path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    before = limit.read_text()
    limit.write_text(str(2 << 30))
    try:
        eventually(lambda: memory_of(node) == 2 << 30, "the agent reports the limit", 90)
        yield node
    finally:
        limit.write_text(before)
        eventually(lambda: memory_of(node) > 2 << 30, "the agent reports the memory of the machine again", 90)


def memory_of(node: Node) -> int:
    return int(json.loads(node.ok("node", "show", "-f", "json"))["facts"]["memory"])


# No faster than the controller can take it: a node with cgroup v1 whose own memory is not short, as a box, spares none.
READS = """
import os, random, time
file = os.open("/root/holes", os.O_RDONLY)
for _ in range(4000):
    os.pread(file, 1 << 20, random.randrange(700) << 20)
    time.sleep(1 / 256)
"""


@pytest.mark.long
def test_the_files_of_a_sliver_within_its_guarantee_stay_in_memory(small_node: Node) -> None:
    """What else runs changes speeds, so this compares what the sliver holds. The control is the kernel alone."""
    size, least = 480 * MIB, dict[str, int]()
    for mode in ("off", "on"):
        small_node.create("kept", "--memory", "1G", "--memory-guarantee", "600M")
        small_node.create("hog", "--memory", "2G")
        small_node.inside(
            "kept", f"head -c {size} /dev/zero > /root/file && sync && cat /root/file /root/file >/dev/null"
        )
        kept = group(small_node, "kept")
        assert cache(kept) >= size
        with under_pressure(small_node, mode):
            small_node.inside("hog", f"truncate -s 700M /root/holes && python3 -c {shlex.quote(READS)}")
            least[mode] = cache(kept)
        small_node.ok("delete", "kept", "hog")
    assert least["on"] > 0.95 * size, least
    assert least["off"] < 0.8 * size, least


@contextmanager
def under_pressure(node: Node, mode: str) -> Iterator[None]:
    """A program of the node has 40% of its memory. mode: of the controller."""
    [name] = (one["name"] for one in node.nodes())
    held: MemoryRequest = {"bytes": (2 << 30) * 4 // 10, "before": 0, "hold": 80, "after": 0, "controller": mode}
    with node.client() as client:
        operation = client.nodes.measure_memory(name, held)
        time.sleep(held["hold"] / 4 + 2)  # it grows in the first quarter
        try:
            yield
            assert client.operations.get(operation["id"])["state"] == "running", "the pressure had ended"
        finally:
            ended = client.operations.wait(operation["id"], 120)
        assert ended["result"] is not None and not ended["result"]["measured"]["killed"], ended


def cache(group: Path) -> int:
    """Bytes of page cache of a group and those inside of it."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(stat["total_cache"])


@pytest.mark.long
def test_the_experiment_has_the_kernel_alone_and_the_controller(small_node: Node, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--configuration", "kernel", "--configuration", "controller", "--repeat", "1", "--seconds", "10")
    small_node.ok("bench", "memory", *words, "--output", str(run), timeout=600)
    measured = {one.configuration: one for one in repetitions.measured(folder.read(run))}
    assert all(one.kept(name) > 0 for one in measured.values() for name in repetitions.PROMISED)
    assert measured["kernel"].taken == 0 < measured["controller"].taken
