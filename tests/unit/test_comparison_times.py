"""When the agent compares a node with its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slicemgr.agent.comparison_times import ComparisonTimes

INTERVAL = 60.0


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def compared() -> tuple[ComparisonTimes, Clock]:
    clock = Clock()
    times = ComparisonTimes(INTERVAL, clock)
    assert times.comparison_is_due() and times.left(1.0) == 0.0, "the first one is due at once"
    times.compared()
    return times, clock


def test_the_interval() -> None:
    times, clock = compared()
    assert not times.comparison_is_due() and times.left(1.0) == 1.0 and times.left(math.inf) == INTERVAL
    clock.now += INTERVAL
    assert times.comparison_is_due() and not times.check_is_due()


def test_it_follows_the_last_of_many_operations() -> None:
    times, clock = compared()
    for _ in range(20):
        times.operation_ended()
        clock.now += 1.0
        assert not times.comparison_is_due()
    clock.now += 2.0
    assert times.comparison_is_due()
    times.compared()
    assert times.left(math.inf) == INTERVAL


def test_many_domains_are_checked_once_soon_after_the_first_has_changed() -> None:
    times, clock = compared()
    for _ in range(4):
        times.domains_changed()
        assert not times.check_is_due()
        clock.now += 0.06
    assert times.check_is_due()
    times.begin_check()
    times.end_check()
    assert not times.check_is_due() and not times.comparison_is_due()


def test_a_check_that_fails_leads_to_a_comparison() -> None:
    times, clock = compared()
    times.domains_changed()
    clock.now += 1.0
    times.begin_check()
    assert times.comparison_is_due() and not times.check_is_due()
