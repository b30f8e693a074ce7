"""Users, projects, credentials and requests as the JSON of the REST API."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import Desired
from slicemgr.policy import access, quota
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import Amounts, Quota
from slicemgr.service.projects import projects
from slicemgr.service.views import invitations, paging
from slicemgr.service.views.formats import Json, Where, fingerprint, when
from slicemgr.service.views.paging import By, Page
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_USER = ("name", "full_name", "email", "admin", "enabled", "created_at", "default_project")

_FOR_MATES = ("name", "full_name", "projects")


def me(c: Connection, by: Principal) -> Json:
    """The authenticated user, with the scope of the credential."""
    return {**users(c, by, by.user)[0], "scope": by.scope.value}


def users(c: Connection, by: Principal, name: str | None = None, page: Page | None = None) -> list[Json]:
    """All users that `by` may see, or the one called `name`. Refused(NOT_FOUND)."""
    u, m, i = t.users.c, t.members.c, t.invitations.c
    invited = sa.select(i.expires_at).where(i.user == u.name).scalar_subquery().label("invited_until")
    has_password = (u.password != "").label("has_password")
    from_issuer, known_as = _identity()
    query = sa.select(*(u[column] for column in _USER), has_password, invited, from_issuer, known_as)
    if not by.admin:
        mates = sa.select(m.user).where(m.project.in_(tuple(by.roles)))
        query = query.where(sa.or_(u.name == by.user, u.name.in_(mates)))
    rows = paging.rows(c, query if name is None else query.where(u.name == name), page, By(u.name))
    if name is not None and not rows:
        raise access.missing("user", name)
    roles: dict[str, Json] = defaultdict(dict)
    belongs = sa.select(m.user, m.project, m.role).order_by(m.project)
    visible = access.visible(by)
    if visible is not None:
        belongs = belongs.where(sa.or_(m.project.in_(visible), m.user == by.user))
    if name is not None or page is not None:
        belongs = belongs.where(m.user.in_([row.name for row in rows]))
    for user, project, role in c.execute(belongs):
        roles[user][project] = role
    return [_user(row, roles[row.name], whole=by.admin or row.name == by.user) for row in rows]


def _identity() -> tuple[sa.Label[Any], sa.Label[Any]]:
    """Whether an OpenID Connect issuer created the account, and its user name at the issuer."""
    u, i = t.users.c, t.identities.c
    made = sa.exists().where(i.user == u.name, i.made).label("from_issuer")
    called = sa.func.max(sa.case((i.email != "", i.email), else_=i.subject))
    return made, sa.select(called).where(i.user == u.name).scalar_subquery().label("known_as")


def _user(row: Row[*tuple[Any, ...]], roles: Json, *, whole: bool) -> Json:
    """whole: with the fields that only the user and admins may see; otherwise they are None."""
    found = {
        "name": row.name,
        "full_name": row.full_name or None,
        "email": row.email or None,
        "admin": row.admin,
        "enabled": row.enabled,
        "created_at": when(row.created_at),
        "projects": roles,
        "default_project": row.default_project or None,
        "origin": "openid" if row.from_issuer else "local",
        "openid": row.known_as,
        "has_password": row.has_password,
        "invited_until": when(row.invited_until),
    }
    return found if whole else {key: value if key in _FOR_MATES else None for key, value in found.items()}


def project_list(c: Connection, by: Principal, name: str | None = None, page: Page | None = None) -> list[Json]:
    """The projects that `by` may see with their limits and use, or the one called `name`. Refused(NOT_FOUND)."""
    if name is not None:
        access.see_project(by, name)
    p, visible = t.projects.c, access.visible(by)
    query = sa.select(t.projects)
    if visible is not None:
        query = query.where(p.name.in_(visible))
    rows = paging.rows(c, query if name is None else query.where(p.name == name), page, By(p.name))
    if name is not None and not rows:
        raise access.missing("project", name)
    names = [row.name for row in rows]
    limits, used, members = projects.all_limits(c, names), projects.all_used(c, names), _members(c, names, by)
    invited = invitations.of_projects(c, [one for one in names if by.leads(one)])
    return [
        {
            "name": row.name,
            "description": row.description or None,
            "created_at": when(row.created_at),
            "role": by.roles.get(row.name),
            "used": _used(used[row.name]),
            "quota": _quota(limits[row.name, projects.QUOTA]),
            "ceiling": _quota(limits[row.name, projects.CEILING]),
            "members": members[row.name],
            "invitations": invited[row.name] if by.leads(row.name) else None,
        }
        for row in rows
    ]


def _members(c: Connection, names: Collection[str], by: Principal) -> dict[str, list[Json]]:
    """`enabled` is shown to the user and to admins only."""
    m = t.members.c
    columns = (m.project, m.user, m.role, t.users.c.full_name, t.users.c.enabled)
    query = sa.select(*columns).join(t.users, t.users.c.name == m.user).where(m.project.in_(names))
    members: dict[str, list[Json]] = defaultdict(list)
    for row in c.execute(query.order_by(m.role.desc(), m.user)):
        enabled = row.enabled if by.admin or row.user == by.user else None
        member = {"user": row.user, "full_name": row.full_name or None, "role": row.role, "enabled": enabled}
        members[row.project].append(member)
    return members


def _used(amounts: Amounts) -> Json:
    return {name: getattr(amounts, name) for name in quota.RESOURCES} | {"vcpus": round(amounts.vcpus, 6)}


def _quota(most: Quota) -> Json:
    """lease in seconds; None: not limited."""
    lease = None if most.lease is None else int(most.lease.total_seconds())
    return {**{name: getattr(most, name) for name in quota.RESOURCES}, "lease": lease}


def keys(c: Connection, user: str, id: str | None = None, page: Page | None = None) -> list[Json]:
    """The SSH keys of a user. running_slices: slices that run and accept the key."""
    k = t.ssh_keys.c
    query = sa.select(t.ssh_keys).where(k.user == user)
    if id is not None:
        query = query.where(k.id == id)
    rows = paging.rows(c, query, page, By(k.created_at), By(k.id))
    accepted = _accepted(c, user) if rows else Counter()
    return [
        {
            "id": row.id,
            "user": row.user,
            "type": row.line.split()[0],
            "fingerprint": fingerprint(row.line),
            "comment": " ".join(row.line.split()[2:]) or None,
            "key": row.line,
            "created_at": when(row.created_at),
            "running_slices": accepted[row.line.split()[1]],
        }
        for row in rows
    ]


def _accepted(c: Connection, user: str) -> Counter[str]:
    """The number of running slices in the projects of the user that accept each key, by the base64 part of its line."""
    l, s, m = t.slices.c, t.slivers.c, t.members.c
    own = sa.or_(l.owner == user, l.project.in_(sa.select(m.project).where(m.user == user)))
    runs = sa.exists().where(s.slice == l.id, s.desired == Desired.RUNNING)
    lists = c.scalars(sa.select(l.ssh_keys).where(own, runs))
    return Counter(blob for keys in lists for blob in {line.split()[1] for line in keys})


def tokens(c: Connection, user: str, by: Principal, id: str | None = None, page: Page | None = None) -> list[Json]:
    k = t.tokens.c
    query = sa.select(t.tokens).where(k.user == user)
    if id is not None:
        query = query.where(k.id == id)
    return [
        {
            "id": row.id,
            "user": row.user,
            "label": row.label,
            "scope": row.scope,
            "created_at": when(row.created_at),
            "expires_at": when(row.expires_at),
            "used_at": when(row.used_at),
            "used_from": row.used_from or None,
            "current": row.id == by.credential,
        }
        for row in paging.rows(c, query, page, By(k.created_at), By(k.id))
    ]


def sessions(c: Connection, user: str, by: Principal, page: Page | None = None) -> list[Json]:
    """The sessions that have not ended, the newest first."""
    s = t.sessions.c
    query = sa.select(t.sessions).where(s.user == user, s.expires_at > utcnow())
    return [
        {
            "id": row.id,
            "user": row.user,
            "created_at": when(row.created_at),
            "expires_at": when(row.expires_at),
            "used_at": when(row.used_at),
            "address": row.address or None,
            "agent": row.agent or None,
            "current": row.id == by.credential,
        }
        for row in paging.rows(c, query, page, By(s.created_at, down=True), By(s.id))
    ]


def requests(
    c: Connection,
    by: Principal,
    id: str | None = None,
    *,
    state: str = "",
    project: str = "",
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """The newest first: the user's own and, for a PI, the project's; or the one with this id. Refused(NOT_FOUND)."""
    q = t.requests.c
    query = sa.select(t.requests).where(*where)
    if not by.admin:
        led = [name for name in by.roles if by.leads(name)]
        query = query.where(sa.or_(q.user == by.user, q.project.in_(led)))
    for column, value in ((q.id, id), (q.state, state), (q.project, project)):
        if value:
            query = query.where(column == value)
    rows = paging.rows(c, query, page, By(q.created_at, down=True), By(q.id))
    if id is not None and not rows:
        raise access.missing("request", id)
    return [_request(row) for row in rows]


def _request(row: Row[*tuple[Any, ...]]) -> Json:
    return {
        "id": row.id,
        "state": row.state,
        "action": "create" if row.slice is None else "resize",
        "project": row.project,
        "user": row.user,
        "name": row.name,
        "reason": row.reason,
        "exceeds": row.exceeds or None,
        "wanted": row.body,
        "created_at": when(row.created_at),
        "decided_at": when(row.decided_at),
        "decided_by": row.decided_by or None,
        "answer": row.answer or None,
        "operation": row.operation or None,
        "granted": row.granted,
        "unread": bool(row.unread),
    }
