"""Rows and events of requests beyond the quota."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.errors import Code, Refused
from slicemgr.model import RequestState
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import OverQuota
from slicemgr.service.accounts import authentication
from slicemgr.service.nodes import operations
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_MOST_WAITING = 20  # of one user


@dataclass(frozen=True, slots=True)
class Entry:
    """A request to insert. name: of the slice; body: validated; over: the limits that it exceeds.

    slice: the id of the slice to resize; None: the request is for a new slice.
    """

    project: str
    name: str
    body: Mapping[str, Any]
    why: str
    over: OverQuota
    slice: str | None = None


def add(c: Connection, entry: Entry, by: Principal) -> str:
    """Insert a request; its id.

    Refused(CONFLICT) if a request for that name is waiting already, or the user has too many waiting requests.
    """
    q, now, id_ = t.requests.c, utcnow(), authentication.new_id()
    waiting = sa.select(sa.func.count()).where(q.user == by.user, q.state == RequestState.WAITING)
    if (c.scalar(waiting) or 0) >= _MOST_WAITING:
        raise Refused(Code.CONFLICT, f"you already have {_MOST_WAITING} waiting requests", hint="withdraw one")
    exceeds = "; ".join(one.message for one in entry.over.errors)
    row = {"id": id_, "project": entry.project, "user": by.user, "name": entry.name, "body": dict(entry.body)}
    values = {
        **row,
        "slice": entry.slice,
        "reason": entry.why,
        "exceeds": exceeds,
        "state": RequestState.WAITING,
        "created_at": now,
    }
    try:
        c.execute(t.requests.insert().values(**values))
    except exc.IntegrityError as error:
        message = f"there is already a request for slice {entry.name!r}"
        raise Refused(Code.CONFLICT, message, hint="`slicectl request list`", field="name") from error
    note(c, "request", row, by, exceeds)
    return id_


def withdraw_for(c: Connection, slice: str, user: str, now: datetime, why: str) -> None:
    """Withdraw the waiting requests to resize a slice that is deleted. slice: its id; user: who deletes it."""
    q = t.requests.c
    ended = {"state": RequestState.WITHDRAWN, "answer": why, "decided_at": now, "decided_by": user}
    waiting = (q.slice == slice, q.state == RequestState.WAITING)
    c.execute(t.requests.update().where(*waiting).values(**ended, unread=q.user != user))


def note(c: Connection, action: str, row: Mapping[str, Any], by: Principal, detail: str = "") -> None:
    """Insert an event about a request. row: of the request."""
    about = {"slice": row["name"], "project": row["project"]}
    text = f"{row['id']} of {row['user']}" + (f": {detail}" if detail else "")
    operations.note(c, by.user, action, utcnow(), **about, detail=text, address=by.address)
