"""The page of a slice, shared by the routes that show it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from flask import Response, request, url_for
from sqlalchemy.engine import Connection, Row

from slicemgr.errors import Code, Refused
from slicemgr.service.slices import limit_changes, slices
from slicemgr.service.views import events as event_views
from slicemgr.service.views import nodes
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import slices as slice_views
from slicemgr.service.views import snapshots as snapshot_views
from slicemgr.store.updates import utcnow
from slicemgr.web.api.reading import project as named_project
from slicemgr.web.pages import shell
from slicemgr.web.pages.form import Form
from slicemgr.web.state import principal, state

SHOWN = 25  # slivers of a large slice, unless all are requested
SOON, LATER = 1.0, 5.0  # seconds between updates: during a change, and otherwise
_EVENTS = 15
_FRESH = 120.0  # seconds for which a successful operation is still shown
AT_REST = {"running", "stopped", "paused", "failed", "partial"}
SECTIONS = {
    "lease": "settings",
    **dict.fromkeys(limit_changes.FIELDS, "settings"),
    "reason": "settings",
    "snapshot": "snapshots",
}  # of the fields of the page's forms
_FORMS = re.compile(r"/slices/[^/]+/(?:renew|resize)")  # URLs of forms in the section Settings
_SPANS = [("1d", "1 day"), ("7d", "7 days"), ("14d", "14 days"), ("30d", "30 days"), ("90d", "90 days")]

Found = Row[Any]


def find(c: Connection, name: str) -> Found:
    """The slice in the URL. Refused as `slices.find`."""
    return slices.find(c, name, principal(), named_project())


def same(name: str) -> Found:
    """The slice that the form's page showed. Refused(CONFLICT) if another one has that name now."""
    with state().store.read() as c:
        row = find(c, name)
    if request.form.get("id", row.id) != row.id:
        message = f"the page showed an earlier slice called {name}, which has been replaced by a new one"
        raise Refused(Code.CONFLICT, message, hint="nothing was changed")
    return row


def back(row: Found, message: str, kind: str = "good", *, section: str = "") -> Response:
    """Redirect to the page, at one of its sections."""
    return shell.see("slice_page.show", message, kind, **at(row, section))


def at(row: Found, section: str) -> dict[str, Any]:
    """The arguments of `url_for` for a section. It is in the query, too, because browsers do not send the anchor."""
    return {"name": row.name, "project": row.project, "section": section or None, "_anchor": section or None}


def section_of(path: str) -> str:
    """The section of the page of a slice with the form that is sent to this path; "": none."""
    return "settings" if _FORMS.fullmatch(path) else ""


def _next(row: Found) -> str:
    """The URL that a browser without JavaScript loads next, at the section of this one.

    `turn` alternates, because a browser does not load a URL again that differs in nothing but the anchor.
    """
    section = request.args.get("section", "")
    known = at(row, section if section in SECTIONS.values() else "")
    turn = "2" if request.args.get("turn") == "1" else "1"
    return url_for("slice_page.show", **known, all="1" if "all" in request.args else None, turn=turn)


def page(row: Found, form: Form | None = None, status: int = 200, *, field: str = "") -> Response:
    """The page, optionally with the errors of one of its forms. field: opens the section that has it."""
    with state().store.read() as c:
        shown, kept = live(c, row), snapshots(c, row)
    form = form or Form()
    field = field or next((one for one in SECTIONS if form[one]), "")
    form.values.setdefault("lease", "7d")
    values = {"slice": shown["slice"], "id": row.id, "may": may(row), "spans": _SPANS, "most": kept["most"]}
    values["opened"] = SECTIONS.get(field, "")
    values["next"] = _next(row) if SOON in (shown["every"], kept["every"]) else ""
    parts = {"live": shell.part(**shown), "snapshots": shell.part(**kept)}
    return shell.show("slices/show.html", status, form=form, **parts, **values)


def again(row: Found, form: Form, error: Refused, field: str, alias: str = "", known: tuple[str, ...] = ()) -> Response:
    """The page with the error at its field. Raises errors that do not concern the input.

    field: of the form, which has no other unless `known` lists its fields.
    """
    status = form.take(error, {alias or field: field}, known or (field,))
    return page(row, form, status, field=field)


def may(row: Found) -> bool:
    """Whether the user may change it."""
    by = principal()
    return by.user == row.owner or by.leads(row.project)


def live(c: Connection, row: Found) -> dict[str, Any]:
    """The part that updates itself: the arguments of `shell.part`."""
    by, shown = principal(), slice_views.slice_of(c, row.id)
    events = event_views.events(c, by, slice=row.name, project=row.project, limit=_EVENTS)
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
        "several_nodes": nodes.several(c),
        "moving": moving,
        "operation": operation,
        "events": [one for one in events if one["at"] >= shown["created_at"]],
        "may": may(row),
    }


def snapshots(c: Connection, row: Found) -> dict[str, Any]:
    """The list of snapshots, which also updates itself: the arguments of `shell.part`."""
    kept = snapshot_views.of_slice(c, row.id)
    return {
        "template": "slices/snapshots_live.html",
        "name": "kept",
        "every": SOON if any(one["state"] == "making" for one in kept) else LATER,
        "path": url_for("snapshot_page.every", name=row.name, project=row.project),
        "snapshots": kept,
        "most": state().config.limits.snapshots_per_slice,
        "slice": {"name": row.name, "project": row.project},
        "may": may(row),
    }


def _operation(c: Connection, row: Found, shown: dict[str, Any]) -> dict[str, Any] | None:
    """The newest operation, while it is of interest."""
    newest = operation_views.operations(c, [row.project], slice=row.name, limit=1)
    if not newest or newest[0]["created_at"] < shown["created_at"]:
        return None
    one = newest[0]
    ended = one["finished_at"]
    if one["state"] == "done" and ended:
        ago = (utcnow() - datetime.fromisoformat(ended)).total_seconds()
        return one if ago < _FRESH else None
    return one
