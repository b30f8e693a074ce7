"""How many events of a node are recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from slicemgr.store import updates
from slicemgr.store.updates import Update, utcnow


class Allowance:
    """How many events of each node are recorded: so many at once, and as many again within an hour."""

    def __init__(self, events: int = 500) -> None:
        self._events = events
        self._left: dict[str, tuple[float, datetime]] = defaultdict(lambda: (float(events), utcnow()))

    def of(self, node: str, found: Sequence[Update]) -> list[Update]:
        """The updates without the events that exceed the allowance."""
        left, at = self._left[node]
        now = utcnow()
        left = min(self._events, left + self._events * (now - at).total_seconds() / 3600)
        kept = []
        for one in found:
            if isinstance(one, updates.EventSeen):
                if left < 1:
                    continue
                left -= 1
            kept.append(one)
        self._left[node] = (left, now)
        return kept
