"""Whether nodes report: the time since their last report, and what follows from it. Pure.

Only time during which the hub received reports counts. So its own outage, an alarm of the broker, or a step of the
clock of its host makes no node silent.
"""

from __future__ import annotations

from enum import StrEnum

SILENT = 30.0  # seconds without a report after which a node gets no new slivers
LOST = 300.0  # seconds after which the state of its slivers is unknown
RECONNECT = 30.0  # seconds that nodes need to connect again after an outage of the hub, or an alarm of the broker
_LONGEST_STEP = 2.0  # seconds between two calls that count; in a longer time the hub has received nothing


class Liveness(StrEnum):
    """`alive`: a node reports. `silent`: for 30 seconds it has not. `lost`: for 5 minutes it has not."""

    ALIVE = "alive"
    SILENT = "silent"
    LOST = "lost"


def noted(silent_since: object | None, lost: bool) -> Liveness:
    """What the row of a node has. silent_since: None if it reports."""
    if silent_since is None:
        return Liveness.ALIVE
    return Liveness.LOST if lost else Liveness.SILENT


def judge(silent: float) -> Liveness:
    """silent: seconds since the last report."""
    if silent < SILENT:
        return Liveness.ALIVE
    return Liveness.SILENT if silent < LOST else Liveness.LOST


class Reported:
    """When each node reported, for one process that receives reports. `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._now: float | None = None
        self._listened = self._grace = 0.0
        self._reported: dict[str, float] = {}

    def passed(self, now: float) -> None:
        """Call it at least every 2 seconds while reports are received."""
        if self._now is not None:
            passed = min(max(0.0, now - self._now), _LONGEST_STEP)
            given = min(passed, self._grace)
            self._grace -= given
            self._listened += passed - given
        self._now = now

    def paused(self) -> None:
        """No time counts until the next call of `passed`."""
        self._now = None

    def interrupted(self) -> None:
        """As `paused`, and nodes could not report: the time that they need to connect again does not count either."""
        self.paused()
        self._grace = RECONNECT

    def report(self, node: str) -> None:
        self._reported[node] = self._listened

    def forget(self, node: str) -> None:
        self._reported.pop(node, None)

    def judge(self, node: str, before: Liveness) -> Liveness:
        """The state of a node that had the state `before`. Only a report makes a node alive again."""
        if node in self._reported:
            return judge(self._listened - self._reported[node])
        return max(before, judge(self._listened - RECONNECT), key=list(Liveness).index)
