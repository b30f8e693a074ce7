"""Invitations to projects: a PI names an account by its name or mail address, and the account accepts or declines.

The sender does not learn whether the account exists: no query for the sender reads accounts, the answer is the same in
both cases, and the invitation stays listed until it is accepted or expires, also after it was declined. Mail is queued
later, by the agent's process.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import Role
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, users
from slicemgr.service.leases import rules
from slicemgr.service.nodes import operations
from slicemgr.service.outbound import mail
from slicemgr.service.slices import authorized_keys
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_MOST = 200  # of a project at once
_AT_ONCE = 100  # messages in one call
_I = t.project_invitations.c
_Row = Row[*tuple[Any, ...]]


def role(value: Any) -> Role:
    """Refused(INVALID)."""
    if value not in tuple(Role):
        raise invalid("role", f"{str(value)[:40]!r} is unknown", "pi or member")
    return Role(value)


def invitee(value: Any) -> str:
    """A user name or a mail address, in lower case. Refused(INVALID) for what can be neither."""
    if not isinstance(value, str) or not value.strip():
        raise invalid(
            "invitee", "is missing" if value in (None, "") else "must be text", "give a user name or an email address"
        )
    name = value.strip().lower()
    if not (users.is_name(name) or users.is_address(name)):
        raise invalid("invitee", f"{value[:80]!r} is neither a user name nor an email address", "such as bob")
    return name


# for the sender


def create(store: Store, config: Config, project: str, whom: Any, wanted: Any, by: Principal) -> str:
    """Invite a user; the invitation's id. A pending invitation stays as it is; an admin may change its role.

    Refused(CONFLICT) if the user is a member, which members of the project can see anyway.
    """
    access.see_project(by, project)
    as_role = role(wanted)
    with store.write() as c:
        rules.check_exists(c, project)
        return insert(c, config, project, whom, as_role, by)


def insert(c: Connection, config: Config, project: str, whom: Any, as_role: Role, by: Principal) -> str:
    """Runs the same statements whether the account exists or not."""
    access.invite_member(by, project, as_role)
    name, now = invitee(whom), utcnow()
    if project in authentication.roles_of(c, name):
        raise Refused(Code.CONFLICT, f"{name} is already a member of project {project}", field="invitee")
    c.execute(t.project_invitations.delete().where(_I.project == project, _I.expires_at <= now))
    there = c.execute(sa.select(_I.id, _I.role).where(_I.project == project, _I.invitee == name)).first()
    if there is not None and (there.role == as_role or not by.admin):
        return str(there.id)
    id_ = str(there.id) if there is not None else authentication.new_id()
    if there is not None:
        c.execute(t.project_invitations.update().where(_I.id == id_).values(role=as_role, invited_by=by.user))
    else:
        if (c.scalar(sa.select(sa.func.count()).where(_I.project == project)) or 0) >= _MOST:
            message = f"project {project} already has {_MOST} open invitations"
            raise Refused(Code.CONFLICT, message, hint="withdraw one", field="invitee")
        row = {"id": id_, "project": project, "invitee": name, "role": as_role, "invited_by": by.user}
        expires_at = now + config.people.project_invitation
        c.execute(t.project_invitations.insert().values(**row, created_at=now, expires_at=expires_at))
    operations.note(
        c, by.user, "member invite", now, project=project, detail=_detail(name, as_role), address=by.address
    )
    return id_


def withdraw(store: Store, project: str, id: str, by: Principal) -> None:
    """Withdraw an invitation. Refused(NOT_FOUND) if it does not exist, or was accepted."""
    access.see_project(by, project)
    with store.write() as c:
        access.see_invitations(by, project)
        query = sa.select(t.project_invitations).where(_I.project == project, _I.id == id, _I.expires_at > utcnow())
        _withdraw(c, c.execute(query).first(), id, by)


def withdraw_from(c: Connection, project: str, whom: str, by: Principal) -> bool:
    """Withdraw the invitation of this name; whether there was one."""
    query = sa.select(t.project_invitations).where(_I.project == project, _I.invitee == whom.strip().lower())
    row = c.execute(query.where(_I.expires_at > utcnow())).first()
    if row is not None:
        _withdraw(c, row, row.id, by)
    return row is not None


def _withdraw(c: Connection, row: _Row | None, id: str, by: Principal) -> None:
    if row is None:
        raise access.missing("invitation", id)
    access.invite_member(by, row.project, Role(row.role))
    c.execute(t.project_invitations.delete().where(_I.id == row.id))
    details = {"project": row.project, "detail": _detail(row.invitee, row.role), "address": by.address}
    operations.note(c, by.user, "invitation withdraw", utcnow(), **details)


def _detail(name: str, as_role: str) -> str:
    """The detail of an event, without mail addresses, because all members see the event."""
    return f"{'an email address' if '@' in name else name} as {as_role}"


# for the invited user


def accept(store: Store, config: Config, id: str, by: Principal) -> str:
    """Become a member; the project. Refused(NOT_FOUND) for another user's invitation, or one that has expired.

    Refused(CONFLICT) if its sender may no longer invite.
    """
    with store.write() as c:
        row = _own(c, id, by)
        access.answer_invitation(by)
        if not stands(c, row):
            message = f"the sender of this invitation, {row.invited_by}, may no longer invite to project {row.project}"
            raise Refused(Code.CONFLICT, message, hint="ask a PI of the project for a new invitation")
        now, wanted = utcnow(), Role(row.role)
        before = authentication.roles_of(c, by.user).get(row.project)
        for name in _names(c, by.user):
            forget(c, row.project, name)
        if before is None or wanted is Role.PI:
            join(c, row.project, by.user, wanted, by, now)
            authorized_keys.joined(c, row.project, by.user, by)
        details = {"project": row.project, "detail": f"{by.user} {wanted}", "address": by.address}
        operations.note(c, by.user, "member join", now, **details)
    wake(config.wake_socket)
    return str(row.project)


def decline(store: Store, id: str, by: Principal) -> None:
    """Decline an invitation. The sender is not notified. Refused(NOT_FOUND) as for `accept`."""
    with store.write() as c:
        row = _own(c, id, by)
        access.answer_invitation(by)
        c.execute(t.project_invitations.update().where(_I.id == row.id).values(declined=True))
        detail = f"to project {row.project}"
        operations.note(c, by.user, "invitation decline", utcnow(), detail=detail, address=by.address)


def _own(c: Connection, id: str, by: Principal) -> _Row:
    row = c.execute(waiting(c, by.user).where(_I.id == id)).first()
    if row is None:
        raise access.missing("invitation", id)
    return row


def waiting(c: Connection, user: str) -> sa.Select[*tuple[Any, ...]]:
    """The invitations that a user may answer."""
    query = sa.select(t.project_invitations).where(_I.invitee.in_(_names(c, user)), ~_I.declined)
    return query.where(_I.expires_at > utcnow())


def _names(c: Connection, user: str) -> list[str]:
    """The names by which an invitation may address this account: an unconfirmed mail address is not one of them."""
    u, i = t.users.c, t.identities.c
    given = sa.select(u.email).where(u.name == user, u.email_confirmed, u.email != "")
    verified = sa.select(i.email).where(i.user == user, i.email != "")
    return [user, *(one.lower() for one in c.scalars(sa.union(given, verified)))]


def stands(c: Connection, row: _Row) -> bool:
    """Whether the sender of the invitation could still send it."""
    u, m = t.users.c, t.members.c
    leads = sa.exists().where(m.user == u.name, m.project == row.project, m.role == Role.PI)
    may = u.admin if row.role == Role.PI else sa.or_(u.admin, leads)
    return c.scalar(sa.select(u.name).where(u.name == row.invited_by, u.enabled, may)) is not None


# start of a membership


def join(c: Connection, project: str, user: str, as_role: Role, by: Principal, now: datetime) -> None:
    """Insert the membership. The first project becomes the user's default project; later ones do not change it."""
    m, u = t.members.c, t.users.c
    first = not authentication.roles_of(c, user)
    c.execute(t.members.delete().where(m.project == project, m.user == user))
    c.execute(t.members.insert().values(project=project, user=user, role=as_role, created_at=now))
    if first:
        chosen = t.users.update().where(u.name == user).values(default_project=project)
        c.execute(chosen if by.user == user else chosen.where(u.default_project == ""))


def forget(c: Connection, project: str, name: str) -> None:
    """Delete an invitation that is no longer needed."""
    c.execute(t.project_invitations.delete().where(_I.project == project, _I.invitee == name))


# mail


def notify(store: Store, config: Config, now: datetime | None = None) -> int:
    """Queue mail to the accounts that are invited; the number of processed invitations. Call it regularly.

    At most one message a day from a project to a user or address. That to an address without an account has a link that
    creates one (`invited_accounts`), unless the settings exclude it.
    """
    if not config.mail.server:
        return 0
    at = now or utcnow()
    query = sa.select(t.project_invitations).where(_I.notified_at.is_(None), _I.expires_at > at)
    with store.write() as c:
        rows = c.execute(query.order_by(_I.created_at).limit(_AT_ONCE)).all()
        for row in rows:
            c.execute(t.project_invitations.update().where(_I.id == row.id).values(notified_at=at))
            invited = [] if row.declined else accounts_of(c, row.invitee)
            if not (invited or row.declined) and "@" in row.invitee and may_create_account(config):
                _send_link(c, config, row, at)
            for user in invited:
                about = mail.About(user, project="")
                subject = f"{row.invited_by} invited you to project {row.project}"
                key = f"invitation {row.project} {user} {at:%Y-%m-%d}"
                mail.queue(c, config, key, about, subject, _letter(config, row, user), at)
    return len(rows)


def may_create_account(config: Config) -> bool:
    """Whether an invitation to a mail address has a link that creates an account with a password."""
    return config.people.invited_accounts and bool(config.web.url) and (config.oidc.passwords or not config.oidc.issuer)


def _send_link(c: Connection, config: Config, row: _Row, at: datetime) -> None:
    """Only the recipient of the mail gets the secret, not the sender of the invitation."""
    secret, key = secrets.token_urlsafe(32), f"invitation {row.project} {row.invitee} {at:%Y-%m-%d}"
    subject = f"{row.invited_by} invited you to project {row.project}"
    body = (
        f"{row.invited_by} invited you to project {row.project} as {row.role}.\n\n"
        f"Choose a user name and a password until {row.expires_at:%Y-%m-%dT%H:%M:%SZ} on the page\n"
        f"{config.web.url}/invitation/{secret}\n\n"
        f"The link works once. If you have an account already, ask {row.invited_by} to invite\n"
        f"your user name.\n"
    )
    if mail.queue_to(c, config, key, row.invitee, subject, body, at):
        c.execute(t.project_invitations.update().where(_I.id == row.id).values(link=authentication.digest(secret)))


def accounts_of(c: Connection, name: str) -> list[str]:
    """The accounts that an invitation to a user name or mail address is for."""
    u, i = t.users.c, t.identities.c
    confirmed = sa.and_(u.email_confirmed, sa.func.lower(u.email) == name)
    verified = u.name.in_(sa.select(i.user).where(sa.func.lower(i.email) == name))
    return list(c.scalars(sa.select(u.name).where(sa.or_(u.name == name, confirmed, verified))))


def _letter(config: Config, row: _Row, user: str) -> str:
    where = f"\n{config.web.url}/projects\n" if config.web.url else ""
    return (
        f"{row.invited_by} invited you ({user}) to project {row.project} as {row.role}.\n\n"
        f"You can accept until {row.expires_at:%Y-%m-%dT%H:%M:%SZ} on the page Projects\n"
        f"or with `slicectl project accept {row.project}`. Decline it with\n"
        f"`slicectl project decline {row.project}`.\n{where}"
    )
