"""Turn counters into increments since the last reading, whatever was restarted in between. Pure.

A counter belongs to a life: the domain's process for a sliver, the boot for a node. In a new life it started at zero.
Within a life it only grows; a smaller value means that it was reset (such as a link that was created again). One that
the last reading does not name is new in this version of the program, and counts from now on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Numbers = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of counters. life: the id of their life. at: seconds on a monotonic clock. counters: by name."""

    life: str
    at: float
    counters: Numbers


@dataclass(frozen=True, slots=True)
class Increment:
    """seconds: the length of the span, or the part of it that the life has lasted."""

    seconds: float
    counts: dict[str, float]


def since(before: Reading | None, now: Reading, age: float, began: float | None) -> Increment:
    """The increments between two readings.

    age: seconds since the current life began. began: the time of the last reading of anything; None at the first one:
    the counts then start at zero, because it is unknown over which time they accumulated.
    """
    if before is not None and before.life == now.life:
        seconds = max(0.0, now.at - before.at)
        return Increment(
            seconds, {name: _grown(before.counters.get(name, value), value) for name, value in _known(now)}
        )
    if began is None:
        return Increment(0.0, {name: 0 for name, _ in _known(now)})
    return Increment(max(0.0, min(age, now.at - began)), dict(_known(now)))


def _grown(before: float | None, now: float) -> float:
    return now if before is None or now < before else now - before


def _known(reading: Reading) -> list[tuple[str, float]]:
    return [(name, value) for name, value in reading.counters.items() if value is not None]
