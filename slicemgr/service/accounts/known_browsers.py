"""Browsers in which the user of an account signed in before: failures of others do not slow them down.

The browser keeps a signed value, which grants nothing and contains no account name. It is valid for an account until
the password changes, sessions are ended, or the account is disabled.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import timedelta

import sqlalchemy as sa
from itsdangerous import BadData, URLSafeTimedSerializer
from sqlalchemy.engine import Connection

from slicemgr.store import Store
from slicemgr.store import tables as t

_SALT = "known browser"
_MOST = 8  # accounts of one browser; the oldest are dropped


def forget(c: Connection, user: str) -> None:
    """Make every browser unknown to the account from now on."""
    u = t.users.c
    c.execute(t.users.update().where(u.name == user).values(known_browsers=u.known_browsers + 1))


class KnownBrowsers:
    """Create and read the values that browsers keep. key: the service's secret. longest: how long a value is valid."""

    def __init__(self, store: Store, key: bytes, longest: timedelta) -> None:
        self._store = store
        self._key = key
        self._signer = URLSafeTimedSerializer(key, salt=_SALT, signer_kwargs={"digest_method": hashlib.sha256})
        self._longest = int(longest.total_seconds())

    def recognise(self, kept: str, user: str) -> str:
        """The id of the browser that keeps this value, if the account's user signed in there; "" if not."""
        browser, marks = self._read(kept)
        known = self._mark(browser, user)
        return browser if any(hmac.compare_digest(known, one) for one in marks) else ""

    def remember(self, kept: str, user: str) -> str:
        """The new value for the browser after the account's user signed in there."""
        browser, marks = self._read(kept)
        mark = self._mark(browser := browser or secrets.token_hex(16), user)
        return str(self._signer.dumps([browser, *[one for one in marks if one != mark][1 - _MOST :], mark]))

    def _read(self, kept: str) -> tuple[str, list[str]]:
        """The id of the browser and its marks, one for each account.

        A value that this service did not sign is ignored.
        """
        try:
            browser, *marks = self._signer.loads(kept, max_age=self._longest)
        except (BadData, ValueError, TypeError):
            return "", []
        return str(browser), [str(one) for one in marks]

    def _mark(self, browser: str, user: str) -> str:
        u = t.users.c
        with self._store.read() as c:
            generation = c.scalar(sa.select(u.known_browsers).where(u.name == user))
        text = f"{_SALT}\0{browser}\0{user}\0{generation}"
        return hmac.new(self._key, text.encode(errors="replace"), hashlib.sha256).hexdigest()[:32]
