"""Leases: granted ends, due actions, and a wrong clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.config import LeaseConfig
from slicemgr.errors import Refused
from slicemgr.policy import leases
from slicemgr.policy.leases import Clock, Lease, Verdict

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
POLICY = LeaseConfig(longest=timedelta(days=90))
GRACE = 3 * DAY
STEADY = Clock(NOW)


def test_granted_is_what_was_asked_for_within_policy() -> None:
    assert leases.grant(90 * DAY, NOW, POLICY) == NOW + 90 * DAY
    trimmed = leases.renew(400 * DAY, NOW, POLICY)
    assert (trimmed.until, "90d is the longest" in trimmed.why) == (NOW + 90 * DAY, True)
    assert leases.renew(DAY, NOW, POLICY) == (NOW + DAY, "")


def test_a_renewal_never_shortens() -> None:
    granted = leases.renew(DAY, NOW, POLICY, NOW + 2 * DAY)
    assert (granted.until, "already ends later" in granted.why) == (NOW + 2 * DAY, True)
    assert leases.renew(DAY, NOW, POLICY, NOW - DAY) == (NOW + DAY, "")


def test_only_in_the_last_part_where_a_window_says_so() -> None:
    end = NOW + 3 * DAY
    for early in (NOW, NOW + 2 * DAY - MINUTE):
        with pytest.raises(Refused, match="too early") as caught:
            leases.check_window("exp", early, end, DAY)
        assert "2026-01-04T03:04:05Z" in caught.value.hint
    for late in (NOW + 2 * DAY, end, end + DAY):
        leases.check_window("exp", late, end, DAY)
    leases.check_window("exp", NOW, end, timedelta(0))


@pytest.mark.parametrize("lease", [timedelta(0), -DAY, 91 * DAY])
def test_a_new_lease_beyond_policy_is_refused(lease: timedelta) -> None:
    with pytest.raises(Refused) as caught:
        leases.grant(lease, NOW, POLICY)
    assert caught.value.field == "lease"


def test_stopped_at_the_end_deleted_after_the_grace() -> None:
    def verdict(expires: datetime, ended: datetime | None) -> Verdict:
        return leases.due([Lease("a", expires, ended)], NOW, GRACE).get("a", Verdict.NOTHING)

    assert verdict(NOW + MINUTE, None) is Verdict.NOTHING
    assert verdict(NOW, None) is Verdict.STOP
    assert verdict(NOW - 30 * DAY, None) is Verdict.STOP, "the grace begins when it was stopped"
    assert verdict(NOW - DAY, NOW - DAY) is Verdict.NOTHING
    assert verdict(NOW - GRACE, NOW - GRACE) is Verdict.DELETE
    assert verdict(NOW + DAY, NOW - DAY) is Verdict.RESUME_LEASE


def test_exempt_leases_never_end_and_run_again() -> None:
    lease = Lease("a", NOW - DAY, None, exempt=True)
    assert leases.due([lease], NOW, GRACE) == {}
    assert leases.due([Lease("a", NOW - DAY, NOW, exempt=True)], NOW, GRACE) == {"a": Verdict.RESUME_LEASE}


def remembered(end: timedelta, reminded: timedelta | None = None, granted: timedelta = 30 * DAY) -> timedelta | None:
    """The reminder that is due for a lease that ends in `end` and was granted `granted` ago."""
    lease = Lease("a", NOW + end, None, NOW - granted, (3 * DAY, DAY, DAY / 12), reminded)
    return leases.reminder(lease, NOW)


def test_reminders_come_once_each_and_missed_ones_not_at_all() -> None:
    assert remembered(3 * DAY + MINUTE) is None
    assert remembered(3 * DAY) == 3 * DAY
    assert remembered(2 * DAY, reminded=3 * DAY) is None
    assert remembered(DAY, reminded=3 * DAY) == DAY
    assert remembered(MINUTE) == DAY / 12, "of several that were missed the last"
    assert remembered(MINUTE, reminded=DAY / 12) is None


def test_a_short_lease_is_not_reminded_of_what_was_before_it() -> None:
    assert remembered(2 * DAY, granted=timedelta(0)) is None
    assert remembered(DAY, granted=DAY) == DAY
    assert remembered(DAY, granted=timedelta(0)) is None


def test_a_clock_that_is_set_ahead_is_doubted_and_time_goes_on() -> None:
    clock = leases.tick(STEADY, NOW + 365 * DAY, MINUTE)
    assert clock.judge(NOW + 365 * DAY) == NOW + MINUTE
    for _ in range(3):
        clock = leases.tick(clock, NOW + 366 * DAY, DAY)
    assert clock.judge(NOW + 366 * DAY) == NOW + MINUTE + 3 * DAY, "leases end as time passes, not by the clock"
    assert leases.tick(clock, NOW + MINUTE + 4 * DAY, DAY).doubt == timedelta(0), "it agrees again"


def test_after_a_time_off_the_clock_is_doubted_too() -> None:
    """A node that was off cannot be distinguished from a clock that started wrong."""
    assert leases.tick(STEADY, NOW + 2 * DAY, None).judge(NOW + 2 * DAY) == NOW
    assert leases.tick(STEADY, NOW + 10 * MINUTE, None).doubt == timedelta(0)
    assert leases.tick(STEADY, NOW + 2 * DAY, 2 * DAY).doubt == timedelta(0), "it was on, and only nobody looked"


def test_a_clock_that_comes_up_in_the_past_ends_nothing_and_makes_the_way_back_no_jump() -> None:
    past = leases.tick(STEADY, NOW - 3650 * DAY, None)
    assert past.judge(NOW - 3650 * DAY) == NOW - 3650 * DAY
    assert leases.tick(past, NOW + MINUTE, MINUTE).doubt == timedelta(0)


@given(st.lists(st.tuples(st.timedeltas(-400 * DAY, 400 * DAY), st.timedeltas(timedelta(0), DAY)), max_size=20))
def test_leases_never_go_by_more_than_what_passed_and_the_tolerated_jumps(
    looks: list[tuple[timedelta, timedelta]],
) -> None:
    clock, passed = STEADY, timedelta(0)
    for number, (off, span) in enumerate(looks, 1):
        passed += span
        now = NOW + passed + off
        clock = leases.tick(clock, now, span)
        assert clock.judge(now) <= NOW + passed + number * leases.JUMP


@pytest.mark.parametrize(("span", "text"), [(7 * DAY, "7d"), (DAY / 2, "12h"), (MINUTE, "1m"), (MINUTE / 2, "30s")])
def test_spans_for_people(span: timedelta, text: str) -> None:
    assert leases.text(span) == text
