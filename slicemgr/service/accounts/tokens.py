"""API tokens: shown once, stored as a hash, with a scope and an expiry time."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from slicemgr.config import Config, parse_duration
from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import Scope
from slicemgr.policy import access
from slicemgr.policy import leases as spans
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.nodes import operations
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_MOST = 100  # of one user
_LONGEST_LABEL = 80
_KNOWN = ("label", "scope", "expires")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parameters of a new token. expires: counted from now."""

    label: str
    scope: Scope
    expires: timedelta


def wanted(raw: Mapping[str, Any], config: Config, label: str = "") -> Wanted:
    """The parameters in `raw`. label: the default. Refused(INVALID)."""
    for unknown in sorted(set(raw) - set(_KNOWN)):
        raise invalid(unknown[:64], "unknown field", f"the fields are {', '.join(_KNOWN)}")
    text = raw.get("label", label)
    if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > _LONGEST_LABEL:
        hint = f"use up to {_LONGEST_LABEL} characters that describe its use"
        raise invalid("label", "is missing" if text in ("", None) else "is not a valid label", hint)
    scope = raw.get("scope", Scope.WRITE.value)
    if scope not in tuple(Scope):
        raise invalid("scope", f"{str(scope)[:40]!r} is unknown", "read or write")
    expires = config.people.token
    if raw.get("expires") is not None:
        if not isinstance(raw["expires"], str):
            raise invalid("expires", "must be text", "write it as 12h, 30d or 8w")
        expires = parse_duration(raw["expires"], "expires")
    longest = config.people.token_longest
    if not timedelta(0) < expires <= longest:
        raise invalid(
            "expires", f"{spans.text(expires)} is out of range", f"use more than zero, at most {spans.text(longest)}"
        )
    return Wanted(text.strip(), Scope(scope), expires)


def create(store: Store, asked: Wanted, by: Principal, *, why: str = "token create") -> tuple[str, str, datetime]:
    """The secret of the new token, its id, and its expiry time. Refused(CONFLICT) if the user has too many tokens."""
    access.changes(by, "create tokens")
    now, token, id_ = utcnow(), f"smgr_{secrets.token_urlsafe(32)}", authentication.new_id()
    expires_at, k = now + asked.expires, t.tokens.c
    with store.write() as c:
        c.execute(t.tokens.delete().where(k.user == by.user, k.expires_at <= now))
        if (c.scalar(sa.select(sa.func.count()).where(k.user == by.user)) or 0) >= _MOST:
            raise Refused(Code.CONFLICT, f"{by.user} already has {_MOST} tokens", hint="revoke unused tokens")
        row = {
            "hash": authentication.digest(token),
            "id": id_,
            "user": by.user,
            "label": asked.label,
            "scope": asked.scope,
        }
        c.execute(t.tokens.insert().values(**row, created_at=now, expires_at=expires_at))
        detail = f"{id_} {asked.label!r} {asked.scope} until {expires_at:%Y-%m-%dT%H:%M:%SZ}"
        operations.note(c, by.user, why, now, detail=detail, address=by.address)
    return token, id_, expires_at


def revoke(store: Store, id: str, by: Principal) -> None:
    """Revoke a token; `current` is the token of the request. Refused(NOT_FOUND) if there is none or it is another
    user's.
    """
    k = t.tokens.c
    wanted_id = by.credential if id == "current" else id
    with store.write() as c:
        row = c.execute(sa.select(k.user, k.label).where(k.id == wanted_id)).first()
        if row is None:
            raise access.missing("token", id)
        if wanted_id != by.credential:  # a read-only token can revoke itself
            access.remove_credential(by, row.user, "token", id)
        c.execute(t.tokens.delete().where(k.id == wanted_id))
        detail = f"{wanted_id} {row.label!r} of {row.user}"
        operations.note(c, by.user, "token revoke", utcnow(), detail=detail, address=by.address)
