"""The end of leases, what is due at and after it, and the time to use while the clock is doubted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from slicemgr.config import LeaseConfig
from slicemgr.errors import Code, Refused, invalid

JUMP = timedelta(minutes=15)  # a larger jump of the clock must be confirmed by an admin
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


class Granted(NamedTuple):
    """end and why: the reason if it is not the requested end, otherwise ""."""

    until: datetime
    why: str = ""


def grant(lease: timedelta, now: datetime, policy: LeaseConfig) -> datetime:
    """The end of a new lease. Refused if it is not positive or longer than any may be."""
    check(lease, policy.longest)
    return now + lease


def renew(requested: timedelta, now: datetime, policy: LeaseConfig, end: datetime | None = None) -> Granted:
    """The end of a renewed lease: as requested, or as much as the policy allows. end: of the current lease."""
    check(requested)
    until, why = now + requested, ""
    if requested > policy.longest:
        until, why = now + policy.longest, f"{text(policy.longest)} is the longest lease allowed"
    if end is not None and until < end:
        return Granted(
            end, f"the current lease already ends later than {text(min(requested, policy.longest))} from now"
        )
    return Granted(until, why)


def check_window(name: str, now: datetime, end: datetime, window: timedelta) -> None:
    """Refused(CONFLICT) before the renewal window, the last part of a lease. window zero: renewal at any time."""
    opens = end - window
    if window and now < opens:
        hint = f"it can be renewed from {opens:{_MOMENT}}, {text(window)} before its end, or at any time by an admin"
        raise Refused(Code.CONFLICT, f"it is too early to renew slice {name}", hint=hint)


def check(lease: timedelta, longest: timedelta | None = None) -> None:
    """Refused(INVALID) unless the lease is positive and at most `longest`."""
    if lease <= timedelta(0):
        raise invalid("lease", "must be greater than zero", "write it as 12h, 7d or 2w")
    if longest is not None and lease > longest:
        raise invalid("lease", f"{text(lease)} exceeds the longest lease", f"at most {text(longest)}")


def text(span: timedelta) -> str:
    """A duration as text: `90d`, `12h`, `30s`."""
    seconds = int(span.total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


class Verdict(Enum):
    """The action that is due for a slice."""

    NOTHING = "nothing"
    REMIND = "remind"
    STOP = "stop"
    DELETE = "delete"
    RESUME_LEASE = "lease runs again"  # ended by a wrong clock, or the project is now exempt


@dataclass(frozen=True, slots=True)
class Lease:
    """granted_at: by create or renew. ended_at: when its end was enforced, None while it runs.

    reminders: how long before the end. reminded: the last of them that was sent. exempt: it never ends.
    """

    slice_id: str
    expires_at: datetime
    ended_at: datetime | None
    granted_at: datetime | None = None
    reminders: tuple[timedelta, ...] = ()
    reminded: timedelta | None = None
    exempt: bool = False


def due(leases: Sequence[Lease], now: datetime, grace: timedelta) -> dict[str, Verdict]:
    """What is due at `now`, by slice id. The grace period starts when the slice was stopped, so a wrong date deletes
    nothing.
    """
    verdicts = {lease.slice_id: _verdict(lease, now, grace) for lease in leases}
    return {id_: verdict for id_, verdict in verdicts.items() if verdict is not Verdict.NOTHING}


def _verdict(lease: Lease, now: datetime, grace: timedelta) -> Verdict:
    if lease.exempt:
        return Verdict.NOTHING if lease.ended_at is None else Verdict.RESUME_LEASE
    if lease.ended_at is None:
        if lease.expires_at <= now:
            return Verdict.STOP
        return Verdict.NOTHING if reminder(lease, now) is None else Verdict.REMIND
    if lease.expires_at > now:
        return Verdict.RESUME_LEASE
    return Verdict.DELETE if lease.ended_at + grace <= now else Verdict.NOTHING


def reminder(lease: Lease, now: datetime) -> timedelta | None:
    """The reminder that is due, the last one of several. None if its time was before the lease was granted."""
    passed = [
        one
        for one in lease.reminders
        if lease.expires_at - one <= now and (lease.granted_at is None or lease.granted_at < lease.expires_at - one)
    ]
    last = min(passed, default=None)
    return None if last is None or (lease.reminded is not None and lease.reminded <= last) else last


@dataclass(frozen=True, slots=True)
class Clock:
    """seen_at: the time by elapsed time. doubt: how far the node's clock is ahead of that, if more than tolerated.

    While the clock is doubted, leases use the elapsed time: setting a clock ends nothing.
    """

    seen_at: datetime
    doubt: timedelta = timedelta(0)

    def judge(self, now: datetime) -> datetime:
        """The time that leases use. A clock that is behind is used as it is: leases then end later, not earlier."""
        return min(now, self.seen_at) if self.doubt else now


def tick(last: Clock | None, now: datetime, passed: timedelta | None) -> Clock:
    """The clock updated at `now`. passed: uptime since the last update, None if the machine was off meanwhile."""
    if last is None:
        return Clock(now)
    expected = last.seen_at + (passed or timedelta(0))
    ahead = now - expected
    return Clock(now) if abs(ahead) <= JUMP else Clock(expected, ahead)
