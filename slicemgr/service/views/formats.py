"""Times, key fingerprints and the JSON type of all views."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

Json = dict[str, Any]
Where = Iterable[sa.ColumnElement[bool]]
_TO_THE_SECOND = len("2026-01-31T12:00:00")
_SSH_BLOB = 1  # index of the key among the words of a public key line


def when(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC, to the second."""
    return None if moment is None else moment.isoformat()[:_TO_THE_SECOND] + "Z"


@lru_cache(maxsize=1000)  # slivers of one node are sampled together
def when_since_epoch(seconds: int | None) -> str | None:
    """The same of the seconds since 1970."""
    return None if seconds is None else when(datetime.fromtimestamp(seconds, UTC))


def shown_time(column: sa.Column[datetime]) -> sa.Label[datetime]:
    """A column of times for `when` alone: its values have no time zone, which would cost a call for each of them."""
    return sa.type_coerce(column, sa.DateTime).label(column.key)


@lru_cache(maxsize=20_000)  # keys of slivers, which pages show again and again
def fingerprint(host_key: str) -> str | None:
    """`SHA256:…` of a public key line, as ssh prints it; None without a key."""
    words = host_key.split()
    if len(words) <= _SSH_BLOB:
        return None
    digest = hashlib.sha256(base64.b64decode(words[_SSH_BLOB])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
