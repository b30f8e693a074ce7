"""One operation and its progress."""

from __future__ import annotations

from typing import Any

from flask import Response, url_for

from slicemgr.service.views import operations as operation_views
from slicemgr.web.pages import browser_session, shell
from slicemgr.web.state import principal, state

_EVERY = 1.0  # seconds between updates, until it has ended

blueprint = shell.blueprint("operation_page")


@blueprint.route("/operations/<id>")
def show(id: str) -> Response:
    """The page; the operation continues when the user leaves it."""
    with state().store.read() as c:
        operation = operation_views.operation(c, id, principal())
    ended = operation["state"] in ("done", "failed")
    live: dict[str, Any] = {
        "template": "operation_live.html",
        "name": "operation",
        "every": 0 if ended else _EVERY,
        "path": url_for("operation_page.show", id=id),
        "operation": operation,
    }
    if browser_session.is_htmx():
        return shell.fresh(**live)
    return shell.show("operation.html", operation=operation, live=shell.part(**live), ended=ended)
