"""User accounts: created with an invitation link that works once, enabled and disabled by admins."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc.wake import wake
from slicemgr.model import DEFAULT_PROJECT
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, known_browsers, password_policy
from slicemgr.service.accounts.sign_in import Authenticator
from slicemgr.service.nodes import operations
from slicemgr.service.slices import authorized_keys
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

LONGEST_NAME = 32
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_EMAIL = re.compile(r"[^\s@<>,;:\"()\[\]\\]{1,64}@[A-Za-z0-9.-]{1,189}")
_RESERVED = ("lease", "agent", "me")  # names of actors in events that are not people
_DESCRIPTION = ("full_name", "email")
_ACCOUNT = ("admin", "enabled")
DELETED = "user delete"  # the action of the event whose detail is the name of a deleted account


@dataclass(frozen=True, slots=True)
class Invitation:
    """A new invitation link. secret: the end of the link; only its hash is stored."""

    user: str
    secret: str
    expires_at: datetime


def user_name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise invalid("name", "is missing" if value in (None, "") else "must be text")
    if not is_name(value):
        hint = f"up to {LONGEST_NAME} lower-case letters, digits and hyphens, a letter first"
        raise invalid("name", f"{value[:80]!r} is not a valid user name", hint)
    return value


def is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None and len(value) <= LONGEST_NAME and value not in _RESERVED


def is_address(value: str) -> bool:
    return len(value) <= 254 and _EMAIL.fullmatch(value) is not None


def description(raw: Mapping[str, Any], known: tuple[str, ...] = _DESCRIPTION + _ACCOUNT) -> dict[str, Any]:
    """The fields of an account in `raw`, validated. Refused(INVALID)."""
    for unknown in sorted(set(raw) - set(known)):
        raise invalid(unknown[:64], "unknown field", f"the fields are {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name in _ACCOUNT:
            if not isinstance(value, bool):
                raise invalid(name, "must be true or false")
        elif not isinstance(value, str) or not value.isprintable() or len(value) > 254:
            raise invalid(name, "must be a line of text", "at most 254 characters")
        elif name == "email" and value and not _EMAIL.fullmatch(value):
            raise invalid(name, f"{value[:80]!r} is not an email address", "such as me@example.org")
        values[name] = value
    return values


def invite(store: Store, config: Config, raw: Mapping[str, Any], by: Principal) -> Invitation:
    """A new account without a password, and the link with which its user sets one. Refused(CONFLICT): the name is
    taken.

    raw: name, and full_name, email, admin.
    """
    access.invite(by)
    name = user_name(raw.get("name"))
    values = description({key: value for key, value in raw.items() if key != "name"}, (*_DESCRIPTION, "admin"))
    now = utcnow()
    try:
        with store.write() as c:
            add(c, name, values, now)
            operations.note(c, by.user, "user invite", now, detail=name, address=by.address)
            return _link(c, config, name, by, now)
    except exc.IntegrityError as error:
        raise taken(name) from error


def add(c: Connection, name: str, values: Mapping[str, Any], now: datetime) -> None:
    """Insert an account without a password. values: those of `description`, with a confirmed mail address.

    Refused(CONFLICT) for the name of a deleted account. Raises IntegrityError for one that is `taken`.
    """
    _check_not_deleted(c, name)
    row = {"admin": False, **values, "email_confirmed": bool(values.get("email"))}
    c.execute(t.users.insert().values(**row, name=name, created_at=now))


def taken(name: str) -> Refused:
    return Refused(Code.CONFLICT, f"there is already a user {name!r}", hint="choose another name", field="name")


def deleted(c: Connection, prefix: str) -> set[str]:
    """The names of deleted accounts that begin with `prefix`, as long as the events about their deletion are kept."""
    e = t.events.c
    found = c.scalars(sa.select(e.detail).where(e.action == DELETED, e.detail.startswith(prefix, autoescape=True)))
    return set(found)


def _check_not_deleted(c: Connection, name: str) -> None:
    """Refuse the name of a deleted account: its events and operations would seem to be those of the new user."""
    if name in deleted(c, name):
        message = f"an account called {name} was deleted, and the log still names it"
        raise Refused(Code.CONFLICT, message, hint="choose another name", field="name")


def invite_again(store: Store, config: Config, name: str, by: Principal) -> Invitation:
    """A new link for a user who lost the link or the password. The old link becomes invalid, the old password stays
    valid.
    """
    with store.write() as c:
        row = find(c, name)
        access.change_user(by, name, authentication.roles_of(c, name))
        if not row.enabled:
            raise Refused(Code.CONFLICT, f"the account {name} is disabled", hint="enable it first")
        now = utcnow()
        operations.note(c, by.user, "user link", now, detail=name, address=by.address)
        return _link(c, config, name, by, now)


def _link(c: Connection, config: Config, name: str, by: Principal, now: datetime) -> Invitation:
    made = Invitation(name, secrets.token_urlsafe(32), now + config.people.invitation)
    i = t.invitations
    c.execute(i.delete().where(i.c.user == name))
    row = {"user": name, "hash": authentication.digest(made.secret), "invited_by": by.user}
    c.execute(i.insert().values(**row, created_at=now, expires_at=made.expires_at))
    return made


def invited(store: Store, secret: str) -> str:
    """The user of a link. Refused(NOT_FOUND) if it is unknown, was used, or has expired."""
    with store.read() as c:
        return _invited(c, secret, utcnow())


def _invited(c: Connection, secret: str, now: datetime) -> str:
    i = t.invitations.c
    query = sa.select(i.user, i.expires_at, t.users.c.enabled).join(t.users, t.users.c.name == i.user)
    row = c.execute(query.where(i.hash == authentication.digest(secret))).first()
    if row is None or row.expires_at <= now or not row.enabled:
        hint = "ask an admin of the testbed for a new one"
        raise Refused(Code.NOT_FOUND, "this link was already used or has expired", hint=hint, field="token")
    return str(row.user)


def use_up(c: Connection, secret: str, now: datetime) -> str:
    """Invalidate a link; its user. Refused(NOT_FOUND)."""
    user = _invited(c, secret, now)
    c.execute(t.invitations.delete().where(t.invitations.c.user == user))
    return user


def accept(store: Store, authenticator: Authenticator, secret: str, password: str, address: str) -> str:
    """Set the password of the user of the link; the user's name. The link becomes invalid, and sessions end."""
    user = invited(store, secret)
    with store.read() as c:
        password_policy.check(c, authenticator.openid, user)
    hashed = authenticator.passwords.hash(password, user)
    with store.write() as c:
        now = utcnow()
        user = use_up(c, secret, now)  # again, because two requests with this link may be concurrent
        _set_password(c, user, hashed)
        operations.note(c, user, "invitation accept", now, address=address)
    return user


def change_password(store: Store, authenticator: Authenticator, old: str, new: str, by: Principal) -> None:
    """Set a new password and end other sessions. Refused(INVALID) if the old one is wrong or the new one not
    acceptable.
    """
    access.changes(by, "change the password")
    authenticator.attempts.begin(by.user, by.address, by.credential)
    with store.read() as c:
        hashed = c.scalar(sa.select(t.users.c.password).where(t.users.c.name == by.user)) or ""
    if not authenticator.passwords.matches(hashed, old):
        raise invalid(
            "old", "is not the current password", "ask an admin of the testbed for a new link if you forgot it"
        )
    authenticator.attempts.forgive(by.user, by.address, by.credential)
    fresh = authenticator.passwords.hash(new, by.user)
    with store.write() as c:
        _set_password(c, by.user, fresh, but=by.credential)
        operations.note(c, by.user, "password change", utcnow(), address=by.address)


def _set_password(c: Connection, user: str, hashed: str, but: str = "") -> None:
    c.execute(t.users.update().where(t.users.c.name == user).values(password=hashed))
    c.execute(t.sessions.delete().where(t.sessions.c.user == user, t.sessions.c.id != but))
    c.execute(t.sign_in_links.delete().where(t.sign_in_links.c.user == user))
    known_browsers.forget(c, user)


def change(store: Store, name: str, raw: Mapping[str, Any], by: Principal, config: Config | None = None) -> None:
    """Change an account: full_name and email by the user or an admin; admin and enabled by an admin.

    default_project by the user alone; None: no default. An address that the user enters is not a confirmed one. The SSH
    keys of a disabled user are removed from all slices. config: wakes the agent for that. Refused(CONFLICT) for the
    built-in admin, and for a user's own account.
    """
    values = description({key: value for key, value in raw.items() if key != "default_project"})
    with store.write() as c:
        row = find(c, name)
        own = authentication.roles_of(c, name)
        access.describe_user(by, name, own)
        if any(one in values for one in _ACCOUNT):
            access.change_user(by, name, own)
            _check_not_locked_out(name, values, by)
        if "default_project" in raw:
            values["default_project"] = _default_project(raw["default_project"], name, own, by)
        if not values:
            return
        if values.get("email", row.email) != row.email or (by.user != name and values.get("email")):
            values["email_confirmed"] = by.admin and bool(values["email"])
        c.execute(t.users.update().where(t.users.c.name == name).values(values))
        if values.get("enabled") is False:
            c.execute(t.sessions.delete().where(t.sessions.c.user == name))
            known_browsers.forget(c, name)
            for table in (t.invitations, t.sign_in_links):
                c.execute(table.delete().where(table.c.user == name))
        if values.get("enabled") is False:
            authorized_keys.left(c, own, name, by, f"{name} was disabled")
        if any(one in values for one in _ACCOUNT):
            authorized_keys.refresh(c, name, by, f"the account {name} was changed")
        changed = sorted((key, value) for key, value in values.items() if key != "email_confirmed")
        detail = f"{name}: " + ", ".join(f"{key} {value}" for key, value in changed)
        operations.note(c, by.user, "user change", utcnow(), detail=detail, address=by.address)
    if config is not None:
        wake(config.wake_socket)


def _default_project(value: Any, name: str, own: Collection[str], by: Principal) -> str:
    access.choose_project(by, name)
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or value not in (*own, *((DEFAULT_PROJECT,) if by.admin else ())):
        hint = f"one of {', '.join(sorted(own))}" if own else "you are not a member of a project"
        raise invalid("default_project", f"{str(value)[:40]!r} is not one of your projects", hint)
    return value


def _check_not_locked_out(name: str, values: Mapping[str, Any], by: Principal) -> None:
    loses = [key for key in _ACCOUNT if values.get(key) is False]
    if loses and name == ADMIN:
        raise Refused(Code.CONFLICT, f"{ADMIN} is a built-in account", hint="it cannot be changed", field=loses[0])
    if loses and name == by.user:
        raise Refused(Code.CONFLICT, "you would lock yourself out", hint="ask another admin", field=loses[0])


def find(c: Connection, name: str) -> Row[*tuple[Any, ...]]:
    """Name, enabled and email of an account. Refused(NOT_FOUND). The caller checks whether the user may see it."""
    row = c.execute(sa.select(t.users.c.name, t.users.c.enabled, t.users.c.email).where(t.users.c.name == name)).first()
    if row is None:
        raise access.missing("user", name)
    return row
