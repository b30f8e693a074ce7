"""The fields of a form that arrived after its session had ended, kept until the user has signed in again."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from flask import current_app, g, request

from slicemgr.web.state import address

FIELD = "kept"  # the query parameter with the key
_LARGEST = 100 << 10  # bytes of a form; larger ones are not kept
_PATIENCE = 900.0  # seconds
_MOST, _OF_ADDRESS = 200, 3  # forms in memory
_NEVER = frozenset(("csrf_token", "once", "password", "old", "new", "repeated"))


class _Kept(NamedTuple):
    address: str
    fields: dict[str, list[str]]
    until: float  # monotonic


class _Forms:
    """For the only web process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def keep(self, where: str, fields: dict[str, list[str]]) -> str:
        key = secrets.token_urlsafe(24)
        with self._lock:
            self._expire()
            mine = [name for name, one in self._kept.items() if one.address == where]
            for old in mine[: len(mine) - _OF_ADDRESS + 1]:
                del self._kept[old]
            self._kept[key] = _Kept(where, fields, time.monotonic() + _PATIENCE)
            while len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return key

    def read(self, key: str) -> dict[str, list[str]]:
        with self._lock:
            self._expire()
            return self._kept[key].fields if key in self._kept else {}

    def _expire(self) -> None:
        now = time.monotonic()
        for old in [key for key, one in self._kept.items() if one.until <= now]:
            del self._kept[old]


def keep() -> str:
    """Keep the form of the request; the URL of its page, which shows the fields again. "" if it is not kept.

    Only forms of pages of this service are kept, so that no other site can fill in a form.
    """
    size = request.content_length
    readable = request.mimetype == "application/x-www-form-urlencoded" and size is not None and size <= _LARGEST
    if request.method != "POST" or not readable or not _from_here():
        return ""
    fields = {name: values for name, values in request.form.lists() if name not in _NEVER}
    page = page_of(request.path)
    if not page or not fields:
        return ""
    query = [(name, value) for name, value in request.args.items(multi=True) if name != FIELD]
    return f"{page}?{urlencode([*query, (FIELD, _forms().keep(address(), fields))])}"


def read() -> dict[str, list[str]]:
    """The kept fields for the page that the signed-in user requests."""
    if request.method != "GET" or "principal" not in g or FIELD not in request.args:
        return {}
    return _forms().read(request.args[FIELD])


def page_of(path: str) -> str:
    """The page of the form that is sent to this path: the path itself, or its next parent that is a page; "": none."""
    adapter = current_app.create_url_adapter(request)
    while adapter is not None and path.startswith("/"):
        if adapter.test(path, method="GET"):
            return quote(path)
        if path == "/":
            break
        path = path.rstrip("/").rpartition("/")[0] or "/"
    return ""


def _from_here() -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    return urlsplit(request.headers.get("Origin", "")).netloc == request.host


def _forms() -> _Forms:
    made: _Forms = current_app.extensions.setdefault("slicemgr.kept_forms", _Forms())
    return made
