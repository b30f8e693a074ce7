"""How many events of a node are recorded."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from slicemgr.store import updates
from slicemgr.store.updates import Update


class Allowance:
    """How many events of each node are recorded: so many at once, and as many again within an hour.

    clock: seconds, of a clock that is never set.
    """

    def __init__(self, events: int = 500, clock: Callable[[], float] = time.monotonic) -> None:
        self._events, self._clock = events, clock
        self._left: dict[str, tuple[float, float]] = defaultdict(lambda: (float(events), clock()))

    def of(self, node: str, found: Sequence[Update]) -> list[Update]:
        """The updates without the events that exceed the allowance."""
        left, at = self._left[node]
        now = self._clock()
        left = min(self._events, left + self._events * (now - at) / 3600)
        kept = []
        for one in found:
            if isinstance(one, updates.EventSeen):
                if left < 1:
                    continue
                left -= 1
            kept.append(one)
        self._left[node] = (left, now)
        return kept
