"""Leases: what is granted, what is due, and a clock that is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from slicemgr.config import LeaseConfig
from slicemgr.errors import Refused
from slicemgr.policy import leases
from slicemgr.policy.leases import Clock, Lease, Verdict

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
POLICY = LeaseConfig(longest=timedelta(days=90))
GRACE = 3 * DAY
STEADY = Clock(NOW, NOW)


def test_granted_is_what_was_asked_for_within_policy() -> None:
    assert leases.grant(90 * DAY, NOW, POLICY) == NOW + 90 * DAY
    assert leases.renew(400 * DAY, NOW, POLICY) == NOW + 90 * DAY
    assert leases.renew(DAY, NOW, POLICY) == NOW + DAY


@pytest.mark.parametrize("lease", [timedelta(0), -DAY, 91 * DAY])
def test_a_new_lease_beyond_policy_is_refused(lease: timedelta) -> None:
    with pytest.raises(Refused) as caught:
        leases.grant(lease, NOW, POLICY)
    assert caught.value.field == "lease"


def test_stopped_at_the_end_deleted_after_the_grace() -> None:
    def verdict(expires: datetime, ended: datetime | None) -> Verdict:
        return leases.due([Lease("a", expires, ended)], STEADY, GRACE).get("a", Verdict.NOTHING)

    assert verdict(NOW + MINUTE, None) is Verdict.NOTHING
    assert verdict(NOW, None) is Verdict.STOP
    assert verdict(NOW - 30 * DAY, None) is Verdict.STOP, "the grace begins when it was stopped"
    assert verdict(NOW - DAY, NOW - DAY) is Verdict.NOTHING
    assert verdict(NOW - GRACE, NOW - GRACE) is Verdict.DELETE
    assert verdict(NOW + DAY, NOW - DAY) is Verdict.RESUME_LEASE


def crowd(expires: datetime, number: int = 20) -> list[Lease]:
    return [Lease(f"s{index}", expires, None) for index in range(number)]


def test_a_clock_that_jumps_ends_no_leases_en_masse() -> None:
    ahead = NOW + 365 * DAY
    clock = leases.tick(STEADY, ahead)
    assert leases.due(crowd(NOW + DAY), clock, GRACE) == {}
    back = leases.tick(clock, NOW + MINUTE)
    assert leases.due(crowd(NOW + DAY), back, GRACE) == {}


def test_leases_that_end_together_do_end_while_the_clock_is_steady() -> None:
    clock = leases.tick(STEADY, NOW + MINUTE)
    assert set(leases.due(crowd(NOW), clock, GRACE).values()) == {Verdict.STOP}


def test_after_a_long_time_off_leases_end_a_while_later() -> None:
    clock = leases.tick(STEADY, NOW + 30 * DAY)
    assert leases.due(crowd(NOW + DAY), clock, GRACE) == {}
    for _ in range(61):
        clock = leases.tick(clock, clock.seen_at + MINUTE)
    assert len(leases.due(crowd(NOW + DAY), clock, GRACE)) == 20


def test_a_few_leases_end_whatever_the_clock_did() -> None:
    clock = leases.tick(STEADY, NOW + 30 * DAY)
    few = [*crowd(NOW + DAY, 3), Lease("x", NOW + 99 * DAY, None)]
    assert set(leases.due(few, clock, GRACE)) == {"s0", "s1", "s2"}


def test_a_distrust_from_the_future_does_not_last() -> None:
    wrong = leases.tick(STEADY, NOW + 365 * DAY)
    right = leases.tick(wrong, NOW)
    assert right.trusted_from == NOW + leases.DISTRUST


@pytest.mark.parametrize(("span", "text"), [(7 * DAY, "7d"), (DAY / 2, "12h"), (MINUTE, "1m"), (MINUTE / 2, "30s")])
def test_spans_for_people(span: timedelta, text: str) -> None:
    assert leases.text(span) == text
