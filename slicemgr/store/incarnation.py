"""The incarnation of the database. A restored one is on hold until an admin has reviewed what the nodes run.

During a hold the agents stop, delete and allocate nothing: the rows are older than the hosts. All functions use a
connection of `store.read()` or `store.write()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.errors import Code, Refused
from slicemgr.store import operation_parts
from slicemgr.store import tables as t

ALLOWED = frozenset({"doctor", "tables"})  # operations that only read the host
REVIEW = "slicemgr restore --review"
_ENDED_BY = "a restore from a backup ended it"
_MAIL_QUEUED = ("waiting", "sending")
_I = t.incarnations.c
_HELD = sa.select(_I.number, _I.backup_at, _I.began_at).where(_I.ended_at.is_(None))  # made once: it is read often


@dataclass(frozen=True, slots=True)
class Incarnation:
    """number: of the incarnation. backup_at: the time of the restored rows. began_at: of the restore."""

    number: int
    backup_at: datetime
    began_at: datetime

    def says(self) -> str:
        """The state of the hold, as a text for people."""
        restored, backup = (f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in (self.began_at, self.backup_at))
        return f"on hold since the restore at {restored} of the backup of {backup}"


def held(c: Connection) -> Incarnation | None:
    """The incarnation that is on hold, None if there is no hold."""
    row = c.execute(_HELD).first()
    return None if row is None else Incarnation(*row)


def refuse_during_hold(c: Connection, action: str) -> None:
    """Raise Refused(CONFLICT) if the database is on hold. action: completes "cannot", such as `create slices`."""
    if (now := held(c)) is not None:
        hint = f"slivers continue to run; an admin reviews them on the node with `{REVIEW}`"
        raise Refused(Code.CONFLICT, f"the testbed cannot {action}: it is {now.says()}", hint=hint)


def begin(c: Connection, backup_at: datetime, now: datetime) -> int:
    """Begin a new incarnation on hold in restored rows; its number.

    Operations and mails that the backup has in its queues are ended, because they may have been carried out since.
    """
    i, m = t.incarnations.c, t.mails.c
    number = int(c.scalar(sa.select(sa.func.max(i.number))) or 0) + 1
    c.execute(t.incarnations.update().where(i.ended_at.is_(None)).values(ended_at=now))
    c.execute(t.incarnations.insert().values(number=number, backup_at=backup_at, began_at=now))
    for table in (t.host_reports, t.unclaimed):
        c.execute(table.delete())
    operation_parts.fail_all(c, _ENDED_BY, now)
    c.execute(t.mails.update().where(m.state.in_(_MAIL_QUEUED)).values(state="failed", error=_ENDED_BY))
    detail = f"incarnation {number}, from a backup of {backup_at:%Y-%m-%dT%H:%M:%SZ}"
    c.execute(t.events.insert().values(at=now, user="agent", action="restore", detail=detail))
    return number


def end(c: Connection, now: datetime) -> None:
    """End the hold."""
    c.execute(t.incarnations.update().where(t.incarnations.c.ended_at.is_(None)).values(ended_at=now))
    for table in (t.host_reports, t.unclaimed):
        c.execute(table.delete())


def released(c: Connection, node: str) -> list[str]:
    """The slivers of the node that an admin has released."""
    u = t.unclaimed.c
    return list(c.scalars(sa.select(u.sliver).where(u.node == node, u.released).order_by(u.sliver)))
