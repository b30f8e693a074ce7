"""From counters to what came since the last look, whatever was restarted in between. Pure.

A counter belongs to a life: the domain's process for a sliver, the boot for a node. In a new life it began at zero.
Within a life it only grows; one that is smaller than before has begun anew as well (a link that was made again).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Numbers = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """A look. life: whose counters these are. at: seconds on a clock that never jumps. counters: by name."""

    life: str
    at: float
    counters: Numbers


@dataclass(frozen=True, slots=True)
class Increment:
    """seconds: the span it came in, or of it the part that the life has lasted."""

    seconds: float
    counts: dict[str, float]


def since(before: Reading | None, now: Reading, age: float, began: float | None) -> Increment:
    """What came between two looks.

    age: seconds that the present life has lasted. began: the time of the last look at all; None if this is the first:
    then nobody knows since when what is counted was not recorded, and it begins at nothing.
    """
    if before is not None and before.life == now.life:
        seconds = max(0.0, now.at - before.at)
        return Increment(seconds, {name: _grown(before.counters.get(name), value) for name, value in _known(now)})
    if began is None:
        return Increment(0.0, {name: 0 for name, _ in _known(now)})
    return Increment(max(0.0, min(age, now.at - began)), dict(_known(now)))


def _grown(before: float | None, now: float) -> float:
    return now if before is None or now < before else now - before


def _known(reading: Reading) -> list[tuple[str, float]]:
    return [(name, value) for name, value in reading.counters.items() if value is not None]
