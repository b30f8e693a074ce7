"""Counters that grow, restart or are not reported: increments are neither lost nor counted twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slicemgr.record.increments import Reading, since


def test_within_a_life_the_difference_counts() -> None:
    before, now = Reading("1", 100.0, {"cpu": 4.0}), Reading("1", 130.0, {"cpu": 5.5})
    increment = since(before, now, age=500.0, began=100.0)
    assert (increment.seconds, increment.counts) == (30.0, {"cpu": 1.5})


def test_a_new_life_counts_from_its_beginning() -> None:
    before, now = Reading("1", 100.0, {"cpu": 400.0}), Reading("2", 130.0, {"cpu": 401.0})
    increment = since(before, now, age=12.0, began=100.0)
    assert (increment.seconds, increment.counts) == (12.0, {"cpu": 401.0})


def test_a_life_cannot_have_lasted_longer_than_since_the_last_look() -> None:
    assert since(None, Reading("2", 130.0, {}), age=10_000.0, began=100.0).seconds == 30.0


def test_a_link_made_again_counts_from_nothing() -> None:
    before, now = Reading("1", 0.0, {"net_in": 1000, "cpu": 1.0}), Reading("1", 30.0, {"net_in": 10, "cpu": 2.0})
    assert since(before, now, 0.0, 0.0).counts == {"net_in": 10, "cpu": 1.0}


def test_the_first_look_of_all_counts_nothing_of_before() -> None:
    first = since(None, Reading("1", 100.0, {"net_in": 10**12}), age=9999.0, began=None)
    assert (first.seconds, first.counts) == (0.0, {"net_in": 0})


def test_what_is_not_told_is_left_out() -> None:
    assert since(None, Reading("1", 1.0, {"io_read": None, "cpu": 1.0}), 1.0, 0.0).counts == {"cpu": 1.0}


def test_a_counter_that_is_new_in_this_version_counts_from_now_on() -> None:
    """One that the last reading named, and could not read, counts what was missed."""
    before, now = Reading("1", 0.0, {"cpu": 1.0, "io_read": None}), Reading("1", 30.0, {"pressure": 500, "io_read": 7})
    assert since(before, now, 0.0, 0.0).counts == {"pressure": 0, "io_read": 7}


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1000), min_size=1, max_size=4)), min_size=1, max_size=10)
)
def test_all_that_is_counted_arrives_once(lives: list[tuple[bool, list[int]]]) -> None:
    """Several lives of a counter with several samples each: the increments add up to the counts of all lives."""
    before, total, arrived, at = Reading("0", 0.0, {"x": 0}), 0, 0.0, 0.0
    for number, (_, steps) in enumerate(lives, 1):
        counter = 0
        for step in steps:
            counter, total, at = counter + step, total + step, at + 1
            now = Reading(str(number), at, {"x": counter})
            arrived += since(before, now, age=1.0, began=0.0).counts["x"]
            before = now
    assert arrived == total
