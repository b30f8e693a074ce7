"""Have the kernel know what is guaranteed to slivers: v2 spares it, v1 takes first what is beyond."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slicemgr.agent.chores.sliver_groups import Member, SliverGroups, usual
from slicemgr.drivers.kernel import cgroup, memory_groups
from slicemgr.errors import Failed
from slicemgr.store.memory_promises import Promise

log = logging.getLogger(__name__)

_BETWEEN = 5.0  # seconds between two looks whether the kernel knows it; systemd writes its own values at a reload


@dataclass(slots=True)
class Protection:
    """What the kernel knows."""

    groups: SliverGroups
    _reduced: Mapping[str, int] = field(default_factory=dict)  # what is left of guarantees that the node does not have
    _protects: bool = True  # whether the kernel may know guarantees, at first from an earlier agent
    _at: float = -math.inf
    _remounts: bool = True

    def keep(self, mode: str, now: float) -> None:
        """Have the kernel know it, if that is due. mode: as `memory.controller`. Raises OSError."""
        if now - self._at <= _BETWEEN:
            return
        self._at = now
        unified = cgroup.version() == "v2"
        wanted = mode != "off" if unified else mode == "on"
        guaranteed = wanted and self.groups.any_guaranteed()
        if not guaranteed and not self._protects:
            return
        members = self.groups.members()
        if members is None:
            return
        if unified:
            memory_groups.protect({one.directory: self._left(one) if guaranteed else 0 for one in members.values()})
        else:
            soft = {one.directory: self._soft(one, guaranteed=guaranteed) for one in members.values()}
            memory_groups.take_first(soft)
        self._protects = guaranteed
        if unified and guaranteed and self._remounts:
            self._reach_inner_groups()

    def reduce(self, guarantees: Mapping[str, int], promises: Sequence[Promise]) -> None:
        """The kernel must not spare more than the node has, because it would end programs instead.

        guarantees: what is left of them by sliver; those that are not named are whole.
        """
        reduced = {one.id: left for one in promises if (left := guarantees.get(one.id, one.guarantee)) < one.guarantee}
        if reduced != self._reduced:
            self._reduced, self._at = reduced, -math.inf

    def _left(self, one: Member) -> int:
        return self._reduced.get(one.promise.id, one.promise.guarantee)

    def _soft(self, one: Member, *, guaranteed: bool) -> int:
        limit = usual(one.promise)
        return min(self._left(one), limit) if guaranteed else limit

    def _reach_inner_groups(self) -> None:
        """A host that does not allow it is not asked again until the agent starts."""
        try:
            if memory_groups.reach_inner_groups():
                log.warning("guarantees of memory reach the groups inside of slivers again")
        except Failed as error:
            self._remounts = False
            log.warning("%s", error)
