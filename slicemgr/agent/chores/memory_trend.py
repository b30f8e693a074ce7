"""How fast the memory of the node is used, for the memory controller. Bytes, and seconds of a monotonic clock."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from slicemgr.drivers.kernel.counters import Memory

_RECENT = 5.0  # seconds: from an older measurement, it is not known how fast memory is used
_WINDOW = 1.0  # seconds in which it is measured how fast available memory falls


@dataclass(slots=True)
class Trend:
    """freed: bytes that were taken of slivers since the start, without which memory would have fallen faster."""

    freed: int = 0
    _measured: tuple[int, float, int] = (0, -math.inf, 0)  # free memory, when, and what was taken until then
    _available: deque[tuple[float, int]] = field(default_factory=deque)  # when, and how much

    def add(self, measured: Memory, now: float) -> tuple[float, float]:
        """Add a measurement; the bytes of free and of available memory that are used in a second.

        Of available memory it is those of the last second, since a program that starts takes some at once.
        """
        free, at, freed = self._measured
        self._measured = measured.free, now, self.freed
        falling = (free + self.freed - freed - measured.free) / (now - at) if 0 < now - at < _RECENT else 0.0
        while self._available and now - self._available[0][0] > _WINDOW:
            self._available.popleft()
        self._available.append((now, measured.available))
        since, first = self._available[0]
        return falling, (first - measured.available) / _WINDOW if now > since else 0.0
