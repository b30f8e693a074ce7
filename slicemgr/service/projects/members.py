"""Members of projects: set by admins, changed and removed.

Other users become members by an invitation (`service.projects.invitations`), because membership decides to which
project the slices of a user belong.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import RequestState, Role
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.leases import rules
from slicemgr.service.nodes import operations
from slicemgr.service.projects import invitations
from slicemgr.service.slices import authorized_keys
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


def set_member(store: Store, config: Config, name: str, user: str, role: Any, by: Principal) -> None:
    """Make `user` a member or change the role as an admin; a PI sends an invitation to a user who is no member yet.

    The answer to a PI does not depend on whether the account exists.
    """
    access.see_project(by, name)
    wanted = invitations.role(role)
    with store.write() as c:
        rules.check_exists(c, name)
        before = authentication.roles_of(c, user).get(name)
        if before is None and not by.admin:
            invitations.insert(c, config, name, user, wanted, by)
            return
        if before is None:
            access.put_member(by, name)
        else:
            access.set_member(by, name, wanted, before)
        put(c, name, user, wanted, by)
        authorized_keys.joined(c, name, user, by)
    wake(config.wake_socket)


def put(c: Connection, project: str, user: str, role: Role, by: Principal, field: str = "user") -> None:
    """Make a user a member without an invitation. Refused(INVALID) if there is no such user, so for admins only."""
    if c.scalar(sa.select(t.users.c.name).where(t.users.c.name == user)) is None:
        raise invalid(
            field, f"there is no user {user[:80]!r}", "an admin can create the account with `slicectl user invite`"
        )
    now = utcnow()
    invitations.join(c, project, user, role, by, now)
    invitations.forget(c, project, user)
    operations.note(c, by.user, "member set", now, project=project, detail=f"{user} {role}", address=by.address)


def remove_member(store: Store, config: Config, name: str, user: str, by: Principal) -> None:
    """Remove a member, or withdraw the pending invitation of the user.

    The user's slices stay in the project, without the user's SSH keys. Waiting requests are withdrawn.
    Refused(CONFLICT) if the only PI leaves a project that has slices, because only an admin could then manage these.
    """
    m, q = t.members.c, t.requests.c
    with store.write() as c:
        access.see_project(by, name)
        rules.check_exists(c, name)
        before = authentication.roles_of(c, user).get(name)
        if before is None:
            access.describe_project(by, name)
            if invitations.withdraw_from(c, name, user, by):
                return
            raise Refused(
                Code.NOT_FOUND,
                f"{user[:80]} is not a member of project {name}",
                hint="list the members with `slicectl project show`",
            )
        access.remove_member(by, name, user, before)
        if by.user == user:
            check_not_only_pi(c, name, user, before)
        now = utcnow()
        _keep_default(c, name, user, by)
        c.execute(t.members.delete().where(m.project == name, m.user == user))
        waiting = (q.project == name, q.user == user, q.state == RequestState.WAITING)
        ended = {"state": RequestState.WITHDRAWN, "decided_at": now, "decided_by": by.user}
        c.execute(t.requests.update().where(*waiting).values(ended))
        authorized_keys.left(c, [name], user, by, f"{user} left project {name}")
        operations.note(c, by.user, "member remove", now, project=name, detail=user, address=by.address)
    wake(config.wake_socket)


def check_not_only_pi(c: Connection, project: str, user: str, role: Role) -> None:
    """Refused(CONFLICT) if the user, who has that role, is the only PI of a project with slices."""
    if role is not Role.PI:
        return
    m, u, l = t.members.c, t.users.c, t.slices.c
    pis = sa.select(m.user).join(t.users, u.name == m.user).where(m.project == project, m.role == Role.PI, u.enabled)
    if c.scalar(pis.where(m.user != user).limit(1)) is not None:
        return
    count = c.scalar(sa.select(sa.func.count()).where(l.project == project)) or 0
    if count:
        have = "1 slice" if count == 1 else f"{count} slices"
        hint = "delete the slices first, or ask an admin of the testbed to make another member PI"
        raise Refused(Code.CONFLICT, f"{user} is the only PI of project {project}, which has {have}", hint=hint)


def _keep_default(c: Connection, project: str, user: str, by: Principal) -> None:
    """After leaving, the only remaining project becomes the default.

    After a removal by another user, none is chosen.
    """
    u = t.users.c
    chosen = c.scalar(sa.select(u.default_project).where(u.name == user))
    if by.user != user:
        if not chosen:
            _choose(c, user, project)
        return
    others = [one for one in authentication.roles_of(c, user) if one != project]
    if chosen in ("", project):
        _choose(c, user, others[0] if len(others) == 1 else "")


def _choose(c: Connection, user: str, project: str) -> None:
    c.execute(t.users.update().where(t.users.c.name == user).values(default_project=project))


def project_ends(c: Connection, project: str) -> None:
    """Call before a project is deleted: members without a default keep it as default, so that no other project is
    chosen.
    """
    u, m = t.users.c, t.members.c
    inside = sa.select(m.user).where(m.project == project)
    c.execute(t.users.update().where(u.name.in_(inside), u.default_project == "").values(default_project=project))
