"""An operation as server-sent events: each of its versions, until it has ended.

Each follower holds a thread, so their number is limited. The stream ends when the user may no longer see the operation
or the token has expired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from flask import Response, request

from slicemgr.errors import SlicemgrError, invalid
from slicemgr.policy.access import Principal
from slicemgr.service.views import operations as operation_views
from slicemgr.store import Store
from slicemgr.web.news import News
from slicemgr.web.thread_limits import Kind, ThreadLimits

HEARTBEAT = 15.0  # seconds without an event; shorter than the idle timeouts of proxies
RETRY = 2000  # milliseconds until a browser reconnects
_ENDED = ("done", "failed")
_MOST_VERSION = 2**53


def last_seen() -> int:
    """`Last-Event-ID`: the last version that a reconnecting browser received. Refused(INVALID)."""
    text = request.headers.get("Last-Event-ID", "")
    if not text:
        return -1
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) <= _MOST_VERSION):
        raise invalid("Last-Event-ID", f"{text[:40]!r} is not an event of this stream", "omit it to start again")
    return int(text)


def stream(
    thread_limits: ThreadLimits, store: Store, news: News, id: str, authenticate: Callable[[], Principal], by: Principal
) -> Response:
    """The events of operation `id`; 204, which stops a browser from reconnecting, if there are none after the last.

    authenticate: returns the current principal. Refused(NOT_FOUND) if `by` may not see the operation.
    """
    seen = last_seen()
    with store.read() as c:
        operation = operation_views.operation(c, id, by)
    if operation["state"] in _ENDED and seen >= operation["version"]:
        return Response(status=204)
    if request.method == "HEAD":
        return Response(mimetype="text/event-stream")
    release = thread_limits.acquire(Kind.FOLLOWER, by.user)
    response = Response(_events(store, news, id, authenticate, seen), mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"  # nginx passes each event on at once
    response.call_on_close(release)
    return response


def _events(store: Store, news: News, id: str, authenticate: Callable[[], Principal], seen: int) -> Iterator[str]:
    yield f"retry: {RETRY}\n\n"
    while True:
        try:
            by = authenticate()
            with store.read() as c:
                operation = operation_views.operation(c, id, by)
        except SlicemgrError as error:
            yield _event("gone", {"code": error.code.wire, "detail": error.message})
            return
        if operation["version"] > seen or operation["state"] in _ENDED:
            seen = operation["version"]
            yield _event("operation", operation, seen)
        else:
            yield ": alive\n\n"
        if operation["state"] in _ENDED:
            yield _event("end", {"state": operation["state"]}, seen)
            return
        news.wait(id, seen, HEARTBEAT)


def _event(name: str, data: Any, id: int | None = None) -> str:
    """One event. JSON has no line breaks, so it is one data line."""
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
