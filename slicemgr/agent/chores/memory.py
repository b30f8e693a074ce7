"""Take memory from slivers beyond their guarantees when the node runs short; see policy/memory.py.

With `memory.controller = "observe"`, it only reports what it would take. Nothing that it does outlasts it: v2 takes
memory without a limit, and on v1 a lowered limit is set again in the same step, and again when the agent starts. Memory
of virtual machines is not taken.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slicemgr import human
from slicemgr.agent.chores.runner import Chore, First
from slicemgr.config import Config
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.kernel.memory_groups import Held, Take
from slicemgr.model import SliverType
from slicemgr.policy import memory
from slicemgr.policy.memory import Holding, Node, State, Targets
from slicemgr.store import Store, incarnation, memory_promises, observations, outbox
from slicemgr.store.memory_promises import Promise
from slicemgr.store.updates import MEMORY_SHORT, MEMORY_TAKEN, EventSeen

log = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds
_WATCH = 2.0  # groups are read while less than this multiple of the higher mark is available
_TOLD = 1 << 20  # bytes from which the users of a slice learn what the node took of it
_BETWEEN = 3600.0  # seconds between two events about the same slice
_COST = 0.01  # of a processor, on average, for reading groups while the node is not in a hurry


@dataclass(frozen=True, slots=True)
class _Group:
    promise: Promise
    directory: Path
    held: Held


@dataclass(slots=True)
class MemoryController:
    """One step a second. measure: total and available memory of the node, and its free swap.

    spent: seconds of processor time of this thread. Many groups are read less often, so that it costs no more than 1 %
    of a processor, except while the node is below the lower mark.
    """

    config: Config
    store: Store
    measure: Callable[[], tuple[int, int, int]] = memory_groups.node
    spent: Callable[[], float] = time.thread_time
    _state: State = field(default_factory=State)
    _last: float | None = None
    reclaimed: dict[str, tuple[int, int]] = field(default_factory=dict)  # sliver → its main process, bytes taken of it
    _reread: dict[str, int] = field(default_factory=dict)
    _taken: Counter[str] = field(default_factory=Counter)  # bytes by sliver, since the node has been short
    _told: dict[tuple[str, str], float] = field(default_factory=dict)  # when there was an event about a slice
    _settled: bool = False  # whether limits that an earlier agent left lower have been set again
    _rest: float = -math.inf  # no groups are read before, unless the node is in a hurry
    _directories: dict[str, tuple[int, Path]] = field(default_factory=dict)  # sliver → main process and its group

    def chores(self) -> list[Chore]:
        """The chore; none if it is switched off."""
        chore = Chore(
            thread="memory",
            run=lambda: self.step(time.monotonic()),
            interval=_INTERVAL,
            failure="cannot watch the memory of slivers",
            first=First.AT_ONCE,
            longest=60.0,
            grace=5.0,
        )
        return [] if self.config.memory.controller == "off" else [chore]

    def step(self, now: float) -> Targets | None:
        """One step; None while no groups are read, or on hold. now: of a monotonic clock. Raises OSError."""
        total, available, swap = self.measure()
        begun, groups = self.spent(), None
        if not self._settled and (groups := self._groups(swap=swap > 0)) is not None:
            self._restore(groups)
            self._settled = True
        if available > _WATCH * memory.HIGH * total and not self._state.short:
            self._last = None
            return None
        hurries = available < memory.LOW * total or (self._state.short and available >= memory.HIGH * total)
        if now < self._rest and not hurries:
            return None
        groups = groups or self._groups(swap=swap > 0)
        if groups is None:
            return None
        holdings = [self._holding(one) for one in groups.values()]
        elapsed = _INTERVAL if self._last is None else now - self._last
        before, self._last = self._state, now
        self._state, targets = memory.step(before, Node(total, available), holdings, now, elapsed)
        self._reread = {name: one.held.reread for name, one in groups.items()}
        taken = self._take(groups, targets)
        self._tell(before, targets, taken, available, groups, now)
        self._rest = now + (self.spent() - begun) / _COST
        return targets

    def _groups(self, *, swap: bool) -> dict[str, _Group] | None:
        """What runs here, by sliver; None during the hold after a restore, whose rows are older than the slivers."""
        running, version = counters.running(), cgroup.version()
        with self.store.read() as c:
            if incarnation.held(c) is not None:
                return None
            promises = memory_promises.of_node(c, self.config.node.name)
        found = {}
        for one in promises:
            directory = self._directory(one.id, running[one.id]) if one.id in running else None
            held = None if directory is None else memory_groups.held(directory, version, swap=swap)
            if directory is not None and held is not None:
                found[one.id] = _Group(one, directory, held)
        self._directories = {name: known for name, known in self._directories.items() if name in found}
        for gone in self.reclaimed.keys() - found.keys():
            del self.reclaimed[gone]
        return found

    def _directory(self, sliver: str, pid: int) -> Path | None:
        """The group of a sliver, which stays the same while its main process runs."""
        known = self._directories.get(sliver)
        if known is None or known[0] != pid:
            directory = memory_groups.group(pid)
            if directory is None:
                return None
            known = self._directories[sliver] = (pid, directory)
        return known[1]

    def _holding(self, one: _Group) -> Holding:
        promise, held = one.promise, one.held
        reread = max(0, held.reread - self._reread.get(promise.id, held.reread))
        if promise.type == SliverType.KVM:  # what a guest holds is known to its own kernel alone
            return Holding(promise.id, held.charged, promise.weight, held.charged, 0)
        return Holding(promise.id, promise.guarantee, promise.weight, held.charged, held.idle, reread)

    def _take(self, groups: Mapping[str, _Group], targets: Targets) -> dict[str, int]:
        """The bytes that were taken of each, or would be."""
        if self.config.memory.controller != "on":
            return dict(targets.take)
        wanted = {
            name: Take(groups[name].directory, amount, limit)
            for name, amount in targets.take.items()
            if (limit := memory_groups.limit(groups[name].directory)) is not None
        }
        try:
            taken = memory_groups.take(wanted)
        finally:
            self._restore({name: groups[name] for name in wanted})
        for name, amount in taken.items():
            pid = self._directories[name][0]
            known, before = self.reclaimed.get(name, (pid, 0))
            self.reclaimed[name] = (pid, amount + (before if known == pid else 0))
        return taken

    def _restore(self, groups: Mapping[str, _Group]) -> None:
        """Set limits that are lower than those of the rows (v1). A row may be newer: then its step sets it as well."""
        if cgroup.version() == "v2":
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
        groups: Mapping[str, _Group],
        now: float,
    ) -> None:
        """An event when the node begins to be short; when it ends, one with the sum, and one for each slice."""
        begins = self._state.short and not before.short
        if begins:
            self._taken.clear()
        self._taken.update({name: amount for name, amount in taken.items() if amount})
        if before.short == self._state.short:
            return
        on = self.config.memory.controller == "on"
        if begins:
            does = "takes" if on else "would take"
            text = (
                f"{human.size(available)} are available; the node {does} {human.size(targets.needed)} beyond guarantees"
            )
        else:
            did = "took" if on else "would have taken"
            amount, slivers = human.size(sum(self._taken.values())), human.counted(len(self._taken), "sliver")
            text = f"ended; the node {did} {amount} from {slivers}"
        log.info("memory is short: %s", text)
        where = "" if self.config.joined else f"{self.config.node.name}: "  # the centre adds it
        events = [EventSeen("agent", MEMORY_SHORT, detail=f"{where}{text}")]
        if on and not begins:
            events += self._of_slices([one.promise for one in groups.values()], now)
        with self.store.write() as c:
            observations.record(c, events, "")  # events are of no node
            if self.config.joined:
                outbox.add(c, events)

    def _of_slices(self, promises: Sequence[Promise], now: float) -> list[EventSeen]:
        """What the node took of each slice. At most one event an hour for each slice."""
        self._told = {slice: at for slice, at in self._told.items() if now - at < _BETWEEN}
        parts = defaultdict[tuple[str, str], list[str]](list)
        for one in promises:
            amount = self._taken[one.id]
            if one.slice and amount >= _TOLD and (one.project, one.slice) not in self._told:
                parts[one.project, one.slice].append(f"{human.size(amount)} of sliver {one.number}")
        self._told |= dict.fromkeys(parts, now)
        text = "memory was short, and the node took what is beyond guarantees: "
        return [
            EventSeen("agent", MEMORY_TAKEN, slice, text + ", ".join(found), project)
            for (project, slice), found in parts.items()
        ]
