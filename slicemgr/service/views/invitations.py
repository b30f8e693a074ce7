"""Invitations to projects as the JSON of the REST API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.leases import rules
from slicemgr.service.projects import invitations
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, when
from slicemgr.service.views.paging import By, Page
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_I = t.project_invitations.c


def of_projects(c: Connection, projects: Collection[str]) -> dict[str, list[Json]]:
    """The pending invitations by project, for users who lead it."""
    query = sa.select(t.project_invitations).where(_I.project.in_(projects), _I.expires_at > utcnow())
    found: dict[str, list[Json]] = defaultdict(list)
    for row in c.execute(query.order_by(_I.created_at, _I.id)):
        found[row.project].append(_shown(row))
    return found


def of_project(c: Connection, project: str, by: Principal, page: Page | None = None) -> list[Json]:
    """The pending invitations, the oldest first. Refused(NOT_FOUND), Refused(DENIED)."""
    access.see_invitations(by, project)
    rules.check_exists(c, project)
    query = sa.select(t.project_invitations).where(_I.project == project, _I.expires_at > utcnow())
    return [_shown(row) for row in paging.rows(c, query, page, By(_I.created_at), By(_I.id))]


def of_user(c: Connection, by: Principal, page: Page | None = None) -> list[Json]:
    """The invitations that the user may answer, the oldest first."""
    return [_shown(row) for row in paging.rows(c, invitations.waiting(c, by.user), page, By(_I.created_at), By(_I.id))]


def one(c: Connection, id: str) -> Json:
    """The invitation with this id. The caller has checked access."""
    return _shown(c.execute(sa.select(t.project_invitations).where(_I.id == id)).one())


def _shown(row: Row[*tuple[Any, ...]]) -> Json:
    return {
        "id": row.id,
        "project": row.project,
        "invitee": row.invitee,
        "role": row.role,
        "invited_by": row.invited_by,
        "created_at": when(row.created_at),
        "expires_at": when(row.expires_at),
    }
