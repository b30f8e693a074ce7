"""When a node and its rows are compared next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_QUIET = 3.0  # seconds without the end of an operation before its effects are compared and announced
_SETTLING = 0.2  # seconds from the start or end of a domain to its check, so that many at once cause one comparison


@dataclass(slots=True)
class ComparisonTimes:
    """interval: seconds between two comparisons of the node. clock: seconds; the other times are its values.

    compare: of the next comparison. quiet: of one because operations have ended. check: of the slivers whose domains
    have changed, which are compared alone.
    """

    interval: float
    clock: Callable[[], float] = time.monotonic
    compare: float = 0.0
    quiet: float = math.inf
    check: float = math.inf
    _before: float = 0.0

    def domains_changed(self) -> None:
        """Check them soon."""
        self.check = min(self.check, self.clock() + _SETTLING)

    def operation_ended(self) -> None:
        """Compare the node some time after the last operation."""
        self.quiet = self.clock() + _QUIET

    def check_is_due(self) -> bool:
        return self.clock() >= self.check

    def comparison_is_due(self) -> bool:
        return self.clock() >= min(self.compare, self.quiet)

    def begin_check(self) -> None:
        """From now on, a comparison of the node is due, unless `end_check` follows."""
        self.check, self._before, self.compare = math.inf, self.compare, 0.0

    def end_check(self) -> None:
        """The check has ended well."""
        self.compare = self._before

    def compared(self) -> None:
        """A comparison has ended, also if it failed."""
        self.compare, self.quiet = self.clock() + self.interval, math.inf

    def left(self, most: float) -> float:
        """Seconds until something is due, `most` at most."""
        return min(most, max(0.0, min(self.compare, self.quiet, self.check) - self.clock()))
