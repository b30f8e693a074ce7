"""Who is behind a token, and the local admin's token file."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

import sqlalchemy as sa

from slicemgr.errors import Code, Refused
from slicemgr.policy.access import Principal
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.schema import ADMIN
from slicemgr.store.updates import utcnow

LOCAL_ADMIN = "local admin"


def authenticate(store: Store, token: str) -> Principal:
    """Who the token belongs to. Refused(UNAUTHENTICATED)."""
    digest = _digest(token)
    query = (
        sa.select(t.tokens.c.hash, t.users.c.name, t.users.c.admin)
        .join(t.users, t.users.c.name == t.tokens.c.user)
        .where(t.tokens.c.hash == digest)
    )
    with store.read() as c:
        row = c.execute(query).first()
    if row is None or not hmac.compare_digest(row.hash, digest):
        raise Refused(Code.UNAUTHENTICATED, "the token is not valid", hint="`slicemgr init` writes the local admin's")
    return Principal(row.name, row.admin)


def ensure_local_admin(store: Store, path: Path, url: str) -> None:
    """Keep the local admin's token in `path` (JSON: url, token), readable by its owner alone.

    A token that works is kept; otherwise a new one takes the place of all local admin tokens.
    """
    token = _token_in(path)
    if token is None or not _known(store, token):
        token = secrets.token_urlsafe(32)
        with store.write() as c:
            c.execute(t.tokens.delete().where(t.tokens.c.label == LOCAL_ADMIN))
            row = {"hash": _digest(token), "user": ADMIN, "label": LOCAL_ADMIN, "created_at": utcnow()}
            c.execute(t.tokens.insert().values(row))
    _write_private(path, json.dumps({"url": url, "token": token}, indent=2) + "\n")


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


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
