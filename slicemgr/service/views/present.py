"""The log of a name: rows of the present project, not of a deleted one that had the same name."""

from __future__ import annotations

import sqlalchemy as sa

from slicemgr.policy.access import Principal
from slicemgr.store import tables as t


def of_present_project(project: sa.ColumnElement[str], at: sa.ColumnElement[object]) -> sa.ColumnElement[bool]:
    """Rows since the project with this name was created. Those before belong to other tenants."""
    p = t.projects.c
    return sa.exists().where(p.name == project, p.created_at <= at)


def visible_events(by: Principal) -> sa.ColumnElement[bool]:
    """An admin sees all events, other users those of their projects and their own."""
    e = t.events.c
    if by.admin:
        return sa.true()
    own = sa.and_(e.project == "", e.user == by.user)
    return sa.or_(sa.and_(e.project.in_(tuple(by.roles)), of_present_project(e.project, e.at)), own)
