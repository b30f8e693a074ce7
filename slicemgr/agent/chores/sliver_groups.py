"""The memory groups of the slivers that run here, with what was promised to each, for the memory controller.

Each of them costs the same to read. So while the node is in a hurry, and the controller reads them four
times a second, it reads the largest each time and the others in turn. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from slicemgr.config import Config
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.kernel.memory_groups import UNLIMITED, Held
from slicemgr.store import Store, incarnation, memory_promises
from slicemgr.store.memory_promises import Promise

FEW = 32  # groups that are all read each time
_LARGE = 16  # of more groups, those that are read each time
_TURNS = 10  # times in which each of the others is read once
_VALID = 3.0  # seconds for which rows, pid files, and what a group held count meanwhile


@dataclass(frozen=True, slots=True)
class Member:
    """A sliver that runs. pid: its main process. directory: of its group."""

    promise: Promise
    pid: int
    directory: Path


@dataclass(frozen=True, slots=True)
class Group(Member):
    """at: when it was read."""

    held: Held
    at: float = 0.0

    def beyond(self, guarantee: int, now: float) -> int:
        """The bytes that it holds beyond a guarantee now; it may have freed some since it was read."""
        return max(0, (self.held.charged if self.at == now else memory_groups.usage(self.directory)) - guarantee)


@dataclass(slots=True)
class SliverGroups:
    config: Config
    store: Store
    _members: dict[str, Member] = field(default_factory=dict)
    _members_at: float = -math.inf
    _known: dict[str, Group] = field(default_factory=dict)
    _turn: int = 0

    def members(self) -> dict[str, Member] | None:
        """The slivers that run, by id; None during the hold after a restore, whose rows are older than slivers."""
        running = counters.running()
        with self.store.read() as c:
            if incarnation.held(c) is not None:
                return None
            promises = [one for one in memory_promises.of_node(c, self.config.node.name) if one.id in running]
        self._members = {
            one.id: Member(one, running[one.id], directory)
            for one in promises
            if (directory := self._directory(one.id, running[one.id]))
        }
        return self._members

    def read(
        self, now: float, *, swap: bool, quick: bool = False, always: Collection[str] = ()
    ) -> dict[str, Group] | None:
        """What the slivers hold, by their ids; None on hold. swap: whether the node has some.

        quick: of many slivers, most have what they held when they were read last. always: others that are read then.
        """
        if not quick or now - self._members_at > _VALID:
            if self.members() is None:
                return None
            self._members_at = now
        kept = self._kept(now, always) if quick and len(self._members) > FEW else {}
        self._known, version = {}, cgroup.version()
        for name, one in self._members.items():
            if name in kept and kept[name].pid == one.pid:
                self._known[name] = kept[name]
            elif (held := memory_groups.held(one.directory, version, swap=swap)) is not None:
                self._known[name] = Group(one.promise, one.pid, one.directory, held, now)
        return self._known

    def _kept(self, now: float, always: Collection[str]) -> dict[str, Group]:
        """Those that are not read: neither do they hold the most beyond their guarantees, nor is it their turn."""
        self._turn = (self._turn + 1) % _TURNS
        beyond = {name: one.held.charged - one.promise.guarantee for name, one in self._known.items()}
        due = {*always, *heapq.nlargest(_LARGE, beyond, key=lambda name: beyond[name])}
        due.update(islice(self._members, self._turn, None, _TURNS))
        return {name: one for name, one in self._known.items() if name not in due and now - one.at <= _VALID}

    def any_guaranteed(self) -> bool:
        """Whether anything is guaranteed to a sliver of this node."""
        with self.store.read() as c:
            return memory_promises.any_of_node(c, self.config.node.name)

    def _directory(self, sliver: str, pid: int) -> Path | None:
        """That of a sliver's group, which stays the same while its main process runs."""
        known = self._members.get(sliver)
        return known.directory if known is not None and known.pid == pid else memory_groups.group(sliver, pid)


def usual(promise: Promise) -> int:
    """The soft limit of a sliver, or its `memory.high`, while guarantees do not change it."""
    return UNLIMITED if promise.soft is None else promise.soft
