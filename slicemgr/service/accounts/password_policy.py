"""Whether passwords are accepted where an OpenID Connect issuer is configured."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.config_oidc import OidcConfig
from slicemgr.errors import Code, Refused
from slicemgr.store import tables as t


def admins_only(c: Connection, settings: OidcConfig) -> bool:
    """Whether admins may use passwords: until an enabled admin has an identity at the issuer, as no admin could sign in
    otherwise.
    """
    u, i = t.users.c, t.identities.c
    known = sa.select(i.user).join(t.users, u.name == i.user)
    by_issuer = known.where(i.issuer == settings.issuer, u.admin, u.enabled).exists()
    return not c.scalar(sa.select(by_issuer))


def check(c: Connection, settings: OidcConfig, user: str) -> None:
    """Refused(DENIED) if this account may not sign in with a password."""
    if settings.passwords or not settings.issuer:
        return
    admin = c.scalar(sa.select(t.users.c.admin).where(t.users.c.name == user))
    if not (admin and admins_only(c, settings)):
        message, hint = "passwords are switched off on this testbed", f"sign in with {settings.name} on the page"
        raise Refused(Code.DENIED, message, hint=hint)
