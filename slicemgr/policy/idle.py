"""How much of a sliver's memory is idle, by a sample of its pages. Pure.

A scan marks pages and checks later which of them were used. Their number is bounded, so the result is an estimate, of
which the lower bound counts. Memory of files and of programs is distinguished (`kind`), because a node without swap can
take only the first. Of pages whose use a scan cannot see, the kernel's own lists show what is idle.

Bytes and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

PAGES = 1024  # of one scan
MOST, LEAST = 128, 32  # pages of one kind of memory of a sliver; fewer than that show nothing
SURE = 1.645  # standard deviations: the bound is too high in about one of twenty scans
WINDOW = 60.0  # seconds from the marks to the check
FRESH = 900.0  # seconds for which an estimate is used
COST = 0.002  # of a processor, on average
FREE = 0.25  # of the node's memory: with more, nothing will be taken soon


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a scan found. part: of what it saw, which is idle at least. seen: the part of all that it saw. held: all."""

    part: float
    seen: float
    held: int
    at: float


def plan(kinds: int) -> tuple[int, int]:
    """How many of the kinds of memory of all slivers one scan has, and how many pages of each."""
    some = min(kinds, PAGES // LEAST)
    return some, min(MOST, PAGES // max(1, some))


def estimate(idle: int, pages: int, unseen: int, held: int, at: float) -> Estimate | None:
    """The estimate for `held` bytes; None if there are too few pages. idle: of `pages`. unseen: other pages."""
    if pages < LEAST:
        return None
    return Estimate(lower_bound(idle, pages), pages / (pages + unseen), held, at)


def lower_bound(idle: int, pages: int) -> float:
    """The part that is idle at least: the bound of a Wilson interval, which holds for small samples, too."""
    part, square = idle / pages, SURE * SURE
    middle = part + square / (2 * pages)
    half = SURE * math.sqrt(part * (1 - part) / pages + square / (4 * pages * pages))
    return max(0.0, min(part, (middle - half) / (1 + square / pages)))


def idle_now(kinds: Mapping[str, tuple[int, int]], found: Mapping[str, Estimate], now: float) -> int:
    """The idle bytes of a sliver. kinds: of each, what is idle by the kernel's lists, and all.

    What has been taken since the scan was idle, and of what has come since, no larger part is idle.
    """
    return sum(_idle(*kinds[one], found.get(one), now) for one in kinds)


def _idle(listed: int, all_: int, found: Estimate | None, now: float) -> int:
    if found is None or now - found.at > FRESH:
        return listed
    used = (1 - found.part) * found.seen * found.held
    seen = max(0.0, min(found.part * found.seen * all_, found.seen * all_ - used))
    return int(seen + (1 - found.seen) * listed)
