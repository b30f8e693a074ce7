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
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slicemgr.agent.chores.guest_memory import GuestMemory
from slicemgr.agent.chores.runner import Chore, First
from slicemgr.agent.chores.takings import Takings
from slicemgr.config import Config
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.drivers.kernel.memory_groups import UNLIMITED, Held, Take
from slicemgr.drivers.kernel.throttle import Throttle, Throttled
from slicemgr.errors import Failed
from slicemgr.model import SliverType
from slicemgr.policy import memory
from slicemgr.policy.memory import Holding, Node, State, Targets
from slicemgr.store import Store, incarnation, memory_promises, observations, outbox
from slicemgr.store.memory_promises import Promise

log = logging.getLogger(__name__)

_INTERVAL = 0.25  # seconds
_WATCH = 2.0  # groups are read while less than this multiple of the higher mark is available
_RECENT = 5.0  # seconds: from an older measurement, it is not known how fast memory is used
_WINDOW = 1.0  # seconds in which it is measured how fast available memory falls
_LOOK = 5.0  # seconds between two looks whether anything is guaranteed
_NEARLY = 0.8  # the part of the most that it may have from which a sliver is throttled
_NEAR = 2 << 20  # bytes by which a sliver that cannot grow may have less than the most
_COST = 0.01  # of a processor, on average, for reading groups while the node is not in a hurry


@dataclass(frozen=True, slots=True)
class _Group:
    promise: Promise
    directory: Path
    held: Held


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
    _state: State = field(default_factory=State)
    _last: float | None = None
    reclaimed: dict[str, tuple[int, int]] = field(default_factory=dict)  # sliver → its main process, bytes taken of it
    _before: dict[str, Held] = field(default_factory=dict)  # what slivers held at the last step
    _takings: Takings = field(default_factory=Takings)
    _settled: bool = False  # whether limits that an earlier agent left lower have been set again
    _rest: float = -math.inf  # no groups are read before, unless the node is in a hurry
    _directories: dict[str, tuple[int, Path]] = field(default_factory=dict)  # sliver → main process and its group
    total: int = 0  # bytes that were taken of all slivers, or with `observe` would have been
    cost: float = 0.0  # seconds of processor time of all readings
    taking: float = 0.0  # the same of taking: with v2 the kernel itself works in this thread
    _freed: int = 0  # bytes that were taken
    _measured: tuple[int, float, int] = (0, -math.inf, 0)  # free memory, when, and what was taken until then
    _available: deque[tuple[float, int]] = field(default_factory=deque)  # when, and how much
    _promised: bool = False  # whether anything is guaranteed
    _asked_at: float = -math.inf  # when that was last looked up
    _reduced: Mapping[str, int] = field(default_factory=dict)  # what is left of guarantees that the node does not have
    _protects: bool = True  # whether the kernel may know guarantees, at first from an earlier agent
    _protected_at: float = -math.inf
    _remounts: bool = True
    _would: Counter[str] = field(default_factory=Counter)  # bytes that `observe` would have taken in this shortage

    def __post_init__(self) -> None:
        self.mode = self.mode or self.config.memory.controller
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
        return [directory for _, directory in self._running() or []]

    def step(self, now: float) -> Targets | None:
        """One step; None while no groups are read, or on hold. now: of a monotonic clock. Raises OSError."""
        if now - self._protected_at > _LOOK:
            self._protected_at = now
            self._protect()
        if self.mode == "off":
            self._state, self._last = State(), None
            self.throttle.set({})
            self._watch_guests(near=False)
            return None
        measured = self.measure()
        begun, groups, swap = self.spent(), None, measured.swap > 0
        node = self._node(measured, now)
        if not self._settled and (groups := self._groups(swap=swap)) is not None:
            self._restore(groups)
            self._settled = True
        self._watch_guests(near=self._state.short or node.soon_available <= _WATCH * memory.HIGH * node.total)
        if self._is_calm(node, now):
            self._last = None
            if not node.has_little_unused(before=self._state.slow):
                self._state = replace(self._state, slow=False)
                return None
            if now < self._state.again:
                return None
        available, total = node.available, node.total
        low, high = memory.LOW * total, memory.HIGH * total
        hurries = node.soon_available < low or (self._state.short and available >= high)
        if now < self._rest and not hurries:
            return None
        groups = groups or self._groups(swap=swap)
        if groups is None:
            self.throttle.set({})
            return None
        left = {name: min(n, groups[name].held.charged) for name, n in self._would.items() if name in groups}
        self._would = Counter(left)
        holdings = [self._holding(one, now) for one in groups.values()]
        elapsed = _INTERVAL if self._last is None else now - self._last
        before, self._last = self._state, now
        self._state, targets = memory.step(before, node, holdings, now, elapsed)
        self._reduce(targets, [one.promise for one in groups.values()])
        self._before = {name: one.held for name, one in groups.items()}
        decided = self.spent()
        # What is taken must not come back meanwhile.
        self._throttle(groups, targets, {one.id: one.waited for one in holdings})
        taken = self._take(groups, targets)
        taking = self.spent() - decided
        self._tell(before, targets, taken, available, [one.promise for one in groups.values()], now)
        self.total += sum(taken.values())
        self._freed += sum(taken.values()) if self.mode == "on" else 0
        self.taking += taking
        self.cost += (used := self.spent() - begun - taking)
        self._rest = now + used / _COST
        return targets

    def _node(self, measured: Memory, now: float) -> Node:
        """The node for the policy. How fast free memory falls is measured without what was taken meanwhile.

        How fast available memory falls is that of a second, since a program that starts takes some at once.
        """
        free, at, freed = self._measured
        self._measured = measured.free, now, self._freed
        falling = (free + self._freed - freed - measured.free) / (now - at) if 0 < now - at < _RECENT else 0.0
        while self._available and now - self._available[0][0] > _WINDOW:
            self._available.popleft()
        self._available.append((now, measured.available))
        since, first = self._available[0]
        sinking = (first - measured.available) / _WINDOW if now > since else 0.0
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
            with self.store.read() as c:
                self._promised = memory_promises.any_of_node(c, self.config.node.name)
        return not self._promised

    def _protect(self) -> None:
        """Have the kernel spare guarantees (v2), or take first what is beyond (v1).

        This is repeated, since systemd writes its own values at a reload.
        """
        unified = cgroup.version() == "v2"
        with self.store.read() as c:
            wanted = self.mode != "off" if unified else self.mode == "on"
            guaranteed = wanted and memory_promises.any_of_node(c, self.config.node.name)
        if not guaranteed and not self._protects:
            return
        running = self._running()
        if running is None:
            return
        left = {one.id: self._reduced.get(one.id, one.guarantee) for one, _ in running}
        if unified:
            memory_groups.protect({directory: left[one.id] if guaranteed else 0 for one, directory in running})
        else:
            soft = {one: min(left[one.id], _usual(one)) if guaranteed else _usual(one) for one, _ in running}
            memory_groups.take_first({directory: soft[one] for one, directory in running})
        self._protects = guaranteed
        if unified and guaranteed and self._remounts:
            self._reach_inner_groups()

    def _reduce(self, targets: Targets, promises: Sequence[Promise]) -> None:
        """The kernel must not spare more than the node has, because it would end programs instead."""
        left = targets.guarantees if self._state.short else {}
        reduced = {one.id: left[one.id] for one in promises if left.get(one.id, one.guarantee) < one.guarantee}
        if reduced != self._reduced:
            self._reduced, self._protected_at = reduced, -math.inf

    def _reach_inner_groups(self) -> None:
        """A host that does not allow it is not asked again until the agent starts."""
        try:
            if memory_groups.reach_inner_groups():
                log.warning("guarantees of memory reach the groups inside of slivers again")
        except Failed as error:
            self._remounts = False
            log.warning("%s", error)

    def _groups(self, *, swap: bool) -> dict[str, _Group] | None:
        """What runs here, by sliver; None on hold."""
        running, version = self._running(), cgroup.version()
        if running is None:
            return None
        found = {}
        for one, directory in running:
            held = memory_groups.held(directory, version, swap=swap)
            if held is not None:
                found[one.id] = _Group(one, directory, held)
        for gone in self.reclaimed.keys() - found.keys():
            del self.reclaimed[gone]
        return found

    def _running(self) -> list[tuple[Promise, Path]] | None:
        """What runs here, and its group; None during the hold after a restore, whose rows are older than slivers."""
        running = counters.running()
        with self.store.read() as c:
            if incarnation.held(c) is not None:
                return None
            promises = [one for one in memory_promises.of_node(c, self.config.node.name) if one.id in running]
        found = [(one, directory) for one in promises if (directory := self._directory(one.id, running[one.id]))]
        self._directories = {one.id: self._directories[one.id] for one, _ in found}
        return found

    def _directory(self, sliver: str, pid: int) -> Path | None:
        """The group of a sliver, which stays the same while its main process runs."""
        known = self._directories.get(sliver)
        if known is None or known[0] != pid:
            directory = memory_groups.group(sliver, pid)
            if directory is None:
                return None
            known = self._directories[sliver] = (pid, directory)
        return known[1]

    def _watch_guests(self, *, near: bool) -> None:
        if self.guests is not None:
            self.guests.near, self.guests.takes = near, self.mode == "on"

    def _holding(self, one: _Group, now: float) -> Holding:
        promise, held = one.promise, one.held
        before = self._before.get(promise.id, held)
        reread = max(0, held.reread - before.reread)
        waited = max(0, (held.waited or 0) - (before.waited or held.waited or 0)) / 1e6
        charged, takeable = (max(0, n - self._would[promise.id]) for n in (held.charged, held.takeable))
        if promise.type == SliverType.KVM:
            idle = self.guests.idle(promise.id, now) if self.guests is not None and self._state.short else 0
            return holding_of_machine(promise, charged, max(0, idle - self._would[promise.id]))
        idle = min(max(0, self.idle(one.directory, held) - self._would[promise.id]), takeable)
        return Holding(promise.id, promise.guarantee, promise.weight, charged, idle, reread, takeable, waited)

    def _take(self, groups: Mapping[str, _Group], targets: Targets) -> dict[str, int]:
        """The bytes that were taken of each, or would be."""
        if self.mode != "on":
            self._would.update(targets.take)
            return dict(targets.take)
        wanted, later = (
            {
                name: Take(groups[name].directory, amount, limit)
                for name, amount in amounts.items()
                if groups[name].promise.type == SliverType.LXC
                and (limit := memory_groups.limit(groups[name].directory)) is not None
            }
            for amounts in (targets.take, targets.exchange)
        )
        try:
            taken = memory_groups.take(wanted, later)
        finally:
            self._restore({name: groups[name] for name in (*wanted, *later)})
        taken = {name: amount for name, amount in taken.items() if name in targets.take}
        taken |= self._take_of_guests(groups, targets)
        for name, amount in taken.items():
            pid = self._directories[name][0]
            known, before = self.reclaimed.get(name, (pid, 0))
            self.reclaimed[name] = (pid, amount + (before if known == pid else 0))
        return taken

    def _throttle(self, groups: Mapping[str, _Group], targets: Targets, waited: Mapping[str, float]) -> None:
        """Throttle containers that may soon have too much, or none any more (v2).

        Machines are not throttled: QEMU would not answer either.

        waited: as in `Holding`.
        """
        wanted = {}
        if self.mode == "on" and cgroup.version() == "v2":
            for name, most in targets.most.items():
                one = groups[name]
                if one.promise.type == SliverType.LXC and one.held.charged >= _NEARLY * most:
                    wanted[one.directory] = Throttled(most, _usual(one.promise))
        self.throttle.set(wanted)
        near = (name for name, most in targets.most.items() if groups[name].held.charged >= most - _NEAR)
        self._takings.stop(name for name in near if groups[name].directory in wanted and waited[name] > 0)

    def _take_of_guests(self, groups: Mapping[str, _Group], targets: Targets) -> dict[str, int]:
        """Ask machines for memory, which comes later; the bytes that have come since the last time.

        Only if little is available: unlike a container, a guest does not have it back as soon as it needs it.
        """
        if self.guests is None:
            return {}
        for name, amount in targets.take.items():
            if groups[name].promise.type == SliverType.KVM and self._state.short:
                self.guests.want(name, amount)
        return {name: amount for name, amount in self.guests.taken().items() if name in groups}

    def _restore(self, groups: Mapping[str, _Group]) -> None:
        """Set limits that are lower than those of the rows. A row may be newer: then its step sets it as well."""
        if cgroup.version() == "v2":
            self.throttle.end_others(
                {one.directory: _usual(one.promise) for one in groups.values() if one.promise.type == SliverType.LXC}
            )
            return
        for one in groups.values():
            limit = memory_groups.limit(one.directory)
            if one.promise.type == SliverType.LXC and limit is not None and limit < one.promise.ceiling:
                log.warning("%s has its memory limit again", one.promise.id)
                memory_groups.restore(one.directory, one.promise.ceiling)

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


def holding_of_machine(promise: Promise, charged: int, idle: int) -> Holding:
    """A machine keeps what its guest could not give. idle: what it could."""
    idle = min(idle, charged)
    return Holding(promise.id, max(promise.guarantee, charged - idle), promise.weight, charged, idle, takeable=idle)


def _usual(promise: Promise) -> int:
    """The soft limit of a sliver, or its `memory.high`, while guarantees do not change it."""
    return UNLIMITED if promise.soft is None else promise.soft
