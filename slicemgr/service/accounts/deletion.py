"""Delete accounts. Events and operations keep the name, which no other account gets afterwards."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import wake
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, users
from slicemgr.service.nodes import operations
from slicemgr.service.projects import members
from slicemgr.service.slices import authorized_keys
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow


def delete(store: Store, config: Config, name: str, by: Principal) -> None:
    """Delete an account with its keys, tokens, sessions, memberships and requests.

    Its keys leave all slices. Refused(CONFLICT) while it owns slices, for the built-in admin, for the own account, and
    for the only PI of a project with slices.
    """
    with store.write() as c:
        users.find(c, name)
        projects = authentication.roles_of(c, name)
        access.delete_user(by, name, projects)
        _check_free(c, name, by)
        for project, role in projects.items():
            members.check_not_only_pi(c, project, name, role)
        authorized_keys.left(c, projects, name, by, f"the account {name} was deleted")
        c.execute(t.project_invitations.delete().where(t.project_invitations.c.invitee == name))
        c.execute(t.users.delete().where(t.users.c.name == name))
        operations.note(c, by.user, users.DELETED, utcnow(), detail=name, address=by.address)
    wake(config.wake_socket)


def _check_free(c: Connection, name: str, by: Principal) -> None:
    if name == ADMIN:
        raise Refused(Code.CONFLICT, f"{ADMIN} is a built-in account", hint="it cannot be deleted")
    if name == by.user:
        raise Refused(Code.CONFLICT, "you would delete your own account", hint="ask another admin")
    l = t.slices.c
    found = c.execute(sa.select(l.project, l.name).where(l.owner == name).order_by(l.project, l.name)).all()
    if found:
        own = ", ".join(f"{row.project}/{row.name}" for row in found[:5]) + (", …" if len(found) > 5 else "")
        hint = f"delete them first, or disable the account with `slicectl user disable {name}`"
        raise Refused(Code.CONFLICT, f"{name} owns slices: {own}", hint=hint)
