"""Accounts of users who sign in with OpenID Connect: creating them, linking them to an identity, and naming them."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.config_oidc import OidcConfig
from slicemgr.errors import Code, Refused
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, known_browsers, password_policy, sessions, users
from slicemgr.service.nodes import operations
from slicemgr.service.outbound.openid_issuer import Proven
from slicemgr.service.slices import authorized_keys
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

_MOST_ALIKE = 99  # accounts whose names differ by a number alone
_I = t.identities.c
_U = t.users.c


def enter(store: Store, config: Config, proven: Proven, address: str, agent: str) -> sessions.Session:
    """A session for the authenticated identity; creates an account if the settings allow it.

    Refused(DENIED, CONFLICT).
    """
    try:
        with _alone(), store.write() as c:
            user = _owner(c, proven) or _arrive(c, config.oidc, proven, utcnow(), address)
            by = _admit(c, proven, user, address)
    except Refused as error:
        _note_failure(store, proven, error, address)
        raise
    return sessions.start(store, config, by, agent, config.oidc.name)


def accept(store: Store, config: Config, proven: Proven, secret: str, address: str, agent: str) -> sessions.Session:
    """Set the identity of the account of an invitation, whatever address the issuer reports. Refused(NOT_FOUND)."""
    try:
        with _alone(), store.write() as c:
            now = utcnow()
            user = users.use_up(c, secret, now)
            _free(c, proven, user)
            c.execute(t.identities.delete().where(_I.user == user, _I.issuer == proven.issuer))
            c.execute(t.sessions.delete().where(t.sessions.c.user == user))
            known_browsers.forget(c, user)
            _link(c, proven, user, now, address, "invitation accept")
            by = _admit(c, proven, user, address)
    except Refused as error:
        _note_failure(store, proven, error, address)
        raise
    return sessions.start(store, config, by, agent, config.oidc.name)


def link(store: Store, proven: Proven, by: Principal) -> None:
    """Link the identity to the account of the signed-in user. Refused(CONFLICT)."""
    access.changes(by, "link the account")
    with _alone(), store.write() as c:
        _free(c, proven, by.user)
        if c.scalar(sa.select(_I.subject).where(_I.user == by.user, _I.issuer == proven.issuer)) is not None:
            raise Refused(
                Code.CONFLICT, "another identity is linked to this account", hint="unlink that identity first"
            )
        _link(c, proven, by.user, utcnow(), by.address)
        _admit(c, proven, by.user, by.address)


def unlink(store: Store, config: Config, by: Principal) -> None:
    """Remove the identity from the account of `by`. Refused(CONFLICT) if no other way to sign in remains."""
    access.changes(by, "unlink the account")
    with store.write() as c:
        if not c.scalar(sa.select(_U.password).where(_U.name == by.user)):
            hint = "ask an admin of the testbed for an invitation link, and set a password"
            raise Refused(Code.CONFLICT, "you would lose access to your account, because it has no password", hint=hint)
        if not c.execute(t.identities.delete().where(_I.user == by.user, _I.issuer == config.oidc.issuer)).rowcount:
            raise access.missing("sign-in", config.oidc.name)
        password_policy.check(c, config.oidc, by.user)
        operations.note(c, by.user, "openid unlink", utcnow(), detail=config.oidc.issuer, address=by.address)


class _alone:
    """Two concurrent sign-ins with the same identity: one of them must be repeated."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, exc.IntegrityError):
            raise Refused(
                Code.CONFLICT, "another sign-in with this identity is in progress", hint="try again"
            ) from error


def _note_failure(store: Store, proven: Proven, error: Refused, address: str) -> None:
    with store.write() as c:
        user = _owner(c, proven) or "?"
        detail = f"{proven.issuer}: {proven.email or proven.subject}: {error.message}"
        operations.note(c, user, "sign-in failed", utcnow(), detail=detail, address=address)


def _owner(c: Connection, proven: Proven) -> str | None:
    query = sa.select(_I.user).where(_I.issuer == proven.issuer, _I.subject == proven.subject)
    return c.scalar(query)


def _free(c: Connection, proven: Proven, user: str) -> None:
    owner = _owner(c, proven)
    if owner is not None and owner != user:
        message = f"this identity is linked to the account {owner}"
        raise Refused(Code.CONFLICT, message, hint="an identity can be linked to one account; unlink it there first")


def _admit(c: Connection, proven: Proven, user: str, address: str) -> Principal:
    """The current principal.

    An admin by the issuer's claim loses the role when the claim is absent. Refused(DENIED).
    """
    query = sa.select(_U.admin, _U.enabled, _I.admin.label("by_claim")).join(t.identities, _I.user == _U.name)
    row = c.execute(query.where(_U.name == user, _I.issuer == proven.issuer)).one()
    if not row.enabled:
        raise Refused(Code.DENIED, f"the account {user} is disabled", hint="ask an admin of the testbed")
    now, admin, by_claim = utcnow(), row.admin, row.by_claim and proven.admin
    if user != ADMIN and ((proven.admin and not row.admin) or (row.by_claim and row.admin and not proven.admin)):
        admin = by_claim = proven.admin
        c.execute(t.users.update().where(_U.name == user).values(admin=admin))
        by = Principal(user, admin, authentication.roles_of(c, user), address=address)
        authorized_keys.refresh(c, user, by, f"the account {user} was changed")
        detail = f"{user}: admin {admin}, by {proven.issuer}"
        operations.note(c, user, "user change", now, detail=detail, address=address)
    values = {"used_at": now, "admin": by_claim, **({"email": proven.email} if proven.email else {})}
    c.execute(t.identities.update().where(_I.user == user, _I.issuer == proven.issuer).values(values))
    return Principal(user, admin, authentication.roles_of(c, user), address=address)


def _arrive(c: Connection, settings: OidcConfig, proven: Proven, now: datetime, address: str) -> str:
    """The account for an identity that is new here: the one that was invited with this address, or a new one."""
    email = proven.email.lower()
    if not email:
        message = f"{settings.name} did not provide a verified email address"
        hint = "verify your address there, or sign in here in another way and link the account"
        raise Refused(Code.DENIED, message, hint=hint)
    invited = sa.exists().where(t.invitations.c.user == _U.name, t.invitations.c.expires_at > now)
    linked = sa.exists().where(_I.user == _U.name)
    query = sa.select(_U.name, _U.enabled, (invited & ~linked & (_U.password == "") & _U.enabled).label("waits"))
    found = c.execute(query.where(sa.func.lower(_U.email) == email)).all()
    waiting = [row.name for row in found if row.waits]
    if len(waiting) == 1:
        c.execute(t.invitations.delete().where(t.invitations.c.user == waiting[0]))
        _link(c, proven, waiting[0], now, address, "invitation accept")
        return str(waiting[0])
    if found:
        raise _taken(proven, disabled=not any(row.enabled for row in found))
    if email.rpartition("@")[2] not in settings.domains:
        message = f"there is no account for {proven.email} on this testbed"
        raise Refused(Code.DENIED, message, hint="ask an admin of the testbed to invite that address")
    name = _name(c, proven)
    row = {"name": name, "admin": False, "full_name": proven.full_name, "email": proven.email, "created_at": now}
    row["email_confirmed"] = True
    c.execute(t.users.insert().values(row))
    _link(c, proven, name, now, address, "user create", made=True)
    return name


def _taken(proven: Proven, *, disabled: bool) -> Refused:
    if disabled:
        return Refused(Code.DENIED, f"the account of {proven.email} is disabled", hint="ask an admin of the testbed")
    hint = "sign in to it and link it under Keys and tokens, or ask an admin of the testbed for a link"
    return Refused(Code.CONFLICT, f"there is already an account with the address {proven.email}", hint=hint)


def _link(
    c: Connection,
    proven: Proven,
    user: str,
    now: datetime,
    address: str,
    why: str = "openid link",
    *,
    made: bool = False,
) -> None:
    row = {"issuer": proven.issuer, "subject": proven.subject, "user": user, "email": proven.email}
    c.execute(t.identities.insert().values(**row, made=made, created_at=now))
    detail = f"{user}: {proven.issuer}, {proven.email or proven.subject}"
    operations.note(c, user, why, now, detail=detail, address=address)


def _name(c: Connection, proven: Proven) -> str:
    """The name of a new account: the user name at the issuer, with a number appended if that is taken."""
    wished = (proven.name or proven.email).partition("@")[0]
    plain = unicodedata.normalize("NFKD", wished).encode("ascii", "ignore").decode().lower()
    base = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[: users.LONGEST_NAME - 5].rstrip("-")
    base = base if base[:1].isalpha() else f"u-{base}".rstrip("-")
    taken = {*c.scalars(sa.select(_U.name).where(_U.name.like(f"{base}%"))), *users.deleted(c, base)}
    for name in (base, *(f"{base}-{number}" for number in range(2, _MOST_ALIKE + 1))):
        if name not in taken and users.is_name(name):
            return name
    raise Refused(Code.CONFLICT, f"too many accounts have the name {base}", hint="ask an admin of the testbed")
