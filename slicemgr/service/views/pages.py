"""Data of pages that REST lists do not have: filtered events, users of an image, the last operation on a node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import OperationState, RequestState
from slicemgr.policy.access import Principal
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views.formats import Json, when
from slicemgr.service.views.present import visible_events
from slicemgr.store import tables as t

_ENDED = (OperationState.DONE, OperationState.FAILED)


LOG_COLUMNS = ("at", "user", "action", "slice", "project", "address")  # by which the log can be sorted


@dataclass(frozen=True, slots=True)
class LogFilter:
    """A filter of events; "" and None: no restriction. before: only events older than the one with this id."""

    user: str = ""
    action: str = ""
    project: str = ""
    slice: str = ""
    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None


@dataclass(frozen=True, slots=True)
class LogOrder:
    """One of LOG_COLUMNS. skip: the number of events on earlier pages."""

    column: str = "at"
    down: bool = True
    skip: int = 0


_NEWEST_FIRST = LogOrder()


def log(
    c: Connection, by: Principal, wanted: LogFilter, limit: int, order: LogOrder = _NEWEST_FIRST
) -> tuple[list[Json], bool]:
    """The events that `by` may see, and whether there are more than `limit`.

    Events without a value of the column come last in both directions, and events with equal values the newest first.
    """
    e = t.events.c
    query = sa.select(t.events).where(visible_events(by))
    for column, value in ((e.user, wanted.user), (e.project, wanted.project), (e.slice, wanted.slice)):
        if value:
            query = query.where(column == value)
    if wanted.action:
        query = query.where(e.action == wanted.action)
    if wanted.since:
        query = query.where(e.at >= wanted.since)
    if wanted.until:
        query = query.where(e.at < wanted.until)
    if wanted.before is not None:
        query = query.where(e.id < wanted.before)
    rows = c.execute(query.order_by(*_by(order)).offset(order.skip or None).limit(limit + 1)).all()
    names = ("id", "user", "action", "slice", "project", "detail", "address")
    events = [{**{name: getattr(row, name) for name in names}, "at": when(row.at)} for row in rows[:limit]]
    return events, len(rows) > limit


def _by(order: LogOrder) -> list[sa.ColumnElement[Any]]:
    e = t.events.c
    if order.column == "at":  # identifiers grow with time
        return [e.id.desc() if order.down else e.id.asc()]
    column = e[order.column]
    return [(column == "").asc(), column.desc() if order.down else column.asc(), e.id.desc()]


def actions(c: Connection, by: Principal) -> list[str]:
    """All actions among the events that `by` may see."""
    action = t.events.c.action
    return list(c.scalars(sa.select(action).distinct().where(visible_events(by)).order_by(action)))


def waiting(c: Connection, by: Principal) -> int:
    """The number of requests that wait for a decision of `by`."""
    q = t.requests.c
    query = sa.select(sa.func.count()).where(q.state == RequestState.WAITING)
    if not by.admin:
        query = query.where(q.project.in_([name for name in by.roles if by.leads(name)]))
    return c.scalar(query) or 0


def decided(c: Connection, by: Principal) -> int:
    """The number of decisions about requests of `by` that `by` has not read."""
    q = t.requests.c
    return c.scalar(sa.select(sa.func.count()).where(q.user == by.user, q.unread)) or 0


def users_of_image(c: Connection, sha256: str, by: Principal) -> tuple[list[Json], int]:
    """The slices with an image that `by` may see, and the number of the others."""
    l = t.slices.c
    rows = c.execute(sa.select(l.name, l.project, l.owner).where(l.image == sha256).order_by(l.project, l.name)).all()
    visible = [{"name": row.name, "project": row.project, "owner": row.owner} for row in rows if by.sees(row.project)]
    return visible, len(rows) - len(visible)


def newest(c: Connection, node: str, kind: str, *, ended: bool = False) -> Json | None:
    """The last operation of a kind on a node, or the last that ended; None if there is none."""
    o, p = t.operations.c, t.operation_parts.c
    query = sa.select(o.id).join(t.operation_parts, p.operation == o.id).where(p.node == node, o.kind == kind)
    query = query.order_by(o.created_at.desc(), o.id).limit(1)
    id_ = c.scalar(query.where(o.state.in_(_ENDED)) if ended else query)
    return None if id_ is None else operation_views.operation(c, id_)
