"""Secrets that are shown once: kept in memory between the form that created them and the page that shows them."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from typing import NamedTuple

from flask import current_app

from slicemgr.web.state import principal

_KEPT = 1000
_PATIENCE, _AGAIN = 120.0, 5.0  # seconds of storage: before the first display, and after it for a double click


class _Secret(NamedTuple):
    whose: str  # the session that may read it
    text: str
    until: float  # monotonic


class _Secrets:
    """For the only web process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Secret] = OrderedDict()

    def keep(self, whose: str, text: str) -> str:
        key = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[key] = _Secret(whose, text, time.monotonic() + _PATIENCE)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return key

    def read(self, whose: str, key: str) -> str:
        now = time.monotonic()
        with self._lock:
            for old in [name for name, one in self._kept.items() if one.until <= now]:
                del self._kept[old]
            found = self._kept.get(key)
            if found is None or found.whose != whose:
                return ""
            self._kept[key] = found._replace(until=min(found.until, now + _AGAIN))
            return found.text


def _secrets() -> _Secrets:
    made: _Secrets = current_app.extensions.setdefault("slicemgr.reveal", _Secrets())
    return made


def keep(text: str) -> str:
    """Store a secret; its key for `read`, valid for this session alone."""
    return _secrets().keep(principal().credential, text)


def read(key: str) -> str:
    """The secret; "" if it was shown already, has expired, or is another session's."""
    return _secrets().read(principal().credential, key) if key else ""
