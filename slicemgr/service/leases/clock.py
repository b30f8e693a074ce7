"""The time that leases use when the node's clock was set or started wrong; an admin confirms the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.policy import access, leases
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

CONFIRM = "slicectl clock confirm"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Uptime:
    """boot: the id of this start of the machine. seconds: since then, suspend included; setting a clock does not change
    it.
    """

    boot: str
    seconds: float


def uptime() -> Uptime:
    return Uptime(_BOOT_ID.read_text().strip(), time.clock_gettime(time.CLOCK_BOOTTIME))


def compare(c: Connection, now: datetime, up: Uptime) -> leases.Clock:
    """Compare the clock with the elapsed time, store the result, and record an event when they begin or cease to
    disagree.
    """
    row = _row(c)
    passed = timedelta(seconds=max(0.0, up.seconds - row.uptime)) if row is not None and row.boot == up.boot else None
    clock = leases.tick(None if row is None else _clock(row), now, passed)
    _write(c, clock, up)
    before = timedelta(0) if row is None else timedelta(seconds=row.doubt)
    if clock.doubt and not before:
        operations.note(c, "agent", "clock doubted", now, detail=warning(clock, now))
    elif before and not clock.doubt:
        operations.note(
            c, "agent", "clock agrees", now, detail="the clock of the node agrees again with the elapsed time"
        )
    return clock


def warning(clock: leases.Clock, now: datetime) -> str:
    """What is wrong with the clock, as a text for people."""
    far = leases.text(timedelta(minutes=max(1, round(abs(clock.doubt).total_seconds() / 60))))
    if clock.doubt < timedelta(0):
        return f"the clock of the node is {far} behind the elapsed time; leases end later until `{CONFIRM}`"
    return (
        f"the clock of the node shows {now:{_MOMENT}}, {far} ahead of the elapsed time (it was set, or the node was "
        f"off); leases use {clock.seen_at:{_MOMENT}} until an admin confirms the clock with `{CONFIRM}`"
    )


def doubted(c: Connection) -> bool:
    """Whether the clock is doubted or was never compared."""
    row = _row(c)
    return row is None or bool(row.doubt)


def confirm(store: Store, by: Principal) -> None:
    """Confirm the clock: leases that have ended by it end now."""
    access.require(by, "confirm the clock")
    now = utcnow()
    with store.write() as c:
        _write(c, leases.Clock(now), Uptime("", 0.0))
        operations.note(c, by.user, "clock confirm", now, detail=f"{now:{_MOMENT}}", address=by.address)


def view(c: Connection) -> dict[str, Any]:
    """`says`: the clock now. `held`: the number of slices whose lease has ended by the clock but not by the time leases
    use.
    """
    row, now = _row(c), utcnow()
    clock = leases.Clock(now) if row is None else _clock(row)
    at, l = clock.judge(now), t.slices.c
    exempt = sa.select(t.lease_rules.c.project).where(t.lease_rules.c.exempt)
    over = (l.lease_ended_at.is_(None), l.expires_at <= now, l.expires_at > at, l.project.not_in(exempt))
    held = c.scalar(sa.select(sa.func.count()).where(*over)) or 0
    return {
        "says": f"{now:{_MOMENT}}",
        "leases_go_by": f"{at:{_MOMENT}}",
        "doubt": warning(clock, now) if clock.doubt else None,
        "held": held if clock.doubt else 0,
    }


def _row(c: Connection) -> Row[*tuple[Any, ...]] | None:
    k = t.clock.c
    return c.execute(sa.select(k.seen_at, k.doubt, k.boot, k.uptime)).first()


def _clock(row: Row[*tuple[Any, ...]]) -> leases.Clock:
    return leases.Clock(row.seen_at, timedelta(seconds=row.doubt))


def _write(c: Connection, clock: leases.Clock, up: Uptime) -> None:
    values = {
        "seen_at": clock.seen_at,
        "doubt": int(clock.doubt.total_seconds()),
        "boot": up.boot,
        "uptime": up.seconds,
    }
    if not c.execute(t.clock.update().values(**values)).rowcount:
        c.execute(t.clock.insert().values(id=1, **values))
