"""One slice: what it is and does now, how to log in, and what can be done with it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from flask import Response, request, url_for
from sqlalchemy.engine import Connection, Row

from slicemgr.errors import Code, Refused
from slicemgr.service import slices, specs, views
from slicemgr.store.updates import utcnow
from slicemgr.web.api.reading import project as named_project
from slicemgr.web.pages import door, shell, words
from slicemgr.web.pages.form import Form, once
from slicemgr.web.state import principal, state

SHOWN = 25  # slivers of a large slice, unless all are asked for
SOON, LATER = 1.0, 5.0  # seconds between looks: while something moves, and while nothing does
_EVENTS = 15
_FRESH = 120.0  # seconds for which an operation that ended well is still told of
_DONE = {
    "start": "is starting",
    "stop": "is stopping",
    "restart": "is restarting",
    "pause": "is being paused",
    "resume": "is resuming",
}
AT_REST = {"running", "stopped", "paused", "failed", "partial"}

blueprint = shell.blueprint("slice_page")


@blueprint.route("/slices/<name>")
def show(name: str) -> Response:
    """The page; for htmx its live part."""
    by = principal()
    try:
        with state().store.read() as c:
            row = slices.find(c, name, by, named_project())
            live = _live(c, row)
    except Refused as error:
        if door.is_htmx() and error.code is Code.NOT_FOUND:
            return shell.gone("slices/gone.html", name=name)
        raise
    if door.is_htmx():
        return shell.fresh(**live)
    return _page(row, live)


@blueprint.route("/slices/<name>/act", methods=["POST"])
@once
def act(name: str) -> Response:
    """start, stop, restart, pause or resume."""
    action, row = slices.check_action(request.form.get("action", "")), _same(name)
    if action == "delete":
        return shell.see("slice_page.confirm", name=name, project=row.project)
    slices.act(state().store, state().config, name, action, principal(), project=row.project)
    return _back(row, f"{name} {_DONE[action]}.")


@blueprint.route("/slices/<name>/renew", methods=["POST"])
@once
def renew(name: str) -> Response:
    """Let it live on; told is the date that was granted, which may be less than was asked for."""
    row, form = _same(name), Form.sent()
    try:
        lease = specs.renewal(form["lease"])
        asked = utcnow() + lease
        slices.renew(state().store, state().config, name, lease, principal(), project=row.project)
    except Refused as error:
        if error.field != "lease":
            raise
        with state().store.read() as c:
            live = _live(c, row)
        form.blame(error)
        return _page(row, live, form, error.code.status)
    with state().store.read() as c:
        granted = views.slice_of(c, row.id)["expires_at"]
    if granted is None:  # of a project whose leases do not end
        return _back(row, f"The lease of {name} does not end.")
    less = datetime.fromisoformat(granted) < asked - timedelta(seconds=5)
    message = f"Granted: the lease of {name} now ends {words.date(granted)}."
    return _back(row, message + (" That is as long as its project may." if less else ""), "notice" if less else "good")


@blueprint.route("/slices/<name>/delete")
def confirm(name: str) -> Response:
    """Ask for the name before it is gone."""
    with state().store.read() as c:
        row = slices.find(c, name, principal(), named_project())
        shown = views.slice_of(c, row.id)
    return shell.show("slices/delete.html", form=Form(), slice=shown, id=row.id)


@blueprint.route("/slices/<name>/delete", methods=["POST"])
@once
def delete(name: str) -> Response:
    """Delete it, if its name was typed."""
    row, form = _same(name), Form.sent()
    if form["typed"] != row.name:
        form.errors["typed"] = [f"Type {row.name} to delete it."]
        with state().store.read() as c:
            shown = views.slice_of(c, row.id)
        return shell.show("slices/delete.html", 422, form=form, slice=shown, id=row.id)
    operation = slices.act(state().store, state().config, name, "delete", principal(), project=row.project)
    return shell.see("operation_page.show", id=operation)


def _same(name: str) -> Row[Any]:
    """The slice that the form's page showed. Refused(CONFLICT) if there is another of that name now."""
    with state().store.read() as c:
        row = slices.find(c, name, principal(), named_project())
    if request.form.get("id", row.id) != row.id:
        message = f"the page showed an older slice called {name}; this one was made after it was gone"
        raise Refused(Code.CONFLICT, message, hint="nothing happened")
    return row


def _back(row: Row[Any], message: str, kind: str = "good") -> Response:
    return shell.see("slice_page.show", message, kind, name=row.name, project=row.project)


def _page(row: Row[Any], live: dict[str, Any], form: Form | None = None, status: int = 200) -> Response:
    by = principal()
    values = {"slice": live["slice"], "id": row.id, "may": by.user == row.owner or by.leads(row.project)}
    spans = [("1d", "1 day"), ("7d", "7 days"), ("14d", "14 days"), ("30d", "30 days"), ("90d", "90 days")]
    form = form or Form({"lease": "7d"})
    return shell.show("slices/show.html", status, form=form, spans=spans, live=shell.part(**live), **values)


def _live(c: Connection, row: Row[Any]) -> dict[str, Any]:
    """What changes by itself: the arguments of `shell.part`."""
    by, shown = principal(), views.slice_of(c, row.id)
    events = views.events(c, by, slice=row.name, project=row.project, limit=_EVENTS)
    operation = _operation(c, row, shown)
    moving = shown["state"] not in AT_REST or (operation is not None and operation["state"] in ("queued", "running"))
    every = "all" in request.args
    here = {"name": row.name, "project": row.project, "all": "1" if every else None}
    return {
        "template": "slices/live.html",
        "name": "slice",
        "every": SOON if moving else LATER,
        "path": url_for("slice_page.show", **here),
        "slice": shown,
        "slivers": shown["slivers"] if every else shown["slivers"][:SHOWN],
        "moving": moving,
        "operation": operation,
        "events": [one for one in events if one["at"] >= shown["created_at"]],
        "may": by.user == row.owner or by.leads(row.project),
    }


def _operation(c: Connection, row: Row[Any], shown: dict[str, Any]) -> dict[str, Any] | None:
    """The newest one, while there is something to say of it."""
    newest = views.operations(c, [row.project], slice=row.name, limit=1)
    if not newest or newest[0]["created_at"] < shown["created_at"]:
        return None
    one = newest[0]
    ended = one["finished_at"]
    if one["state"] == "done" and ended:
        ago = (utcnow() - datetime.fromisoformat(ended)).total_seconds()
        return one if ago < _FRESH else None
    return one
