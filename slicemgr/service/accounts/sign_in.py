"""Sign-in with a user name and a password, with limited attempts."""

from __future__ import annotations

import re

import sqlalchemy as sa

from slicemgr.config import Config, PeopleConfig
from slicemgr.errors import Code, Refused
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, password_policy
from slicemgr.service.accounts.attempts import Attempts
from slicemgr.service.accounts.passwords import Passwords
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


class Authenticator:
    """The state that sign-in needs beside the store: created once for each web process."""

    def __init__(self, config: Config) -> None:
        settings: PeopleConfig = config.people
        self.passwords = Passwords(settings.hashing)
        self.attempts = Attempts(settings)
        self.openid = config.oidc


def name(user: str) -> str:
    """The name of an account, from what a person typed."""
    return user.strip().lower()[:64]


def check(
    store: Store, authenticator: Authenticator, user: str, password: str, address: str, browser: str = ""
) -> Principal:
    """The account with this password. browser: the id of the known browser, as `KnownBrowsers.recognise` returns it.

    Refused(UNAUTHENTICATED), without saying which part was wrong, Refused(DENIED); TooMany.
    """
    user = name(user)
    authenticator.attempts.begin(user, address, browser)
    u = t.users.c
    with store.read() as c:
        row = c.execute(sa.select(u.name, u.admin, u.enabled, u.password).where(u.name == user)).first()
        roles = authentication.roles_of(c, user)
    right = authenticator.passwords.matches(row.password if row is not None else "", password)
    if row is None or not right or not row.enabled:
        shown = user if _NAME.fullmatch(user) else "?"
        with store.write() as c:
            operations.note(c, shown, "sign-in failed", utcnow(), address=address)
        hint = "ask an admin of the testbed for a new link if you forgot the password"
        raise Refused(Code.UNAUTHENTICATED, "the user name or the password is wrong", hint=hint)
    authenticator.attempts.forgive(user, address, browser)
    with store.read() as c:
        password_policy.check(c, authenticator.openid, user)
    if authenticator.passwords.stale(row.password):
        fresh = authenticator.passwords.hash(password, user)
        with store.write() as c:
            c.execute(t.users.update().where(u.name == user, u.password == row.password).values(password=fresh))
    return Principal(row.name, row.admin, roles, address=address)
