"""The memory groups of the slivers that run here, with what was promised to each, for the memory controller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slicemgr.config import Config
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.kernel.memory_groups import UNLIMITED, Held
from slicemgr.store import Store, incarnation, memory_promises
from slicemgr.store.memory_promises import Promise


@dataclass(frozen=True, slots=True)
class Member:
    """A sliver that runs. pid: its main process. directory: of its group."""

    promise: Promise
    pid: int
    directory: Path


@dataclass(frozen=True, slots=True)
class Group(Member):
    held: Held


@dataclass(slots=True)
class SliverGroups:
    config: Config
    store: Store
    _directories: dict[str, tuple[int, Path]] = field(default_factory=dict)  # sliver → main process and its group

    def members(self) -> list[Member] | None:
        """The slivers that run; None during the hold after a restore, whose rows are older than slivers."""
        running = counters.running()
        with self.store.read() as c:
            if incarnation.held(c) is not None:
                return None
            promises = [one for one in memory_promises.of_node(c, self.config.node.name) if one.id in running]
        found = [
            Member(one, running[one.id], there) for one in promises if (there := self._of(one.id, running[one.id]))
        ]
        self._directories = {one.promise.id: (one.pid, one.directory) for one in found}
        return found

    def read(self, *, swap: bool) -> dict[str, Group] | None:
        """What the slivers hold, by their ids; None on hold. swap: whether the node has some."""
        members = self.members()
        return None if members is None else {one.promise.id: one for one in _read(members, swap=swap)}

    def any_guaranteed(self) -> bool:
        """Whether anything is guaranteed to a sliver of this node."""
        with self.store.read() as c:
            return memory_promises.any_of_node(c, self.config.node.name)

    def _of(self, sliver: str, pid: int) -> Path | None:
        """The group of a sliver, which stays the same while its main process runs."""
        known = self._directories.get(sliver)
        return known[1] if known is not None and known[0] == pid else memory_groups.group(sliver, pid)


def _read(members: list[Member], *, swap: bool) -> Iterator[Group]:
    version = cgroup.version()
    for one in members:
        held = memory_groups.held(one.directory, version, swap=swap)
        if held is not None:
            yield Group(one.promise, one.pid, one.directory, held)


def usual(promise: Promise) -> int:
    """The soft limit of a sliver, or its `memory.high`, while guarantees do not change it."""
    return UNLIMITED if promise.soft is None else promise.soft
