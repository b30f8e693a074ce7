"""Authenticate API tokens, and maintain the token file of the local admin."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.errors import Code, Refused
from slicemgr.model import Role, Scope
from slicemgr.policy.access import Principal
from slicemgr.store import Store, StoreError
from slicemgr.store import tables as t
from slicemgr.store.kept import Kept
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

LOCAL_ADMIN = "local admin"
_USE_NOTED = timedelta(minutes=1)  # between updates of the last use, so that not every read causes a write
# A row for each of the user's projects, and one without a project for a user who has none.
_WHOSE = (
    sa.select(
        *(t.tokens.c.hash, t.tokens.c.id, t.tokens.c.scope, t.tokens.c.expires_at, t.tokens.c.used_at),
        *(t.users.c.name, t.users.c.admin, t.users.c.enabled, t.users.c.default_project),
        *(t.members.c.project, t.members.c.role),
    )
    .join(t.users, t.users.c.name == t.tokens.c.user)
    .outerjoin(t.members, t.members.c.user == t.users.c.name)
    .where(t.tokens.c.hash == sa.bindparam("hash"))
    .order_by(t.members.c.project)
)
_ROW_SIZE = 1024  # bytes of a row of it, roughly
Rows = Sequence[Row[*tuple[Any, ...]]]


class KnownTokens:
    """The rows of valid tokens while the database is unchanged. What depends on the time is checked each time."""

    def __init__(self) -> None:
        self._kept: Kept[Rows] = Kept(4 << 20, 60.0)

    def rows(self, store: Store, hashed: str, version: Hashable | None) -> Rows:
        """version: of the database, read before."""
        rows = self._kept.get(version, hashed)
        if rows is None:
            rows = _rows(store, hashed)
            if rows:  # unknown tokens are not limited in number
                self._kept.put(version, hashed, rows, _ROW_SIZE * len(rows), rows[0].name)
        return rows


def authenticate(
    store: Store, token: str, address: str = "", known: KnownTokens | None = None, version: Hashable | None = None
) -> Principal:
    """The user of a token. address: of the client. version: of the database, for `known`.

    Refused(UNAUTHENTICATED).
    """
    hashed, now = digest(token), utcnow()
    rows = _rows(store, hashed) if known is None else known.rows(store, hashed, version)
    row = rows[0] if rows else None
    if row is None or not hmac.compare_digest(row.hash, hashed):
        raise Refused(Code.UNAUTHENTICATED, "the token is not valid", hint="create a new one with `slicectl login URL`")
    if row.expires_at is not None and row.expires_at <= now:
        hint = "create a new one with `slicectl login URL`"
        raise Refused(Code.UNAUTHENTICATED, f"the token expired at {row.expires_at:%Y-%m-%dT%H:%M:%SZ}", hint=hint)
    if not row.enabled:
        raise Refused(Code.UNAUTHENTICATED, f"the account {row.name} is disabled", hint="ask an admin of the testbed")
    if row.used_at is None or now - row.used_at >= _USE_NOTED:
        _note_use(store, hashed, now, address)
    roles = {one.project: Role(one.role) for one in rows if one.project is not None}
    return Principal(row.name, row.admin, roles, Scope(row.scope), address, row.id, row.default_project)


def _rows(store: Store, hashed: str) -> Rows:
    with store.read() as c:
        return c.execute(_WHOSE, {"hash": hashed}).all()


def _note_use(store: Store, hashed: str, now: datetime, address: str) -> None:
    """A request does not fail because its token's last use could not be written."""
    with contextlib.suppress(StoreError), store.write() as c:
        c.execute(t.tokens.update().where(t.tokens.c.hash == hashed).values(used_at=now, used_from=address))


def roles_of(c: Connection, user: str) -> dict[str, Role]:
    """The role of the user in each project."""
    m = t.members.c
    query = sa.select(m.project, m.role).where(m.user == user).order_by(m.project)
    return {project: Role(role) for project, role in c.execute(query)}


def account(store: Store, user: str, address: str = "") -> Principal:
    """The principal of an account whose user was authenticated by something other than a password."""
    with store.read() as c:
        admin = c.execute(sa.select(t.users.c.admin).where(t.users.c.name == user)).scalar_one()
        return Principal(user, admin, roles_of(c, user), address=address)


def ensure_local_admin(store: Store, path: Path, url: str) -> None:
    """Keep the local admin's token in `path` (JSON: url, token), readable by its owner alone.

    A valid token is kept; otherwise a new one replaces all local admin tokens.
    """
    token = _token_in(path)
    if token is None or not _known(store, token):
        token = secrets.token_urlsafe(32)
        with store.write() as c:
            c.execute(t.tokens.delete().where(t.tokens.c.label == LOCAL_ADMIN))
            row = {"hash": digest(token), "user": ADMIN, "label": LOCAL_ADMIN, "created_at": utcnow()}
            c.execute(t.tokens.insert().values(**row, id=new_id()))
    _write_private(path, json.dumps({"url": url, "token": token}, indent=2) + "\n")


def new_id() -> str:
    """A new id for a token, a session or a request."""
    return secrets.token_hex(8)


def _known(store: Store, token: str) -> bool:
    try:
        return authenticate(store, token).admin
    except Refused as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        return False


def _token_in(path: Path) -> str | None:
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    token = raw.get("token") if isinstance(raw, dict) else None
    return token if isinstance(token, str) else None


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


def digest(token: str) -> str:
    """What the database stores of the secret of a token, a session or an invitation."""
    return hashlib.sha256(token.encode()).hexdigest()
