"""One operation and its progress."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from flask import Response, url_for
from sqlalchemy.engine import Connection

from slicemgr.service.views import images, pages, slices
from slicemgr.service.views import operations as operation_views
from slicemgr.web.pages import browser_session, shell
from slicemgr.web.state import principal, state

_EVERY = 1.0  # seconds between updates, until it has ended
_EVENTS = 25
_AROUND = timedelta(seconds=1)  # the request's own event has nearly the time of the operation

blueprint = shell.blueprint("operation_page", under="operation_list.every")


@blueprint.route("/operations/<id>")
def show(id: str) -> Response:
    """The page; the operation continues when the user leaves it."""
    with state().store.read() as c:
        operation = operation_views.operation(c, id, principal())
        events = _events(c, operation)
        there = slices.is_there(c, operation["project"], operation["slice"])
        image_is_there = images.is_there(c, operation["image"])
    ended = operation["state"] in ("done", "failed")
    live: dict[str, Any] = {
        "template": "operation_live.html",
        "name": "operation",
        "every": 0 if ended else _EVERY,
        "path": url_for("operation_page.show", id=id),
        "operation": operation,
        "slice_is_there": there,
        "image_is_there": image_is_there,
        "events": events,
    }
    if browser_session.is_htmx():
        return shell.fresh(**live)
    return shell.show("operation.html", operation=operation, live=shell.part(**live), ended=ended)


def _events(c: Connection, operation: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest events of the slice, or else of the user, while the operation ran."""
    since, until = (operation[name] and datetime.fromisoformat(operation[name]) for name in _SPAN)
    wanted = pages.LogFilter(
        slice=operation["slice"] or "",
        project=operation["project"] or "",
        user="" if operation["slice"] else operation["user"],
        since=since - _AROUND,
        until=until + _AROUND if until else None,
    )
    return pages.log(c, principal(), wanted, _EVENTS)[0]


_SPAN = ("created_at", "finished_at")
