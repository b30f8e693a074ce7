"""Paths of the REST API, and the parts of its answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

from slicemgr.errors import Code, Failed, Refused, SlicemgrError, invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slicemgr import wire

_PROJECT = re.compile(r"[a-z][a-z0-9-]*")
_PAGE = 500  # rows per request
_BY_STATUS = {400: Code.INVALID, 413: Code.INVALID, 502: Code.UNAVAILABLE, 403: Code.DENIED}
OTHER_VERSION = "check that client and service have the same version"


def segment(field: str, text: str) -> str:
    """`text` as one segment of a path. Raises Refused if it is empty or could change the path."""
    if not text or not text.isprintable() or "/" in text or text in (".", ".."):
        raise invalid(field, f"{text!r} is not a valid name", "use letters, digits and hyphens")
    return quote(text, safe="")


def named(name: str, project: str | None) -> tuple[str | None, str]:
    """The project and the name of a slice that is written as `PROJECT/NAME`, or as NAME in `project`."""
    before, slash, after = name.partition("/")
    return (before, after) if slash and _PROJECT.fullmatch(before) else (project, name)


def of_slice(name: str, project: str | None, what: str = "", **values: object) -> str:
    """The path of a slice, written as in `named`, followed by `what`, and a query. Raises Refused for a wrong name."""
    project, name = named(name, project)
    return f"/slices/{segment('NAME', name)}{what}" + query({"project": project, **values})


def slice_filters(filters: Mapping[str, str | None]) -> dict[str, str | None]:
    """The filters of a list; a `slice` that is written as PROJECT/NAME also chooses the project."""
    wanted = dict(filters)
    if wanted.get("slice"):
        wanted["project"], wanted["slice"] = named(wanted["slice"] or "", wanted.get("project"))
    return wanted


def query(values: Mapping[str, object]) -> str:
    given = {key: value for key, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def operation_in(answer: dict[str, Any]) -> wire.Operation:
    value = answer.get("operation")
    if not isinstance(value, dict):
        raise Failed("the response of the service has no operation", hint=OTHER_VERSION)
    return cast("wire.Operation", value)


def items(answer: dict[str, Any], key: str) -> list[Any]:
    value = answer.get(key)
    if not isinstance(value, list):
        raise Failed(f"the response of the service has no {key}", hint=OTHER_VERSION)
    return value


def pages(
    get: Callable[[str], dict[str, Any]], path: str, key: str, filters: Mapping[str, object], most: int | None = None
) -> list[Any]:
    """The rows of a list, read page by page, at most `most` of them."""
    rows: list[Any] = []
    cursor: str | None = None
    while True:
        limit = _PAGE if most is None else min(_PAGE, most - len(rows))
        answer = get(path + query({**filters, "limit": limit, "cursor": cursor}))
        rows += items(answer, key)
        before, cursor = cursor, answer.get("next")
        if not cursor or (most is not None and len(rows) >= most):
            return rows
        if cursor == before:
            raise Failed(f"the list of {key} from the service does not end", hint=OTHER_VERSION)


def problem(url: str, source: str, status: int, body: Mapping[str, Any]) -> SlicemgrError:
    """The error in a problem+json body, or the meaning of the status of another body, such as the page of a proxy.

    source: the origin of the token.
    """
    by_status = _BY_STATUS.get(status) or next((one for one in Code if one.status == status), Code.FAILED)
    code = Code.from_wire(str(body["code"])) if body.get("code") else by_status
    message = str(body.get("detail") or body.get("title") or f"{url} answered with HTTP status {status}")
    errors = [one for one in body.get("errors") or () if isinstance(one, dict)]
    field = str(body.get("field") or (errors[0].get("field") if errors else "") or "")
    hint = str(body.get("hint") or "")
    if code is Code.UNAUTHENTICATED and source:
        hint = hint or f"the token came from {source}"
    failed = code is Code.FAILED
    error = Failed(message, hint=hint) if failed else Refused(code, message, hint=hint, field=field)
    for one in errors:
        if one.get("field") != field:
            more = f" ({one['hint']})" if one.get("hint") and one["hint"] != hint else ""  # a common hint once
            error.add_note(f"{one.get('field')}: {one.get('message')}{more}")
    return error
