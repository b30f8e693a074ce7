"""The chore that takes memory from machines, with guests that follow at once. libvirt's part is in test_balloons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bare_service import Service
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.agent import observe
from slicemgr.agent.chores.guest_memory import GuestMemory
from slicemgr.agent.chores.memory import MemoryController
from slicemgr.agent.chores.memory import holding_of_machine as holding
from slicemgr.config import MemoryConfig
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.drivers.kernel.memory_groups import Held
from slicemgr.drivers.libvirt.balloons import Balloons, GuestReport, parse
from slicemgr.errors import Failed
from slicemgr.model import MIB
from slicemgr.policy import memory
from slicemgr.policy.memory import Holding, Node, State
from slicemgr.store import tables as t
from slicemgr.store.memory_promises import Promise

FULL, SLIVER, PID = 512 * MIB, "exp-0", 7
TOTAL = 4096 * MIB


def statistics(current: int, *, usable: int = 0, unused: int = 0, updated: int = 1000) -> dict[str, int]:
    """Statistics as libvirt has them. In MiB."""
    sizes = {"current": current, "usable": usable, "unused": unused, "swap_in": 2}
    kib = {f"balloon.{name}": size << 10 for name, size in sizes.items()}
    return kib | {"balloon.major_fault": 3, "balloon.last-update": updated}


@dataclass
class Fake:
    """What the chore uses of Balloons. A guest follows at once; its cache is what is taken first."""

    current: int = FULL
    usable: int = 300 * MIB
    calls: list[object] = field(default_factory=list)
    asked: int = 0  # how often statistics were read
    resized: bool = False
    hangs: bool = False
    now: float = 0.0

    def reports(self) -> dict[str, GuestReport]:
        self.asked += 1
        stats = statistics(self.current >> 20, usable=self.usable >> 20, updated=int(self.now) - 1)
        return {SLIVER: parse(stats)}

    def ask_every(self, sliver: str, seconds: int) -> None:
        self.calls.append(seconds)

    def set(self, sliver: str, pid: int, memory: int, full: int) -> bool:
        if self.hangs:
            raise Failed("its QEMU does not answer")
        if self.resized:
            return False
        self.calls.append((memory, full))
        self.usable, self.current = self.usable + memory - self.current, memory
        return True

    def forget(self, sliver: str) -> None:
        self.calls.append("forget")

    @property
    def charged(self) -> int:
        return self.current + 50 * MIB


class Setting:
    """A controller with one machine. mode: as `memory.controller`."""

    def __init__(self, service: Service, mode: str = "on") -> None:
        self.fake, self.available, self.now = Fake(), TOTAL, 0.0
        self.guests = GuestMemory(service.config, service.store, self.fake, clock=lambda: self.now)  # type: ignore[arg-type]
        self.controller = MemoryController(
            service.config,
            service.store,
            lambda: Memory(TOTAL, self.available, self.available),
            mode=mode,
            guests=self.guests,
        )

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for _ in range(4):
                self.controller.step(self.now)
                self.now += 0.25
            self.fake.now = self.now
            self.guests.step(self.now)


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    monkeypatch.setattr(memory_groups, "protect", lambda wanted: None)
    monkeypatch.setattr(memory_groups, "reach_inner_groups", lambda: False)
    monkeypatch.setattr(memory_groups, "group", lambda _, pid: Path(f"/{pid}"))
    monkeypatch.setattr(memory_groups, "limit", lambda group: FULL)
    monkeypatch.setattr(counters, "running", lambda: {SLIVER: PID})
    monkeypatch.setattr(observe, "applied_memory", lambda config, sliver, pid: FULL)
    with Service(tmp_path, memory=MemoryConfig("on")) as service:
        service.create("exp")
        with service.store.write() as c:
            c.execute(t.slices.update().values(type="kvm"))
            c.execute(t.slivers.update().values(id=SLIVER, memory=FULL, node=service.config.node.name))
        made = Setting(service)
        monkeypatch.setattr(memory_groups, "held", lambda *_, **__: Held(made.fake.charged, 0, 0, made.fake.charged))
        yield made


@given(st.integers(0, 4096), st.integers(0, 4096), st.integers(0, 4096), st.sampled_from([0.001, 0.02, 0.05]))
def test_of_a_machine_no_more_is_wanted_than_its_guest_could_give(
    charged: int, idle: int, guarantee: int, available: float
) -> None:
    """Not even if nearly nothing is available, when containers lose what is in use."""
    machine = holding(Promise(SLIVER, "kvm", guarantee * MIB, 100, FULL), charged * MIB, idle * MIB)
    others = [Holding("exp-1", 0, 100, 900 * MIB, 0), Holding("exp-2", 500 * MIB, 100, 900 * MIB, 900 * MIB)]
    node = Node(TOTAL, int(TOTAL * available), int(TOTAL * available))
    _, targets = memory.step(State(short=True), node, [machine, *others], 0.0, 1.0)
    assert targets.take.get(SLIVER, 0) <= max(0, min(idle, charged - guarantee) * MIB)


def test_a_calm_node_does_not_ask_libvirt(setting: Setting) -> None:
    setting.run(30)
    assert setting.fake.asked <= 1, "at the start alone, because an earlier agent may have left balloons lower"
    assert setting.fake.calls == [10]


def test_a_short_node_takes_from_a_machine_and_gives_back_when_it_is_calm(setting: Setting) -> None:
    setting.run(2)
    setting.available = TOTAL // 20
    setting.run(30)
    assert setting.fake.current < FULL - 50 * MIB
    assert setting.fake.usable >= FULL // 4
    [(sliver, (pid, taken))] = setting.controller.reclaimed.items()
    assert (sliver, pid) == (SLIVER, PID) and abs(taken - (FULL - setting.fake.current)) < MIB
    setting.available = TOTAL // 8
    setting.run(10)
    assert setting.fake.current < FULL - 50 * MIB, "there is enough, but not much"
    setting.available = TOTAL
    setting.run(3)
    assert setting.fake.current == FULL and setting.fake.calls[-1] == 10
    asked = setting.fake.asked
    setting.run(30)
    assert setting.fake.asked == asked


def test_while_enough_is_available_a_machine_keeps_all(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers lose memory then so that some is free, but a guest could not have it back at once."""
    setting.controller.measure = lambda: Memory(TOTAL, TOTAL // 8, TOTAL // 12)
    setting.run(30)
    assert setting.controller._state.slow and setting.fake.current == FULL
    monkeypatch.setattr(cgroup, "version", lambda: "v1")
    with setting.controller.store.write() as c:
        c.execute(t.slivers.update().values(memory_guarantee=1))
    setting.controller.measure = lambda: Memory(TOTAL, TOTAL // 8, TOTAL // 100)
    setting.run(30)
    assert setting.controller._state.full and setting.fake.current == FULL
    assert setting.controller.total == 0, "and the machine does not count among those that could give some"


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_where_nothing_is_to_be_taken_the_machine_keeps_all(setting: Setting, mode: str) -> None:
    setting.controller.mode, setting.available = mode, TOTAL // 20
    setting.run(20)
    assert setting.fake.current == FULL
    assert (setting.controller.total > 0) == (mode == "observe"), "what it would take"


def test_a_controller_that_is_switched_off_gives_back(setting: Setting) -> None:
    setting.available = TOTAL // 20
    setting.run(20)
    assert setting.fake.current < FULL
    setting.controller.mode = "observe"
    setting.run(3)
    assert setting.fake.current == FULL


def test_a_machine_whose_size_changes_is_left_alone(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    setting.available = TOTAL // 20
    setting.run(10)
    left = setting.fake.current
    monkeypatch.setattr(observe, "applied_memory", lambda config, sliver, pid: FULL // 2)
    setting.run(10)
    setting.available = TOTAL
    setting.run(10)
    assert setting.fake.current == left
    monkeypatch.setattr(observe, "applied_memory", lambda config, sliver, pid: FULL)
    setting.run(2)
    assert (FULL, FULL) in setting.fake.calls


def test_another_machine_in_its_place_begins_with_all(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was noted of the other is forgotten: a resize may have come between."""
    setting.available = TOTAL // 20
    setting.run(10)
    setting.fake.current = FULL
    monkeypatch.setattr(counters, "running", lambda: {SLIVER: PID + 1})
    setting.run(1)
    assert "forget" in setting.fake.calls
    setting.fake.calls.clear()
    monkeypatch.setattr(counters, "running", dict)
    setting.run(1)
    assert "forget" in setting.fake.calls


def test_a_balloon_that_an_earlier_agent_left_lower_is_set_again(setting: Setting) -> None:
    setting.fake.current, setting.controller.mode = FULL // 2, "off"
    setting.fake.resized = True
    setting.run(2)
    assert setting.fake.current == FULL // 2
    setting.fake.resized = False
    setting.run(2)
    assert setting.fake.current == FULL


def test_a_hung_qemu_is_asked_again_later(setting: Setting) -> None:
    setting.fake.current, setting.fake.hangs = FULL // 2, True
    setting.run(10)
    setting.fake.hangs = False
    setting.run(20)
    assert setting.fake.current == FULL // 2
    setting.run(15)
    assert setting.fake.current == FULL


def test_the_stand_in_has_what_the_chore_uses() -> None:
    names = [name for name in vars(Fake) if callable(vars(Fake)[name]) and not name.startswith("_")]
    assert all(hasattr(Balloons, name) for name in names)
