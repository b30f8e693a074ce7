"""Idempotency keys: the answer to a request is stored with its effect, in the same transaction.

So a key is stored if and only if its request took effect, even if the process died meanwhile. A second request with the
key waits for the first one's transaction like any writer. A refused request changes nothing and is not stored.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy.engine import Connection

from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc import wake
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

KEPT = timedelta(days=1)
LONGEST = 255  # characters of a key
FIELD = "Idempotency-Key"
_MINE = (t.answers.c.user == sa.bindparam("b_user"), t.answers.c.key == sa.bindparam("b_key"))
# Made once: to make them takes longer than to execute them.
_FIND, _DELETE = sa.select(t.answers).where(*_MINE), t.answers.delete().where(*_MINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with a key. credential: of the caller; it decrypts stored answers that contain a secret."""

    user: str
    key: str
    what: str  # HTTP method and target
    body: bytes
    credential: str

    @property
    def digest(self) -> str:
        """Equal for two request bodies that are the same JSON."""
        try:
            body = json.dumps(json.loads(self.body), sort_keys=True).encode()
        except (ValueError, RecursionError):
            body = self.body
        return hashlib.sha256(self.what.encode() + b"\0" + body).hexdigest()

    def _seal(self) -> Fernet:
        secret = hashlib.sha256(f"answer\0{self.credential}\0{self.key}".encode()).digest()
        return Fernet(base64.urlsafe_b64encode(secret))

    def sealed(self, text: str) -> str:
        return self._seal().encrypt(text.encode()).decode()

    def opened(self, text: str) -> str:
        """Decrypt a stored answer. Refused(CONFLICT) if the request had another credential."""
        try:
            return self._seal().decrypt(text.encode()).decode()
        except InvalidToken as error:
            hint = "use that token, or another key to create another secret"
            raise Refused(
                Code.CONFLICT, "the response contains a secret that belongs to another token", hint=hint, field=FIELD
            ) from error


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: str
    secret: bool = False  # store it encrypted
    repeated: bool = False


def check_key(key: str) -> str:
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= LONGEST):
        raise invalid(FIELD, "is not a valid key", f"use 1 to {LONGEST} ASCII characters, such as a UUID")
    return key


def once(store: Store, asked: Asked, do: Callable[[], Answer]) -> Answer:
    """The answer of `do`, or the stored answer if this request was made before.

    What `do` reads and writes is one transaction with the answer; its wake-ups follow the commit. Refused(CONFLICT) for
    a different request with a known key. An answer with status 400 or above is not stored, and undoes what `do` wrote.
    """
    check_key(asked.key)
    now, mine = utcnow(), {"b_user": asked.user, "b_key": asked.key}
    with wake.held(), store.whole() as c:
        row = c.execute(_FIND, mine).first()
        if row is not None and row.created_at > now - KEPT:
            return _repeated(asked, row.request, Answer(row.status, row.body, row.sealed))
        with c.begin_nested() as effect:
            answer = do()
            if answer.status >= 400:
                effect.rollback()
                return answer
        if row is not None:
            c.execute(_DELETE, mine)
        body = asked.sealed(answer.body) if answer.secret else answer.body
        row_ = {"user": asked.user, "key": asked.key, "request": asked.digest, "status": answer.status, "body": body}
        c.execute(t.answers.insert(), {**row_, "sealed": answer.secret, "created_at": now})
    return answer


def _repeated(asked: Asked, request: str, kept: Answer) -> Answer:
    if request != asked.digest:
        hint = "use another key for another request"
        raise Refused(Code.CONFLICT, "this key was used for a different request", hint=hint, field=FIELD)
    return Answer(kept.status, asked.opened(kept.body) if kept.secret else kept.body, kept.secret, repeated=True)


def forget(c: Connection, now: datetime) -> int:
    """Delete answers that are older than a day; the number of them."""
    return c.execute(t.answers.delete().where(t.answers.c.created_at <= now - KEPT)).rowcount
