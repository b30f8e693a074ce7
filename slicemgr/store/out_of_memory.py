"""Processes of slivers that the kernel killed for lack of memory: counted with the sliver, and an event.

A tenant can cause kills without end, so a sliver has at most one event in `_BETWEEN`; the next one has the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr import human
from slicemgr.store import observations
from slicemgr.store import tables as t
from slicemgr.store.updates import EventSeen

ACTION = "out of memory"
_BETWEEN = timedelta(hours=1)


def record(c: Connection, kills: Mapping[int, int], now: datetime) -> list[EventSeen]:
    """Add the killed processes to their slivers. kills: by serial, since the last call. Returns the recorded events."""
    events: list[EventSeen] = []
    s, l = t.slivers.c, t.slices.c
    columns = (s.serial, s.idx, s.memory, s.oom_kills, s.oom_event_at, l.name, l.project)
    query = sa.select(*columns).join(t.slices, l.id == s.slice).where(s.serial.in_(list(kills))).order_by(s.serial)
    for row in c.execute(query).all() if kills else ():
        values = {"oom_kills": row.oom_kills + kills[row.serial], "oom_at": now}
        if row.oom_event_at is None or now - row.oom_event_at >= _BETWEEN:
            values["oom_event_at"] = now
            detail = (
                f"sliver {row.idx}: the kernel killed {_processes(values['oom_kills'])} at the memory limit of "
                f"{human.size(row.memory)} since the sliver was created"
            )
            events.append(EventSeen("agent", ACTION, row.name, detail, row.project, now))
        c.execute(t.slivers.update().where(s.serial == row.serial).values(**values))
    observations.record(c, events, "")  # events are of no node
    return events


def counts(c: Connection, node: str) -> dict[int, tuple[int, datetime]]:
    """How many processes were killed and when the last one was, by the serials of the slivers that lost any."""
    s = t.slivers.c
    query = sa.select(s.serial, s.oom_kills, s.oom_at).where(s.node == node, s.oom_kills > 0, s.oom_at.is_not(None))
    return {row.serial: (row.oom_kills, row.oom_at) for row in c.execute(query)}


def _processes(count: object) -> str:
    return "1 process" if count == 1 else f"{count} processes"
