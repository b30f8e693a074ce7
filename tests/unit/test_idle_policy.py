"""What is idle is estimated from a sample, never too high by more than chance, and never more than there is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.policy import idle
from slicemgr.policy.idle import Estimate

MIB = 1 << 20
sizes = st.integers(0, 1 << 40)
parts = st.floats(0, 1)


@given(st.integers(1, 2000), st.data())
def test_the_bound_is_below_what_was_seen_and_grows_with_it(pages: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, pages))
    bound = idle.lower_bound(count, pages)
    assert 0 <= bound <= count / pages
    if count < pages:
        assert bound <= idle.lower_bound(count + 1, pages)


@pytest.mark.parametrize("pages", [idle.LEAST, 64, idle.MOST])
@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_the_bound_is_seldom_too_high(pages: int, part: float) -> None:
    """The probability is summed over all that a scan can see. The control is the mean, which is as often too high."""

    def too_high(bound: list[float]) -> float:
        return sum(
            math.comb(pages, count) * part**count * (1 - part) ** (pages - count)
            for count in range(pages + 1)
            if bound[count] > part
        )

    assert too_high([idle.lower_bound(count, pages) for count in range(pages + 1)]) < 0.1
    assert too_high([count / pages for count in range(pages + 1)]) > 0.3


def test_a_sliver_that_is_all_idle_is_nearly_known_to_be() -> None:
    assert idle.lower_bound(idle.MOST, idle.MOST) > 0.97
    assert idle.lower_bound(0, idle.MOST) == 0


def test_few_pages_tell_nothing() -> None:
    assert idle.estimate(5, idle.LEAST - 1, 500, MIB, 0.0) is None
    assert idle.estimate(5, idle.LEAST, 0, MIB, 0.0) is not None


@given(st.integers(0, 500))
def test_a_scan_has_a_bounded_number_of_pages(kinds: int) -> None:
    some, most = idle.plan(kinds)
    assert some * most <= idle.PAGES and idle.LEAST <= most <= idle.MOST
    assert some == kinds or some * idle.LEAST == idle.PAGES


@given(st.dictionaries(st.sampled_from(["file", "anon"]), st.tuples(sizes, sizes)), parts, parts, sizes, st.booleans())
def test_it_is_never_more_than_there_is(
    kinds: dict[str, tuple[int, int]], part: float, seen: float, held: int, fresh: bool
) -> None:
    kinds = {name: (min(one), max(one)) for name, one in kinds.items()}
    found = {"file": Estimate(part, seen, held, 0.0)}
    now = 1.0 if fresh else idle.FRESH + 1
    assert 0 <= idle.idle_now(kinds, found, now) <= sum(all_ for _, all_ in kinds.values())
    assert fresh or idle.idle_now(kinds, found, now) == sum(listed for listed, _ in kinds.values())


def test_what_was_taken_is_no_longer_idle_and_what_is_new_counts_as_before() -> None:
    found = {"file": Estimate(0.5, 1.0, 100, 0.0)}

    def now(all_: int) -> int:
        return idle.idle_now({"file": (all_, all_)}, found, 1.0)

    assert [now(100), now(80), now(50), now(40)] == [50, 30, 0, 0]
    assert now(200) == 100


def test_kinds_without_an_estimate_and_unseen_pages_count_by_the_lists() -> None:
    kinds = {"file": (90, 100), "anon": (7, 50)}
    assert idle.idle_now(kinds, {}, 1.0) == 97
    assert idle.idle_now(kinds, {"anon": Estimate(0.5, 1.0, 50, 0.0)}, 1.0) == 90 + 25
    assert idle.idle_now(kinds, {"file": Estimate(0.0, 0.5, 100, 0.0)}, 1.0) == 45 + 7, "the half that it saw is used"
