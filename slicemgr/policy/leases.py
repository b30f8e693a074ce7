"""Until when a slice may live, what happens at the end, and when a clock is not to be believed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from slicemgr.config import LeaseConfig
from slicemgr.errors import invalid

JUMP = timedelta(minutes=15)  # between two looks: the machine was off, or somebody set its clock
DISTRUST = timedelta(hours=1)  # after a jump: how long leases are not ended by the dozen
FEW = 3


def grant(lease: timedelta, now: datetime, policy: LeaseConfig) -> datetime:
    """When a new slice ends. Refused if the lease is not positive or longer than any may be."""
    check(lease, policy.longest)
    return now + lease


def renew(requested: timedelta, now: datetime, policy: LeaseConfig) -> datetime:
    """When a renewed slice ends: what was asked for, or as much of it as policy allows."""
    check(requested)
    return now + min(requested, policy.longest)


def check(lease: timedelta, longest: timedelta | None = None) -> None:
    """Refused(INVALID) unless the lease is positive and not beyond `longest`."""
    if lease <= timedelta(0):
        raise invalid("lease", "must be longer than nothing", "write it as 12h, 7d or 2w")
    if longest is not None and lease > longest:
        raise invalid("lease", f"{text(lease)} is longer than any lease may be", f"at most {text(longest)}")


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
    STOP = "stop"
    DELETE = "delete"
    RESUME_LEASE = "lease runs again"  # ended by a clock that was wrong


@dataclass(frozen=True, slots=True)
class Lease:
    """ended_at: when its end was acted upon, None while it runs."""

    slice_id: str
    expires_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Clock:
    """seen_at: the last look. trusted_from: from when on many leases may end at once."""

    seen_at: datetime
    trusted_from: datetime


def tick(last: Clock | None, now: datetime) -> Clock:
    """The clock after a look at `now`: a jump in either direction makes it distrusted for a while."""
    if last is None:
        return Clock(now, now)
    jumped = not -timedelta(seconds=60) <= now - last.seen_at <= JUMP
    backwards = last.trusted_from - now > DISTRUST
    return Clock(now, now + DISTRUST if jumped or backwards else last.trusted_from)


def due(leases: Sequence[Lease], clock: Clock, grace: timedelta) -> dict[str, Verdict]:
    """What is due, by slice id.

    The grace counts from when the slice was stopped, so that no single wrong date deletes anything. While the
    clock is distrusted, nothing happens to more than FEW slices, or to more than half of them, at once.
    """
    verdicts = {lease.slice_id: _verdict(lease, clock.seen_at, grace) for lease in leases}
    wanted: dict[str, Verdict] = {id_: verdict for id_, verdict in verdicts.items() if verdict is not Verdict.NOTHING}
    harsh = [id_ for id_, verdict in wanted.items() if verdict in (Verdict.STOP, Verdict.DELETE)]
    if clock.seen_at < clock.trusted_from and len(harsh) > FEW and 2 * len(harsh) > len(leases):
        return {id_: verdict for id_, verdict in wanted.items() if id_ not in harsh}
    return wanted


def _verdict(lease: Lease, now: datetime, grace: timedelta) -> Verdict:
    if lease.ended_at is None:
        return Verdict.STOP if lease.expires_at <= now else Verdict.NOTHING
    if lease.expires_at > now:
        return Verdict.RESUME_LEASE
    return Verdict.DELETE if lease.ended_at + grace <= now else Verdict.NOTHING
