"""Sessions of signed-in users: what the cookie of a page refers to."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, known_browsers, sign_in
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_USE_NOTED = timedelta(minutes=1)
_MOST = 50  # of one user; the oldest are ended
_LONGEST_AGENT = 200  # characters kept of the browser's User-Agent


@dataclass(frozen=True, slots=True)
class Session:
    """A new session. secret: the content of the cookie; only its hash is stored."""

    id: str
    secret: str
    user: str
    expires_at: datetime


def sign_in_with(
    store: Store,
    config: Config,
    authenticator: sign_in.Authenticator,
    user: str,
    password: str,
    address: str,
    agent: str,
    browser: str = "",
) -> Session:
    """Sign in with a password and start a session.

    Refused(UNAUTHENTICATED), TooMany. browser: as in `sign_in.check`.
    """
    return start(store, config, sign_in.check(store, authenticator, user, password, address, browser), agent)


def start(store: Store, config: Config, by: Principal, agent: str, how: str = "") -> Session:
    """Start a session for an authenticated user. agent: the browser's User-Agent. how: the method of authentication."""
    now, secret, s = utcnow(), secrets.token_urlsafe(32), t.sessions.c
    made = Session(authentication.new_id(), secret, by.user, now + config.people.session)
    values = {"address": by.address, "agent": agent[:_LONGEST_AGENT], "created_at": now, "used_at": now}
    with store.write() as c:
        c.execute(t.sessions.delete().where(s.expires_at <= now))
        old = sa.select(s.hash).where(s.user == by.user).order_by(s.used_at.desc()).offset(_MOST - 1).limit(_MOST)
        c.execute(t.sessions.delete().where(s.hash.in_(c.scalars(old).all())))
        row = {
            "hash": authentication.digest(secret),
            "id": made.id,
            "user": by.user,
            "expires_at": made.expires_at,
            **values,
        }
        c.execute(t.sessions.insert().values(row))
        operations.note(c, by.user, "sign in", now, detail=how, address=by.address)
    return made


def authenticate(store: Store, secret: str, address: str = "") -> Principal:
    """The user of a session. Refused(UNAUTHENTICATED) if it has ended, was revoked, or its user is disabled."""
    s, u, now = t.sessions.c, t.users.c, utcnow()
    query = sa.select(s.hash, s.id, s.expires_at, s.used_at, u.name, u.admin, u.enabled)
    query = query.add_columns(u.default_project)
    with store.read() as c:
        row = c.execute(query.join(t.users, u.name == s.user).where(s.hash == authentication.digest(secret))).first()
        roles = authentication.roles_of(c, row.name) if row is not None else {}
    if row is None or row.expires_at <= now or not row.enabled:
        raise Refused(Code.UNAUTHENTICATED, "the session has ended", hint="sign in again")
    if now - row.used_at >= _USE_NOTED:
        with store.write() as c:
            c.execute(t.sessions.update().where(s.hash == row.hash).values(used_at=now, address=address))
    own = {"credential": row.id, "default_project": row.default_project}
    return Principal(row.name, row.admin, roles, address=address, **own)


def revoke(store: Store, id: str, by: Principal) -> None:
    """End a session. Ending another session also forgets the known browsers. Refused(NOT_FOUND)."""
    s = t.sessions.c
    with store.write() as c:
        user = c.scalar(sa.select(s.user).where(s.id == id))
        if user is None:
            raise access.missing("session", id)
        access.remove_credential(by, user, "session", id)
        c.execute(t.sessions.delete().where(s.id == id))
        if id != by.credential:
            known_browsers.forget(c, user)
        operations.note(c, by.user, "session revoke", utcnow(), detail=f"{id} of {user}", address=by.address)


def revoke_others(store: Store, by: Principal) -> int:
    """End all other sessions of the user and forget known browsers; the number of ended sessions."""
    access.changes(by, "end sessions")
    s = t.sessions.c
    with store.write() as c:
        count = c.execute(t.sessions.delete().where(s.user == by.user, s.id != by.credential)).rowcount
        known_browsers.forget(c, by.user)
        if count:
            detail = f"{count} of {by.user}, all others"
            operations.note(c, by.user, "session revoke", utcnow(), detail=detail, address=by.address)
    return count
