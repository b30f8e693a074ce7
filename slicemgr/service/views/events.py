"""Events, the audit trail, as the JSON of the REST API."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.policy.access import Principal
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, Where, when
from slicemgr.service.views.paging import By, Page
from slicemgr.service.views.present import visible_events
from slicemgr.store import tables as t


def events(
    c: Connection,
    by: Principal | None = None,
    *,
    slice: str = "",
    project: str = "",
    limit: int = 100,
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """The newest events first: all, or those that `by` may see.

    limit: applies without a page. Client addresses of other users are shown to admins only.
    """
    e = t.events.c
    query = sa.select(t.events).where(*where)
    if by is not None:
        query = query.where(visible_events(by))
    if project:
        query = query.where(e.project == project)
    if slice:
        query = query.where(e.slice == slice)
    return [
        {
            "id": row.id,
            "at": when(row.at),
            "user": row.user,
            "action": row.action,
            "slice": row.slice or None,
            "project": row.project or None,
            "detail": row.detail,
            "address": (row.address or None) if by is None or by.admin or row.user == by.user else None,
        }
        for row in paging.rows(c, query, page or Page(limit), By(e.id, down=True))
    ]
