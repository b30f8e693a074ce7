"""The memory controller reads groups as often as its share of a processor allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bare_service import Service

from slicemgr.agent.chores.memory import MemoryController
from slicemgr.agent.chores.memory_trend import Trend
from slicemgr.agent.chores.sliver_groups import Group
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.drivers.kernel.memory_groups import Held, Take
from slicemgr.errors import Failed
from slicemgr.policy.memory import State, Targets
from slicemgr.store import tables as t
from slicemgr.store.memory_promises import Promise

TOTAL = 1000
COST = 0.05  # seconds of processor time of each reading


class Controller(MemoryController):
    """A controller of a node with the given available memory, whose readings take some processor time."""

    available, used = TOTAL, 0.0

    def __init__(self, service: Service) -> None:
        self.service = service
        measure = lambda: Memory(TOTAL, self.available, self.available)  # noqa: E731
        super().__init__(service.config, service.store, measure, lambda: self.used)

    def reads(self, now: float) -> bool:
        """Whether the step reads the groups."""
        return self.step(now) is not None

    def _tell(self, *args: object) -> None:
        self.used += COST


@pytest.fixture(autouse=True)
def host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes to control groups or mounts of the host."""
    monkeypatch.setattr(memory_groups, "protect", lambda wanted: None)
    monkeypatch.setattr(memory_groups, "take_first", lambda wanted: None)
    monkeypatch.setattr(memory_groups, "reach_inner_groups", lambda: False)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with Service(tmp_path) as service:
        yield Controller(service)


def test_readings_cost_one_percent(controller: Controller) -> None:
    controller.available = 80  # between the marks
    times = [now for now in range(100) if controller.reads(float(now))]
    assert len(times) * COST <= 100 * 0.01 + COST
    assert len(times) > 10, "and it uses its share"


def test_a_node_with_plenty_is_not_read(controller: Controller) -> None:
    assert not any(controller.reads(float(now)) for now in range(10))


def test_a_node_that_is_short_is_read_in_each_step(controller: Controller) -> None:
    controller.available = 50
    assert all(controller.reads(float(now)) for now in range(10))
    controller.available = 200
    assert controller.reads(10.0), "so that it is known at once that there is enough again"


def test_a_full_node_is_read_only_if_something_is_guaranteed(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is guaranteed is looked up again and again, not once for all."""
    monkeypatch.setattr(cgroup, "version", lambda: "v1")
    controller.measure = lambda: Memory(TOTAL, TOTAL, TOTAL // 100)
    controller.service.create("exp")
    assert not any(controller.reads(now / 4) for now in range(20))
    with controller.store.write() as c:
        c.execute(t.slivers.update().values(memory_guarantee=1, node=controller.config.node.name))
    assert any(controller.reads(now / 4) for now in range(20, 60))
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    assert not any(controller.reads(now / 4) for now in range(60, 80)), "there the kernel spares it"


@pytest.fixture
def spared(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """What the kernel is to spare of the group of the only sliver, `exp-0`, each time that it is written."""
    written: list[dict[str, int]] = []
    monkeypatch.setattr(counters, "running", lambda: {"exp-0": 7})
    monkeypatch.setattr(memory_groups, "group", lambda _, pid: Path(f"/{pid}"))
    monkeypatch.setattr(memory_groups, "protect", lambda wanted: written.append({str(k): v for k, v in wanted.items()}))
    return written


def test_the_kernel_spares_guarantees_until_there_are_none(
    controller: Controller, spared: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first also of none: an earlier agent may have spared it. Kernels of v1 know no guarantees."""
    monkeypatch.setattr(cgroup, "version", lambda: "v1")

    def guarantee(bytes_: int) -> None:
        with controller.store.write() as c:
            c.execute(t.slivers.update().values(id="exp-0", memory_guarantee=bytes_, node=controller.config.node.name))

    controller.service.create("exp")
    guarantee(5)
    controller.step(0.0)
    assert spared == []
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    for now in range(1, 13):
        controller.step(float(now))
    assert spared == [{"/7": 5}, {"/7": 5}], "every few seconds, since others write these values"
    guarantee(0)
    for now in range(20, 40):
        controller.step(float(now))
    assert spared[2:] == [{"/7": 0}], "once is enough, then nothing is guaranteed"
    guarantee(5)
    controller.step(50.0)
    controller.mode = "off"
    for now in range(60, 80):
        controller.step(float(now))
    assert spared[3:] == [{"/7": 5}, {"/7": 0}]


def test_a_kernel_of_v1_takes_first_what_is_beyond_guarantees(
    controller: Controller, spared: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if the controller takes memory at all. At first the usual value, which an earlier agent may have changed."""
    monkeypatch.setattr(cgroup, "version", lambda: "v1")
    softened: list[int] = []
    monkeypatch.setattr(memory_groups, "take_first", lambda wanted: softened.extend(wanted.values()))
    controller.service.create("exp")
    with controller.store.write() as c:
        values = {"id": "exp-0", "memory_guarantee": 5, "memory_soft": 9, "node": controller.config.node.name}
        c.execute(t.slivers.update().values(**values))
    for now, mode, soft in ((0.0, "observe", [9]), (10.0, "observe", []), (20.0, "on", [5]), (30.0, "off", [9])):
        softened.clear()
        controller.mode = mode
        controller.step(now)
        assert softened == soft, mode
    with controller.store.write() as c:
        c.execute(t.slivers.update().values(memory_guarantee=0, memory_soft=None))
    controller._protection._protects = True
    controller.step(40.0)
    assert softened == [9, memory_groups.UNLIMITED] and spared == []


def test_the_kernel_never_spares_more_than_the_node_has(
    controller: Controller, spared: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for the seconds until the next look: it would end programs instead. The node soon has enough again."""
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    controller.service.create("exp")
    with controller.store.write() as c:
        values = {"id": "exp-0", "memory_guarantee": 5, "node": controller.config.node.name}
        c.execute(t.slivers.update().values(**values))
    controller.step(0.0)
    controller._state = State(short=True)
    controller._protection.reduce({"exp-0": 3}, [Promise("exp-0", "lxc", 5, 100, 9)])
    controller.step(0.25)
    controller.step(0.5)
    assert spared == [{"/7": 5}, {"/7": 3}, {"/7": 5}]


def test_a_host_that_does_not_allow_a_remount_is_asked_once(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> bool:
        raise Failed("guarantees of memory do not reach inner groups: mount: permission denied")

    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    monkeypatch.setattr(memory_groups, "reach_inner_groups", refuse)
    controller.service.create("exp")
    with controller.store.write() as c:
        c.execute(t.slivers.update().values(memory_guarantee=1, node=controller.config.node.name))
    for now in range(60):
        controller.step(float(now))
    assert [one.message for one in caplog.records].count(
        "guarantees of memory do not reach inner groups: mount: permission denied"
    ) == 1


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_switched_off_it_reads_nothing(controller: Controller, mode: str) -> None:
    controller.available, controller.mode = 50, mode
    assert controller.reads(0.0) == (mode == "observe")


def test_how_fast_memory_is_used_does_not_count_what_was_taken() -> None:
    """Otherwise the node would stop taking as soon as it takes as much as is used."""
    trend, free = Trend(), iter((900, 800, 750, 900, 600))
    found = []
    for now, freed in ((0.0, 0), (1.0, 0), (1.5, 50), (2.0, 200), (9.0, 0)):
        trend.freed += freed
        found.append(trend.add(Memory(TOTAL, TOTAL, next(free)), now)[0])
    assert found == [0.0, 100.0, 200.0, 100.0, 0.0], "the first and one after a long time tell nothing"


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_node_with_little_free_memory_is_read_at_times_if_it_may_take_some(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(cgroup, "version", lambda: version)
    controller.measure = lambda: Memory(TOTAL, TOTAL, controller.available)
    controller.available = 90
    assert not any(controller.reads(now / 4) for now in range(40)), "it only observes"
    controller.mode = "on"
    assert [now for now in range(40, 80) if controller.reads(now / 4)] == [40, 60]
    controller.available = 130
    assert [now for now in range(80, 120) if controller.reads(now / 4)] == [80, 100], "to the higher mark"
    controller.available = 150
    assert not any(controller.reads(now / 4) for now in range(120, 160))
    controller.available = 130
    assert not any(controller.reads(now / 4) for now in range(160, 200))


@pytest.mark.parametrize(("type_", "found", "idle"), [("lxc", 30, 30), ("lxc", 99, 80), ("kvm", 30, 0)])
def test_what_scans_find_is_idle_as_far_as_it_can_be_taken(
    controller: Controller, type_: str, found: int, idle: int
) -> None:
    group = Group(Promise("exp-0", type_, 5, 100, 9), 7, Path("/7"), Held(100, 50, 0, 80))
    assert type_ == "kvm" or controller._holding(group, 0.0, 0.25).idle == 50, "by the lists without scans"
    controller.idle = lambda directory, held: found
    assert controller._holding(group, 0.0, 0.25).idle == idle


@pytest.mark.parametrize(("before", "now", "waited"), [(1_000_000, 1_250_000, 0.25), (None, 9, 0.0), (9, 7, 0.0)])
def test_how_long_a_sliver_waited_is_counted_since_the_last_step(
    controller: Controller, before: int | None, now: int, waited: float
) -> None:
    """A kernel that has just begun to count it, and one that counts again from 0, tell nothing of the time between."""
    last, group = (
        Group(Promise("exp-0", "lxc", 5, 100, 9), 7, Path("/7"), Held(100, 50, 0, 80, waited=one), at)
        for one, at in ((before, 1.0), (now, 1.25))
    )
    controller._before = {"exp-0": last}
    assert controller._holding(group, 0.0, 0.25).waited == waited


def test_what_was_counted_for_longer_than_a_step_counts_for_a_step(controller: Controller) -> None:
    groups = [
        Group(Promise("exp-0", "lxc", 5, 100, 9), 7, Path("/7"), Held(100, 50, reread, 80, waited=waited), at)
        for reread, waited, at in ((0, 0, 0.0), (80, 2_000_000, 2.0))
    ]
    controller._before = {"exp-0": groups[0]}
    found = controller._holding(groups[1], 2.0, 0.25)
    assert (found.reread, found.waited) == (10, 0.25)
    controller._before = {"exp-0": groups[1]}
    found = controller._holding(groups[1], 2.25, 0.25)
    assert (found.reread, found.waited) == (0, 0.0), "it was not read again"


def test_what_the_node_needs_is_taken_before_what_a_throttled_sliver_exchanges(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[list[str], list[str]]]()

    def take(wanted: dict[str, Take], later: dict[str, Take]) -> dict[str, int]:
        asked.append(([*wanted], [*later]))
        return {"exp-0": 5, "exp-1": 7}

    monkeypatch.setattr(memory_groups, "limit", lambda group: 90)
    monkeypatch.setattr(memory_groups, "take", take)
    groups = {
        name: Group(Promise(name, "lxc", 0, 100, 90), 7, Path("/7"), Held(80, 0, 0, 80)) for name in ("exp-0", "exp-1")
    }
    controller.mode = "on"
    guarantees = dict.fromkeys(groups, 0)
    taken = controller._take(groups, Targets({"exp-0": 5}, guarantees, exchange={"exp-1": 7}), 0.0)
    assert asked == [(["exp-0"], ["exp-1"])]
    assert taken == {"exp-0": 5}, "what is exchanged is not given to the node"


@pytest.mark.parametrize(("read", "bytes_"), [(0.0, [10]), (3.0, [30])])
def test_what_a_sliver_has_freed_since_it_was_read_is_not_taken_of_its_guarantee(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, read: float, bytes_: list[int]
) -> None:
    """The control was read in this step, and has had no time to free any."""
    asked = list[int]()

    def take(wanted: dict[str, Take], later: dict[str, Take]) -> dict[str, int]:
        asked.extend(one.bytes for one in wanted.values())
        return {}

    monkeypatch.setattr(memory_groups, "limit", lambda group: 90)
    monkeypatch.setattr(memory_groups, "usage", lambda group: 60)
    monkeypatch.setattr(memory_groups, "take", take)
    controller.mode = "on"
    group = Group(Promise("exp-0", "lxc", 50, 100, 90), 7, Path("/7"), Held(80, 0, 0, 80), read)
    controller._take({"exp-0": group}, Targets({"exp-0": 30}, {"exp-0": 50}), 3.0)
    assert asked == bytes_
    monkeypatch.setattr(memory_groups, "usage", lambda group: 50)
    asked.clear()
    controller._take({"exp-0": replace(group, at=0.0)}, Targets({"exp-0": 30}, {"exp-0": 50}), 3.0)
    assert asked == []


@pytest.mark.parametrize("mode", ["observe", "on"])
def test_what_would_have_been_taken_is_reported_once(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A stand-in for `on` that takes nothing reports it in each step. After a shortage it is reported again."""
    monkeypatch.setattr(memory_groups, "limit", lambda group: 900)
    monkeypatch.setattr(memory_groups, "usage", lambda group: 500)
    monkeypatch.setattr(memory_groups, "take", lambda wanted, later: {name: one.bytes for name, one in wanted.items()})
    group = Group(Promise("exp-0", "lxc", 100, 100, 900), 7, Path("/7"), Held(500, 400, 0, 400))
    controller.mode = mode
    monkeypatch.setattr(controller, "_read", lambda now, *, swap, quick=False: {"exp-0": group})

    def taken(available: int, first: int) -> int:
        before, controller.available = controller.total, available
        for now in range(first, first + 8):
            controller._rest = 0.0
            controller.step(float(now))
        return controller.total - before

    found = [taken(40, 0), taken(300, 20), taken(40, 40)]
    assert found == [60, 0, 60] if mode == "observe" else found[0] > 100 and found[1] == 0 and found[2] > 100


def test_no_more_would_have_been_taken_than_a_sliver_holds(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller._would.update({"exp-0": 30, "exp-1": 5})
    group = Group(Promise("exp-0", "lxc", 5, 100, 90), 7, Path("/7"), Held(80, 50, 0, 60))
    found = controller._holding(group, 0.0, 0.25)
    assert (found.charged, found.idle, found.takeable) == (50, 20, 30)
    less = replace(group, held=Held(20, 10, 0, 20))
    monkeypatch.setattr(controller, "_read", lambda now, *, swap, quick=False: {"exp-0": less})
    controller.mode, controller.available = "observe", 40
    controller.step(0.0)
    assert controller._would == {"exp-0": 20}, "the other one has ended"
