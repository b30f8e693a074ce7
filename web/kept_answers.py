"""Answers to GET whose rows have not changed: kept as they were sent, or left out if the client has them.

The entity tag is a digest of the answer itself, so it is the same in all web processes, and does not depend on what
the user cannot see.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, cast

from flask import Response, current_app, request

from slicemgr.store.kept import Kept

_MOST = 32 << 20  # bytes
_AGE = 60.0  # seconds: cursors in answers are valid for a day


class _Answer(NamedTuple):
    body: bytes
    tag: str


class KeptAnswers:
    """Thread-safe. Each credential has its own answers: cursors are signed with it, and users see different rows."""

    def __init__(self) -> None:
        self._kept: Kept[_Answer] = Kept(_MOST, _AGE)

    def answer(self, read: Callable[[], Any], user: str, version: Hashable | None) -> Response:
        """The response of `read`, which depends on the database, the caller, the path and the query alone.

        user: who has been authenticated. version: of the database, read before.
        """
        key = _key()
        found = self._kept.get(version, key)
        if found is None:
            body = cast(Response, current_app.json.response(read())).get_data()
            found = _Answer(body, hashlib.blake2b(body, digest_size=16).hexdigest())
            self._kept.put(version, key, found, len(body), user)
        unchanged = request.if_none_match.contains_weak(found.tag)
        response = Response(status=304) if unchanged else Response(found.body, mimetype="application/json")
        response.set_etag(found.tag)
        response.headers["Cache-Control"] = "private, no-cache"  # visibility may change
        response.vary.add("Authorization")
        return response


def _key() -> bytes:
    """Of fixed length, whatever the client sends."""
    parts = (request.headers["Authorization"].encode(), request.path.encode(), request.query_string)
    return b"".join(hashlib.blake2b(part, digest_size=16).digest() for part in parts)
