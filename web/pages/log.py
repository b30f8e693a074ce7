"""The event log, and the operations of the testbed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from flask import Response, request, url_for

from slicemgr.errors import Refused, invalid
from slicemgr.model import OperationState
from slicemgr.policy import access
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import pages
from slicemgr.service.views.pages import LogFilter, LogOrder
from slicemgr.web.pages import browser_session, shell, words
from slicemgr.web.pages.form import Form
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

PAGE = 100  # events
_OPERATIONS = 100
_SOON, _LATER = 2.0, 10.0  # seconds between updates: while some operations are running, and while none is
_TEXTS = ("user", "action", "project", "slice")
_LARGEST = 1 << 62
_MOST_PAGES = 10_000
_LOG_COLUMNS: dict[str, Callable[[Row], Any]] = {name: itemgetter(name) for name in pages.LOG_COLUMNS}
_OPERATION_COLUMNS: dict[str, Callable[[Row], Any]] = {
    "operation": words.headed,
    "state": itemgetter("state"),
    "target": lambda one: one["slice"] or one["image"],
    "project": lambda one: one["project"] or None,
    "user": itemgetter("user"),
    "requested": itemgetter("created_at"),
    "duration": words.seconds_taken,
}

blueprint = shell.blueprint("log", Entry("log.show", "Log", "log", 36))
operation_list = shell.blueprint("operation_list", Entry("operation_list.every", "Operations", "restart", 35))


@blueprint.route("/log")
def show() -> Response:
    """Events by filters; a page at a time, the newest first unless another order is chosen."""
    by, form = principal(), Form({name: value for name, value in request.args.items() if value.strip()})
    wanted, sorting = _wanted(form), Sorting(_LOG_COLUMNS, "-at")
    number = min(max(1, request.args.get("page", 1, int)), _MOST_PAGES) if sorting.value else 1
    order = LogOrder(sorting.column, sorting.down, (number - 1) * PAGE)
    with state().store.read() as c:
        events, more = pages.log(c, by, wanted, PAGE, order) if wanted else ([], False)
        actions = pages.actions(c, by)
    kept = {name: form[name] for name in (*_TEXTS, "since", "until") if form[name]}
    projects = [] if by.admin else sorted(by.roles)
    values = {"events": events, "more": more, "actions": actions, "kept": kept, "projects": projects}
    values |= {"sorting": sorting, "number": number, "first": "before" not in request.args and number == 1}
    return shell.show("log.html", 422 if form.errors else 200, form=form, **values)


@operation_list.route("/operations")
def every() -> Response:
    """The newest operations; updated while the page is open."""
    wanted = request.args.get("state", "")
    wanted = wanted if wanted in tuple(OperationState) else ""
    sorting = Sorting(_OPERATION_COLUMNS, "-requested")
    with state().store.read() as c:
        found = operation_views.operations(c, access.visible(principal()), state=wanted, limit=_OPERATIONS)
    moving = any(one["state"] in ("queued", "running") for one in found)
    live: dict[str, Any] = {
        "template": "operations/table.html",
        "name": "operations",
        "every": _SOON if moving else _LATER,
        "path": url_for("operation_list.every", state=wanted or None, sort=sorting.value),
        "operations": found if sorting.value is None else sorting.rows(found),
        "sorting": sorting,
        "wanted": wanted,
        "most": _OPERATIONS,
    }
    if browser_session.is_htmx():
        return shell.fresh(**live)
    values: dict[str, Any] = {"wanted": wanted, "states": [*OperationState], "sorting": sorting}
    return shell.show("operations/list.html", table=shell.part(**live), **values)


def _wanted(form: Form) -> LogFilter | None:
    """The filter in the URL; None if one of its fields is invalid."""
    texts = {name: str(form[name])[:200] for name in _TEXTS}
    try:
        since, until = _day(form, "since"), _day(form, "until")
        before = form["before"]
        if before and not (before.isascii() and before.isdecimal() and int(before) < _LARGEST):
            raise invalid("before", "is not a position in the log", "start at the first page")
    except Refused as error:
        form.blame(error, known=("since", "until"))
        return None
    last = until + timedelta(days=1) if until else None  # including the day itself
    return LogFilter(**texts, since=since, until=last, before=int(before) if before else None)


def _day(form: Form, name: str) -> datetime | None:
    if not form[name]:
        return None
    try:
        return datetime.strptime(form[name], "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise invalid(name, f"{form[name][:40]!r} is not a date", "use a date such as 2026-11-21") from None
