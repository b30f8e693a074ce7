"""Until when a slice may live, what happens at the end, and what time it is when a clock is doubted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from slicemgr.config import LeaseConfig
from slicemgr.errors import Code, Refused, invalid

JUMP = timedelta(minutes=15)  # by as much a clock may be set without anybody being asked
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


class Granted(NamedTuple):
    """why: it is not what was asked for; "" if it is."""

    until: datetime
    why: str = ""


def grant(lease: timedelta, now: datetime, policy: LeaseConfig) -> datetime:
    """When a new slice ends. Refused if the lease is not positive or longer than any may be."""
    check(lease, policy.longest)
    return now + lease


def renew(requested: timedelta, now: datetime, policy: LeaseConfig, end: datetime | None = None) -> Granted:
    """When a renewed slice ends: what was asked for, or as much of it as policy allows. end: of the lease it has."""
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
    """Refused(CONFLICT) before the last part of a lease, where only in that it may be renewed. Zero: at any time."""
    opens = end - window
    if window and now < opens:
        hint = f"it can be renewed from {opens:{_MOMENT}}, {text(window)} before its end, or at any time by an admin"
        raise Refused(Code.CONFLICT, f"it is too early to renew slice {name}", hint=hint)


def check(lease: timedelta, longest: timedelta | None = None) -> None:
    """Refused(INVALID) unless the lease is positive and not beyond `longest`."""
    if lease <= timedelta(0):
        raise invalid("lease", "must be greater than zero", "write it as 12h, 7d or 2w")
    if longest is not None and lease > longest:
        raise invalid("lease", f"{text(lease)} exceeds the longest lease", f"at most {text(longest)}")


def text(span: timedelta) -> str:
    """A span for people: `90d`, `12h`, `30s`."""
    seconds = int(span.total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


class Verdict(Enum):
    """What is due for a slice."""

    NOTHING = "nothing"
    REMIND = "remind"
    STOP = "stop"
    DELETE = "delete"
    RESUME_LEASE = "lease runs again"  # ended by a clock that was wrong, or its project's leases end no more


@dataclass(frozen=True, slots=True)
class Lease:
    """granted_at: by create or renew. ended_at: when its end was acted upon, None while it runs.

    reminders: how long before the end. reminded: of them, the last that was given. exempt: it never ends.
    """

    slice_id: str
    expires_at: datetime
    ended_at: datetime | None
    granted_at: datetime | None = None
    reminders: tuple[timedelta, ...] = ()
    reminded: timedelta | None = None
    exempt: bool = False


def due(leases: Sequence[Lease], now: datetime, grace: timedelta) -> dict[str, Verdict]:
    """What is due at `now`, by slice id. The grace counts from when the slice was stopped: no wrong date deletes."""
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
    """The reminder that is due, of several the last. None whose time was before the lease was granted."""
    passed = [
        one
        for one in lease.reminders
        if lease.expires_at - one <= now and (lease.granted_at is None or lease.granted_at < lease.expires_at - one)
    ]
    last = min(passed, default=None)
    return None if last is None or (lease.reminded is not None and lease.reminded <= last) else last


@dataclass(frozen=True, slots=True)
class Clock:
    """seen_at: what time it is, by what was seen to pass. doubt: how far the node's clock is ahead of that, if too far.

    While it is doubted, leases go by what was seen to pass: nothing ends because somebody set a clock.
    """

    seen_at: datetime
    doubt: timedelta = timedelta(0)

    def judge(self, now: datetime) -> datetime:
        """The time that leases go by. A clock that is behind is followed: it ends nothing too early."""
        return min(now, self.seen_at) if self.doubt else now


def tick(last: Clock | None, now: datetime, passed: timedelta | None) -> Clock:
    """The clock after a look at `now`. passed: uptime since the last look, None if the machine was off since."""
    if last is None:
        return Clock(now)
    expected = last.seen_at + (passed or timedelta(0))
    ahead = now - expected
    return Clock(now) if abs(ahead) <= JUMP else Clock(expected, ahead)
