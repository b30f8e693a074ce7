"""Shared by routes: read parts of a request, and return a queued operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import request

from slicemgr.errors import invalid
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import slices as slice_views
from slicemgr.web.state import state

Answer = Any
SECURED: list[dict[str, list[str]]] = [{"token": []}]
PROJECT = {
    "in": "query",
    "name": "project",
    "schema": {"type": "string"},
    "description": "whose, where several of your projects have one of that name",
}
LONGEST_WAIT = 60.0  # seconds
WAITING = [
    {
        "in": "query",
        "name": "wait",
        "schema": {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT, "default": 0},
        "description": "seconds to hold the answer back until the operation ended or is beyond `seen`",
    },
    {
        "in": "query",
        "name": "seen",
        "schema": {"type": "integer", "minimum": 0, "maximum": 2**53},
        "description": "the `version` that is known; left out: only its end counts",
    },
]
LAST_EVENT = {
    "in": "header",
    "name": "Last-Event-ID",
    "schema": {"type": "integer", "minimum": 0, "maximum": 2**53},
    "description": "the last event's id: what came after it comes, or 204 if nothing will",
}
IF_NONE_MATCH = {
    "in": "header",
    "name": "If-None-Match",
    "schema": {"type": "string"},
    "description": "the `ETag` of an earlier answer: 304 without a body if the answer is still the same",
}
ETAG = {"ETag": {"description": "changes with the answer", "schema": {"type": "string"}}}
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("event", "id", "data", "retry")},
    "description": "`data` is JSON: the operation's, where `event` is `operation`",
}
EVENT_STREAM: dict[str, Any] = {
    "200": {
        "description": "server-sent events; the id of one is the operation's version",
        "content": {"text/event-stream": {"schema": _EVENT}},
    },
    "204": {"description": "the operation has ended, and Last-Event-ID was its end"},
}


def body() -> dict[str, Any]:
    """The body, which must be a JSON object; an empty body counts as an empty object."""
    if not request.get_data(cache=True):
        return {}
    try:
        given = request.get_json(silent=True, force=True)
        check_text(given, "body")
    except RecursionError as error:
        raise invalid("body", "is nested too deeply") from error
    if not isinstance(given, dict):
        raise invalid("body", "is not a JSON object", 'send something like {"name": "exp"}')
    return given


def check_text(given: Any, field: str) -> None:
    """Refused(INVALID) for text that databases cannot store: with NUL, or half of a surrogate pair."""
    if isinstance(given, str):
        if "\0" in given or (not given.isascii() and any("\ud800" <= one <= "\udfff" for one in given)):
            raise invalid(field, "holds a character that is none", "text in UTF-8 without NUL")
    elif isinstance(given, dict):
        for name, value in given.items():
            check_text(name, field)
            check_text(value, name[:64])
    elif isinstance(given, list):
        for value in given:
            check_text(value, field)


def check_target() -> None:
    """The same check for path and query, before any route. Werkzeug replaces invalid UTF-8 by U+FFFD."""
    check_text(request.path, "path")
    for name, values in request.args.lists():
        check_text([name, *values], name.replace("\0", "")[:64])


def text(raw: Mapping[str, Any], name: str, most: int = 1024) -> str:
    """A required text field. Refused(INVALID)."""
    value = raw.get(name)
    if value is None or value == "":
        raise invalid(name, "is missing")
    if not isinstance(value, str) or len(value) > most:
        raise invalid(name, "must be text", f"at most {most} characters")
    return value


def flag(raw: Mapping[str, Any], name: str) -> bool:
    """An optional true or false; false if it is missing. Refused(INVALID)."""
    value = raw.get(name, False)
    if not isinstance(value, bool):
        raise invalid(name, "must be true or false")
    return value


def only(raw: Mapping[str, Any], *known: str) -> None:
    """Refused(INVALID) for unknown fields."""
    for unknown in sorted(set(raw) - set(known)):
        raise invalid(unknown[:64], "unknown field", f"known: {', '.join(known)}")


def number(name: str, default: float, most: float) -> float:
    given = request.args.get(name, "")
    try:
        value = float(given) if given else default
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise invalid(name, f"{given[:40]!r} is not a number from 0 to {most:g}")
    return value


def project() -> str | None:
    """The project in the query."""
    return request.args.get("project") or None


def asked(operation: str, *, with_slice: bool = False) -> dict[str, Any]:
    """The response for a queued operation, with its slice."""
    with state().store.read() as c:
        answer = {"operation": operation_views.operation(c, operation)}
        if with_slice:
            answer["slice"] = slice_views.slice_of_operation(c, operation)
        return answer
