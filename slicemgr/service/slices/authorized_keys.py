"""The SSH keys of a slice: those of its request, and the current ones of its owner's account.

If the owner left the project or was disabled: the keys of the project's PIs, and of the request's keys those that
belong to another member.

A change of members or keys updates the rows of the slices and adds an operation for their slivers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import Desired, Role
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import operations
from slicemgr.service.slices import request_keys
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_Where = sa.ColumnElement[bool]


def refresh(c: Connection, user: str, by: Principal, why: str) -> None:
    """Update the keys of the slices of `user`, or of projects that `user` leads. why: for the events."""
    m, l = t.members.c, t.slices.c
    led = sa.select(m.project).where(m.user == user, m.role == Role.PI)
    _spread(c, sa.or_(l.owner == user, l.project.in_(led)), by, why, utcnow())


def joined(c: Connection, project: str, user: str, by: Principal) -> None:
    """Update the keys after a user joined, returned, or changed the role."""
    _spread(c, t.slices.c.project == project, by, f"{user} is in project {project}", utcnow())


def removed(c: Connection, user: str, lines: Collection[str], by: Principal, why: str) -> None:
    """Remove keys that a user deleted from the user's slices, also those of the request."""
    _forget(c, t.slices.c.owner == user, lines)
    refresh(c, user, by, why)


def left(c: Connection, projects: Iterable[str], user: str, by: Principal, why: str) -> None:
    """Remove the keys of a user who left these projects or was disabled from all their slices, unless another member
    has them.
    """
    k, m, u, l = t.ssh_keys.c, t.members.c, t.users.c, t.slices.c
    lines = list(c.scalars(sa.select(k.line).where(k.user == user)))
    for project in projects:
        mates = sa.select(m.user).join(t.users, u.name == m.user).where(m.project == project, m.user != user, u.enabled)
        others = request_keys.without_comments(c.scalars(sa.select(k.line).where(k.user.in_(mates))))
        _forget(c, l.project == project, [line for line in lines if request_keys.without_comment(line) not in others])
        _spread(c, l.project == project, by, why, utcnow())


def _forget(c: Connection, where: _Where, lines: Collection[str]) -> None:
    l, gone = t.slices.c, request_keys.without_comments(lines)
    for id_, named in c.execute(sa.select(l.id, l.named_keys).where(where)).all() if gone else ():
        kept = [line for line in named if request_keys.without_comment(line) not in gone]
        if kept != named:
            c.execute(t.slices.update().where(l.id == id_).values(named_keys=kept))


def _spread(c: Connection, where: _Where, by: Principal, why: str, now: datetime) -> None:
    l, s = t.slices.c, t.slivers.c
    leaving = sa.exists().where(s.slice == l.id, s.desired == Desired.ABSENT)
    columns = (l.id, l.name, l.project, l.owner, l.ssh_keys, l.named_keys)
    rows = c.execute(sa.select(*columns).where(where, ~leaving)).all()
    own = _own(c, {(row.owner, row.project) for row in rows})
    theirs = _members(c, {row.project for row in rows if (row.owner, row.project) not in own})
    for row in rows:
        if (row.owner, row.project) in own:
            want = request_keys.union(row.named_keys, own[row.owner, row.project])
        else:
            known = request_keys.without_comments(line for _, line in theirs[row.project])
            named = [line for line in row.named_keys if request_keys.without_comment(line) in known]
            want = request_keys.union(named, (line for role, line in theirs[row.project] if role == Role.PI))
        if set(want) != set(row.ssh_keys):
            c.execute(t.slices.update().where(l.id == row.id).values(ssh_keys=want))
            c.execute(t.slivers.update().where(s.slice == row.id).values(keys_missing=""))
            _ask(c, row, by, why, now)


def _ask(c: Connection, row: Row[*tuple[Any, ...]], by: Principal, why: str, now: datetime) -> None:
    s = t.slivers.c
    slivers = c.execute(sa.select(s.id, s.node).where(s.slice == row.id).order_by(s.idx)).all()
    if not slivers:
        return
    ids = {sliver.id: sliver.node for sliver in slivers}
    subject = operations.Subject(slice_id=row.id, slice_name=row.name, slivers=ids, project=row.project)
    operations.add(c, "keys", subject, by.user, now)
    about = {"slice": row.name, "project": row.project}
    operations.note(c, by.user, "keys", now, **about, detail=why, address=by.address)


def _members(c: Connection, projects: Collection[str]) -> dict[str, list[tuple[str, str]]]:
    """Role and line of each key of the enabled members."""
    u, m, k = t.users.c, t.members.c, t.ssh_keys.c
    found: dict[str, list[tuple[str, str]]] = {project: [] for project in projects}
    query = sa.select(m.project, m.role, k.line).join(t.users, u.name == m.user).join(t.ssh_keys, k.user == m.user)
    for project, role, line in c.execute(query.where(m.project.in_(projects), u.enabled).order_by(k.created_at, k.id)):
        found[project].append((role, line))
    return found


def _own(c: Connection, owners: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """The account keys of each (owner, project), for owners who may have slices there."""
    u, m, k = t.users.c, t.members.c, t.ssh_keys.c
    names = {owner for owner, _ in owners}
    admins = {row.name: row.admin for row in c.execute(sa.select(u.name, u.admin).where(u.name.in_(names), u.enabled))}
    member = {(user, project) for user, project in c.execute(sa.select(m.user, m.project).where(m.user.in_(names)))}
    lines: dict[str, list[str]] = {}
    for user, line in c.execute(sa.select(k.user, k.line).where(k.user.in_(names)).order_by(k.created_at, k.id)):
        lines.setdefault(user, []).append(line)
    return {one: lines.get(one[0], []) for one in owners if one[0] in admins and (admins[one[0]] or one in member)}
