"""What a node took of the memory of slivers, and the events about it: for the node, and for the users of slices."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slicemgr import human
from slicemgr.policy.memory import State
from slicemgr.store.memory_promises import Promise
from slicemgr.store.updates import MEMORY_SHORT, MEMORY_TAKEN, EventSeen

log = logging.getLogger(__name__)

_LEAST = 1 << 20  # bytes from which the users of a slice learn what the node took of it
_BETWEEN = 3600.0  # seconds between two events about the same slice


@dataclass(slots=True)
class Takings:
    """Bytes by sliver, since the last events about them. Times are seconds of the clock of `now`.

    node: the begin of the text of an event about the node; "" if the centre of the testbed adds its name.
    """

    node: str = ""
    _of_shortage: Counter[str] = field(default_factory=Counter)
    _of_users: Counter[str] = field(default_factory=Counter)
    _stopped: set[str] = field(default_factory=set)  # slivers that could not grow, since the same
    _since: float = -math.inf  # when taking began, or users last learned of it
    _learned: dict[tuple[str, str], float] = field(default_factory=dict)  # when there was an event about a slice

    def add(self, before: State, after: State, taken: Mapping[str, int], now: float) -> None:
        """Add what one step of the controller took, or would have taken. before, after: that step."""
        if after.short and not before.short:
            self._of_shortage.clear()
        if after.takes and not before.takes:
            self._since = now
        for sums in (self._of_shortage, self._of_users):
            sums.update({name: amount for name, amount in taken.items() if amount})

    def stop(self, slivers: Iterable[str]) -> None:
        """Add slivers that wanted more memory while they could not grow."""
        self._stopped.update(slivers)

    def of_node(self, before: State, after: State, needed: int, available: int, *, took: bool) -> list[EventSeen]:
        """An event when the node begins to be short, and one with the sum when it ends.

        needed, available: bytes. took: whether it really took memory.
        """
        if before.short == after.short:
            return []
        if after.short:
            does = "takes" if took else "would take"
            text = f"{human.size(available)} are available; the node {does} {human.size(needed)} beyond guarantees"
        else:
            did = "took" if took else "would have taken"
            amount, slivers = sum(self._of_shortage.values()), human.counted(len(self._of_shortage), "sliver")
            text = f"ended; the node {did} {human.size(amount)} from {slivers}"
        log.info("memory is short: %s", text)
        return [EventSeen("agent", MEMORY_SHORT, detail=f"{self.node}{text}")]

    def of_slices(self, after: State, promises: Sequence[Promise], now: float) -> list[EventSeen]:
        """For each slice an event when nothing is taken any more, or after an hour of taking; at most one an hour."""
        if not (self._of_users or self._stopped) or (after.takes and now - self._since < _BETWEEN):
            return []
        self._learned = {slice: at for slice, at in self._learned.items() if now - at < _BETWEEN}
        parts = defaultdict[tuple[str, str], tuple[list[str], list[str]]](lambda: ([], []))
        for one in promises:
            amount = self._of_users[one.id]
            if not one.slice or (one.project, one.slice) in self._learned:
                continue
            if amount >= _LEAST:
                parts[one.project, one.slice][0].append(f"{human.size(amount)} of sliver {one.number}")
            if one.id in self._stopped:
                parts[one.project, one.slice][1].append(f"sliver {one.number}")
        self._learned |= dict.fromkeys(parts, now)
        self._of_users.clear()
        self._stopped.clear()
        self._since = now
        return [
            EventSeen("agent", MEMORY_TAKEN, slice, _text(*found), project) for (project, slice), found in parts.items()
        ]


def _text(taken: Sequence[str], stopped: Sequence[str]) -> str:
    """taken: how much of whom. stopped: who could not grow."""
    found = []
    if stopped:
        found.append(f"{', '.join(stopped)} could not grow beyond the guarantee")
    if taken:
        found.append(f"the node took what is beyond guarantees: {', '.join(taken)}")
    return f"memory was short, and {'; '.join(found)}"
