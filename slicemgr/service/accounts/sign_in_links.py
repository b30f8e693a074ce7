"""Links that sign in to the web page once, without a password: root on the node creates them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.errors import Code, Refused
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, users
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

VALID = timedelta(hours=1)
PATH = "/sign-in-link/"  # the page of a link, followed by its secret
_L = t.sign_in_links.c


@dataclass(frozen=True, slots=True)
class SignInLink:
    """A new link. secret: the end of the link; only its hash is stored."""

    user: str
    secret: str
    expires_at: datetime


def create(store: Store, user: str) -> SignInLink:
    """A link for an account, valid for `VALID`; an earlier link of the account becomes invalid.

    Refused(NOT_FOUND) if there is no such account, Refused(CONFLICT) if it is disabled.
    """
    now = utcnow()
    made = SignInLink(user, secrets.token_urlsafe(32), now + VALID)
    with store.write() as c:
        if not users.find(c, user).enabled:
            hint = f"enable it first: `slicectl user enable {user}`"
            raise Refused(Code.CONFLICT, f"the account {user} is disabled", hint=hint)
        c.execute(t.sign_in_links.delete().where(sa.or_(_L.user == user, _L.expires_at <= now)))
        row = {"user": user, "hash": authentication.digest(made.secret), "created_at": now}
        c.execute(t.sign_in_links.insert().values(**row, expires_at=made.expires_at))
        operations.note(c, ADMIN, "sign-in link", now, detail=user)
    return made


def holder(store: Store, secret: str) -> str:
    """The user of a link. Refused(NOT_FOUND) if it is unknown, was used, or has expired."""
    with store.read() as c:
        return _holder(c, secret, utcnow())


def use(store: Store, secret: str, address: str) -> Principal:
    """Invalidate a link; the principal of its user. Refused(NOT_FOUND). address: of the client."""
    with store.write() as c:
        user = _holder(c, secret, utcnow())
        if not c.execute(t.sign_in_links.delete().where(_L.hash == authentication.digest(secret))).rowcount:
            raise _invalid()  # a concurrent request used it first
    return authentication.account(store, user, address)


def _holder(c: Connection, secret: str, now: datetime) -> str:
    query = sa.select(_L.user, _L.expires_at, t.users.c.enabled).join(t.users, t.users.c.name == _L.user)
    row = c.execute(query.where(_L.hash == authentication.digest(secret))).first()
    if row is None or row.expires_at <= now or not row.enabled:
        raise _invalid()
    return str(row.user)


def _invalid() -> Refused:
    hint = "print a new one on the node: `slicemgr sign-in-link`"
    return Refused(Code.NOT_FOUND, "this link was already used or has expired", hint=hint)
