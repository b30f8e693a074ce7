"""Take memory from slivers beyond their guarantees when the node runs short; see policy/memory.py.

With `memory.controller = "observe"`, it only reports what it would take. Nothing that it does outlasts it: v2 takes
memory without a limit, and a program ends what is throttled; on v1 a lowered limit is set again in the same step; and
all is set again when the agent starts. From virtual machines, memory is taken by their balloons (`guest_memory`). On v2
the kernel spares what is guaranteed (`memory.min`), so no memory need be kept free.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from slicemgr.agent.chores.guest_memory import GuestMemory
from slicemgr.agent.chores.memory_protection import Protection
from slicemgr.agent.chores.memory_trend import Trend
from slicemgr.agent.chores.runner import Chore, First
from slicemgr.agent.chores.sliver_groups import Group, SliverGroups, usual
from slicemgr.agent.chores.takings import Takings
from slicemgr.config import Config
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.drivers.kernel.memory_groups import Held, Take
from slicemgr.drivers.kernel.throttle import Throttle, Throttled
from slicemgr.model import SliverType
from slicemgr.policy import memory
from slicemgr.policy.memory import Holding, Node, State, Targets
from slicemgr.store import Store, observations, outbox
from slicemgr.store.memory_promises import Promise

log = logging.getLogger(__name__)

_INTERVAL = 0.25  # seconds
_WATCH = 2.0  # groups are read while less than this multiple of the higher mark is available
_LOOK = 5.0  # seconds between two looks whether anything is guaranteed
_NEARLY = 0.8  # the part of the most that it may have from which a sliver is throttled
_NEAR = 2 << 20  # bytes by which a sliver that cannot grow may have less than the most
_COST = 0.01  # of a processor, on average, for reading groups while the node is not in a hurry


@dataclass(slots=True)
class MemoryController:
    """Four steps a second. measure: the memory of the node. mode: as `memory.controller`; a measurement changes it.

    idle: the idle bytes of a group. guests: the memory of virtual machines; None: nothing is taken of them. throttle:
    of containers (v2). spent: seconds of processor time of this thread. Many groups are read less often, so that it
    costs no more than 1 % of a processor, except while the node is below the lower mark.
    """

    config: Config
    store: Store
    measure: Callable[[], Memory] = counters.memory
    spent: Callable[[], float] = time.thread_time
    mode: str = ""
    idle: Callable[[Path, Held], int] = lambda _, held: held.idle
    guests: GuestMemory | None = None
    throttle: Throttle = field(default_factory=Throttle)
    _groups: SliverGroups = field(init=False)
    _protection: Protection = field(init=False)
    _trend: Trend = field(default_factory=Trend)
    _state: State = field(default_factory=State)
    _last: float | None = None
    reclaimed: dict[str, tuple[int, int]] = field(default_factory=dict)  # sliver → its main process, bytes taken of it
    _before: Mapping[str, Group] = field(default_factory=dict)  # at the last step
    _takings: Takings = field(default_factory=Takings)
    _throttled: Set[str] = frozenset()  # since the last step
    _settled: bool = False  # whether limits that an earlier agent left lower have been set again
    _rest: float = -math.inf  # no groups are read before, unless the node is in a hurry
    total: int = 0  # bytes that were taken of all slivers, or with `observe` would have been
    cost: float = 0.0  # seconds of processor time of all readings
    taking: float = 0.0  # the same of taking: with v2 the kernel itself works in this thread
    _promised: bool = False  # whether anything is guaranteed
    _asked_at: float = -math.inf  # when that was last looked up
    _would: Counter[str] = field(default_factory=Counter)  # bytes that `observe` would have taken in this shortage

    def __post_init__(self) -> None:
        self.mode = self.mode or self.config.memory.controller
        self._groups = SliverGroups(self.config, self.store)
        self._protection = Protection(self._groups)
        self._takings.node = "" if self.config.joined else f"{self.config.node.name}: "

    def chores(self) -> list[Chore]:
        chore = Chore(
            thread="memory",
            run=lambda: self.step(time.monotonic()),
            interval=_INTERVAL,
            failure="cannot watch the memory of slivers",
            first=First.AT_ONCE,
            longest=60.0,
            grace=5.0,
        )
        return [chore] if self.guests is None else [chore, self.guests.chore()]

    def directories(self) -> list[Path]:
        """The groups of the slivers that run here; none on hold."""
        return [one.directory for one in (self._groups.members() or {}).values()]

    def step(self, now: float) -> Targets | None:
        """One step; None while no groups are read, or on hold. now: of a monotonic clock. Raises OSError."""
        self._protection.keep(self.mode, now)
        if self.mode == "off":
            self._state, self._last = State(), None
            self.throttle.set({})
            self._watch_guests(near=False)
            return None
        begun, measured = self.spent(), self.measure()
        node = self._node(measured, now)
        self._watch_guests(near=self._state.short or node.soon_available <= _WATCH * memory.HIGH * node.total)
        groups = self._due(node, now, swap=measured.swap > 0)
        return None if groups is None else self._act(node, groups, now, begun)

    def _due(self, node: Node, now: float, *, swap: bool) -> dict[str, Group] | None:
        """What slivers hold, if that is to be read now; None also on hold."""
        groups = None
        if not self._settled and (groups := self._read(now, swap=swap)) is not None:
            self._settle(groups)
            self._settled = True
        if self._is_calm(node, now):
            self._last = None
            if not node.has_little_unused(before=self._state.slow):
                self._state = replace(self._state, slow=False)
                return None
            if now < self._state.again:
                return None
        ends = self._state.short and node.available >= memory.HIGH * node.total
        hurries = ends or node.soon_available < memory.LOW * node.total
        if now < self._rest and not hurries:
            return None
        groups = groups or self._read(now, swap=swap, quick=hurries)
        if groups is None:
            self.throttle.set({})
        return groups

    def _act(self, node: Node, groups: dict[str, Group], now: float, begun: float) -> Targets:
        """Take memory as the policy decides. begun: the processor time of this thread when the step began."""
        left = {name: min(n, groups[name].held.charged) for name, n in self._would.items() if name in groups}
        self._would = Counter(left)
        elapsed = _INTERVAL if self._last is None else now - self._last
        holdings = [self._holding(one, now, elapsed) for one in groups.values()]
        before, self._last = self._state, now
        self._state, targets = memory.step(before, node, holdings, now, elapsed)
        promises = [one.promise for one in groups.values()]
        self._protection.reduce(targets.guarantees if self._state.short else {}, promises)
        self._before = groups
        decided = self.spent()
        # What is taken must not come back meanwhile.
        self._throttle(groups, targets, {one.id: one.waited for one in holdings})
        taken = self._take(groups, targets, now)
        taking = self.spent() - decided
        self._tell(before, targets, taken, node.available, promises, now)
        self.total += sum(taken.values())
        self._trend.freed += sum(taken.values()) if self.mode == "on" else 0
        self.taking += taking
        self.cost += (used := self.spent() - begun - taking)
        self._rest = now + used / _COST
        return targets

    def _node(self, measured: Memory, now: float) -> Node:
        """The node for the policy."""
        falling, sinking = self._trend.add(measured, now)
        spares, slow = cgroup.version() == "v2", self.mode == "on"
        more = self._would_have(measured)
        known = (measured.total, measured.available + more, measured.free + more, falling)
        return Node(*known, spares=spares, slow=slow, sinking=sinking)

    def _would_have(self, measured: Memory) -> int:
        """The bytes that the node would have beside what it has, so that `observe` does not report them in each step.

        It is not known what slivers would have wanted back.
        """
        is_short = (
            measured.available < memory.HIGH * measured.total or measured.free < memory.FREE_HIGH * measured.total
        )
        if self.mode != "observe" or not is_short:
            self._would.clear()
        return self._would.total()

    def _is_calm(self, node: Node, now: float) -> bool:
        """Whether no groups need be read. While little is free, what is guaranteed is looked up at times."""
        watched = node.available_in(memory.THROTTLED_AHEAD) <= _WATCH * memory.HIGH * node.total
        if self._state.takes or self._state.most or watched:
            return False
        if node.soon_free > _WATCH * memory.FREE_HIGH * node.total:
            return True
        if now - self._asked_at > _LOOK:
            self._asked_at = now
            self._promised = self._groups.any_guaranteed()
        return not self._promised

    def _read(self, now: float, *, swap: bool, quick: bool = False) -> dict[str, Group] | None:
        """What slivers hold, by their ids; None on hold. quick: see SliverGroups."""
        found = self._groups.read(now, swap=swap, quick=quick, always=self._state.taken.keys() | self._throttled)
        if found is not None:
            for gone in self.reclaimed.keys() - found.keys():
                del self.reclaimed[gone]
        return found

    def _watch_guests(self, *, near: bool) -> None:
        if self.guests is not None:
            self.guests.near, self.guests.takes = near, self.mode == "on"

    def _holding(self, one: Group, now: float, elapsed: float) -> Holding:
        """elapsed: since the last step. What a group counted for longer, since it was not read then, counts less."""
        promise, held, last = one.promise, one.held, self._before.get(one.promise.id, one)
        reread, waited, would = 0, 0.0, self._would.get(promise.id, 0)
        if one.at > last.at:
            before, part = last.held, min(1.0, elapsed / (one.at - last.at))
            reread = int(part * max(0, held.reread - before.reread))
            if held.waited is not None and before.waited is not None:
                waited = part * max(0, held.waited - before.waited) / 1e6
        charged, takeable = max(0, held.charged - would), max(0, held.takeable - would)
        if promise.type == SliverType.KVM:
            idle = self.guests.idle(promise.id, now) if self.guests is not None and self._state.short else 0
            return holding_of_machine(promise, charged, max(0, idle - would))
        idle = min(max(0, self.idle(one.directory, held) - would), takeable)
        return Holding(promise.id, promise.guarantee, promise.weight, charged, idle, reread, takeable, waited)

    def _take(self, groups: Mapping[str, Group], targets: Targets, now: float) -> dict[str, int]:
        """The bytes that were taken of each, or would be."""
        if self.mode != "on":
            self._would.update(targets.take)
            return dict(targets.take)
        wanted, later = (
            _of_containers(groups, amounts, targets.guarantees, now) for amounts in (targets.take, targets.exchange)
        )
        try:
            taken = memory_groups.take(wanted, later)
        finally:
            self._restore({name: (one.group, one.limit) for name, one in (wanted | later).items()})
        taken = {name: amount for name, amount in taken.items() if name in targets.take}
        taken |= self._take_of_guests(groups, targets)
        for name, amount in taken.items():
            pid = groups[name].pid
            known, before = self.reclaimed.get(name, (pid, 0))
            self.reclaimed[name] = (pid, amount + (before if known == pid else 0))
        return taken

    def _throttle(self, groups: Mapping[str, Group], targets: Targets, waited: Mapping[str, float]) -> None:
        """Throttle containers that may soon have too much, or none any more (v2).

        Machines are not throttled: QEMU would not answer either.

        waited: as in `Holding`.
        """
        wanted = {}
        if self.mode == "on" and cgroup.version() == "v2":
            for name, most in targets.most.items():
                one = groups[name]
                if one.promise.type == SliverType.LXC and one.held.charged >= _NEARLY * most:
                    wanted[name] = Throttled(most, usual(one.promise))
        self.throttle.set({groups[name].directory: one for name, one in wanted.items()})
        self._throttled = wanted.keys()
        near = (name for name, one in wanted.items() if groups[name].held.charged >= one.most - _NEAR)
        self._takings.stop(name for name in near if waited[name] > 0)

    def _take_of_guests(self, groups: Mapping[str, Group], targets: Targets) -> dict[str, int]:
        """Ask machines for memory, which comes later; the bytes that have come since the last time.

        Only if little is available: unlike a container, a guest does not have it back as soon as it needs it.
        """
        if self.guests is None:
            return {}
        for name, amount in targets.take.items():
            if groups[name].promise.type == SliverType.KVM and self._state.short:
                self.guests.want(name, amount)
        return {name: amount for name, amount in self.guests.taken().items() if name in groups}

    def _settle(self, groups: Mapping[str, Group]) -> None:
        """End what an earlier agent left. A row may be newer than a limit: then its step sets it as well."""
        containers = {name: one for name, one in groups.items() if one.promise.type == SliverType.LXC}
        self._restore({name: (one.directory, one.promise.ceiling) for name, one in containers.items()})
        if cgroup.version() == "v2":
            self.throttle.end_others({one.directory: usual(one.promise) for one in containers.values()})

    @staticmethod
    def _restore(limits: Mapping[str, tuple[Path, int]]) -> None:
        for sliver, (group, limit) in limits.items():
            if memory_groups.restore(group, limit):
                log.warning("%s has its memory limit again", sliver)

    def _tell(
        self,
        before: State,
        targets: Targets,
        taken: Mapping[str, int],
        available: int,
        promises: Sequence[Promise],
        now: float,
    ) -> None:
        """Record what was taken, and the events that are due. Where nothing is really taken, users learn nothing."""
        after, took = self._state, self.mode == "on"
        self._takings.add(before, after, {} if after.slow else taken, now)
        events = self._takings.of_node(before, after, targets.needed, available, took=took)
        events += self._takings.of_slices(after, promises if took else [], now)
        if not events:
            return
        with self.store.write() as c:
            observations.record(c, events, "")  # events are of no node
            if self.config.joined:
                outbox.add(c, events)


def _of_containers(
    groups: Mapping[str, Group], amounts: Mapping[str, int], guarantees: Mapping[str, int], now: float
) -> dict[str, Take]:
    """What to take of containers: these amounts, but nothing of their guarantees. now: of this step."""
    found = {}
    for name, most in amounts.items():
        one = groups[name]
        if one.promise.type != SliverType.LXC:
            continue
        amount = min(most, one.beyond(guarantees[name], now))
        limit = memory_groups.limit(one.directory)
        if amount and limit is not None:
            found[name] = Take(one.directory, amount, limit)
    return found


def holding_of_machine(promise: Promise, charged: int, idle: int) -> Holding:
    """A machine keeps what its guest could not give. idle: what it could."""
    idle = min(idle, charged)
    return Holding(promise.id, max(promise.guarantee, charged - idle), promise.weight, charged, idle, takeable=idle)
