"""Accounts that the recipients of invitations to projects create, with the link in the mail of the invitation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.model import Role
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, password_policy, users
from slicemgr.service.accounts.sign_in import Authenticator
from slicemgr.service.nodes import operations
from slicemgr.service.projects import invitations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_I = t.project_invitations.c


class Offer(NamedTuple):
    """What a link offers: an account with this confirmed mail address that is a member of the project."""

    project: str
    role: str
    invited_by: str
    email: str


def find(store: Store, config: Config, secret: str) -> Offer | None:
    """The offer of a link; None if it is none, was used, withdrawn or has expired, or the setting excludes it."""
    with store.read() as c:
        row = _find(c, config, secret, utcnow())
    return None if row is None else Offer(row.project, row.role, row.invited_by, row.invitee)


def create(
    store: Store,
    config: Config,
    authenticator: Authenticator,
    secret: str,
    raw: Mapping[str, Any],
    password: str,
    address: str,
) -> str:
    """Create the account of a link with its password and membership; its name. The link becomes invalid.

    raw: name, and full_name. Refused(CONFLICT) if the name is taken, or an account has the mail address.
    """
    name = users.user_name(raw.get("name"))
    values = users.description({key: value for key, value in raw.items() if key != "name"}, ("full_name",))
    with store.read() as c:
        _valid(c, config, secret, utcnow())  # before the password is hashed
        password_policy.check(c, authenticator.openid, name)
    hashed = authenticator.passwords.hash(password, name)
    try:
        with store.write() as c:
            now = utcnow()
            row = _valid(c, config, secret, now)
            _insert(c, row, name, {**values, "email": row.invitee, "password": hashed}, address, now)
    except exc.IntegrityError as error:
        raise users.taken(name) from error
    return name


def _insert(
    c: Connection, row: Row[*tuple[Any, ...]], name: str, values: Mapping[str, Any], address: str, now: datetime
) -> None:
    if invitations.accounts_of(c, row.invitee):
        message = "an account with the address of this invitation exists"
        raise Refused(Code.CONFLICT, message, hint="sign in with it, and accept the invitation there")
    users.add(c, name, values, now)
    invitations.join(c, row.project, name, Role(row.role), Principal(name, False), now)
    invitations.forget(c, row.project, row.invitee)
    detail = f"{name} by an invitation of {row.invited_by} to project {row.project}"
    operations.note(c, name, "account create", now, detail=detail, address=address)
    operations.note(c, name, "member join", now, project=row.project, detail=f"{name} {row.role}", address=address)


def _valid(c: Connection, config: Config, secret: str, now: datetime) -> Row[*tuple[Any, ...]]:
    row = _find(c, config, secret, now)
    if row is None:
        message, hint = "this link was already used or has expired", "ask a PI of the project for a new invitation"
        raise Refused(Code.NOT_FOUND, message, hint=hint, field="token")
    return row


def _find(c: Connection, config: Config, secret: str, now: datetime) -> Row[*tuple[Any, ...]] | None:
    if not invitations.may_create_account(config):
        return None
    query = sa.select(t.project_invitations).where(_I.link == authentication.digest(secret), _I.expires_at > now)
    row = c.execute(query.where(~_I.declined)).first()
    return row if row is not None and invitations.stands(c, row) else None
