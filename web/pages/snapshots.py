"""Snapshots of a slice: created, restored and deleted on its page, and cloned into another slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Response, request, url_for

from slicemgr.errors import Code, Refused
from slicemgr.policy import access, leases
from slicemgr.service.projects import projects
from slicemgr.service.slices import snapshots, specs
from slicemgr.service.slices.snapshots import SliceReference
from slicemgr.service.views import slices as slice_views
from slicemgr.service.views import snapshots as snapshot_views
from slicemgr.web.pages import browser_session, cost, shell, slice_shown
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.new import lease_options
from slicemgr.web.pages.slice_shown import Found, back, same
from slicemgr.web.state import principal, state

_PLACE = "/slices/<name>/snapshots"
_ONE = f"{_PLACE}/<snapshot>"
_CLONE = ("name", "lease", "disk")
_DO: dict[str, Callable[..., str]] = {"restore": snapshots.restore, "delete": snapshots.delete}
_DONE = {"restore": "{} is being restored to snapshot {}.", "delete": "{}: snapshot {} is being deleted."}

blueprint = shell.blueprint("snapshot_page", under="slices_page.mine")


@blueprint.route(_PLACE)
def every(name: str) -> Response:
    """For htmx the list on the slice's page; other requests are redirected to that page."""
    try:
        with state().store.read() as c:
            row = slice_shown.find(c, name)
            kept = slice_shown.snapshots(c, row)
    except Refused as error:
        if browser_session.is_htmx() and error.code is Code.NOT_FOUND:
            return shell.gone("slices/no_snapshots.html")
        raise
    if browser_session.is_htmx():
        return shell.fresh(**kept)
    return shell.see("slice_page.show", **slice_shown.at(row, "snapshots"))


@blueprint.route(_PLACE, methods=["POST"])
@once
def make(name: str) -> Response:
    """Create a snapshot of all slivers, while they run."""
    row, form = same(name), Form.sent()
    try:
        snapshots.create(state().store, state().config, _place(row), form["snapshot"])
    except Refused as error:
        return slice_shown.again(row, form, error, "snapshot", "name")
    return back(row, f"Snapshot {form['snapshot']} is being created.", section="snapshots")


@blueprint.route(f"{_ONE}/<any(restore, delete):what>")
def confirm(name: str, snapshot: str, what: str) -> Response:
    """Show what will be lost and ask for confirmation."""
    row, found = _shown(name, snapshot, what)
    return _ask(row, found, what, Form())


@blueprint.route(f"{_ONE}/<any(restore, delete):what>", methods=["POST"])
@once
def do(name: str, snapshot: str, what: str) -> Response:
    """Restore or delete the snapshot that the page showed."""
    row = same(name)
    _, found = _shown(name, snapshot, what)
    try:
        _DO[what](state().store, state().config, _place(row), snapshot)
    except Refused as error:
        form = Form.sent()
        return _ask(row, found, what, form, form.take(error, known=("",)))
    return back(row, _DONE[what].format(name, snapshot), section="snapshots")


@blueprint.route(f"{_ONE}/clone")
def ask_clone(name: str, snapshot: str) -> Response:
    """The form with name and lease of the clone."""
    row, found = _shown(name, snapshot, "clone")
    return _clone(row, found, Form({"name": f"{name}-{snapshot}"[: specs.LONGEST_NAME].rstrip("-")}))


@blueprint.route(f"{_ONE}/clone", methods=["POST"])
@once
def clone(name: str, snapshot: str) -> Response:
    """Create a slice from the snapshot."""
    row, form = same(name), Form.sent()
    _, found = _shown(name, snapshot, "clone")
    raw = {field: form[field] for field in _CLONE if form[field]}
    try:
        snapshots.clone(state().store, state().config, _place(row), snapshot, raw)
    except Refused as error:
        return _clone(row, found, form, form.take(error, known=_CLONE))
    return shell.see("slice_page.show", name=form["name"], project=row.project)


def _place(row: Found) -> SliceReference:
    return SliceReference(row.name, principal(), row.project)


def _shown(name: str, snapshot: str, what: str) -> tuple[Found, dict[str, Any]]:
    """The slice and its snapshot, for users who may change it. Refused(CONFLICT) if the page showed an older one."""
    with state().store.read() as c:
        row = slice_shown.find(c, name)
        access.change_slice(principal(), row.project, row.owner, name, what)
        found = snapshot_views.of_slice(c, row.id, snapshots.find(c, row, snapshot).name)[0]
    if request.form.get("made", found["created_at"]) != found["created_at"]:
        message = f"the page showed an earlier snapshot called {snapshot}, which has been replaced by a new one"
        raise Refused(Code.CONFLICT, message, hint="nothing was changed")
    return row, found


def _ask(row: Found, found: dict[str, Any], what: str, form: Form, status: int = 200) -> Response:
    values = {"slice": {"name": row.name, "project": row.project}, "id": row.id, "snapshot": found, "what": what}
    return shell.show("slices/snapshot_confirm.html", status, form=form, **values)


def _clone(row: Found, found: dict[str, Any], form: Form, status: int = 200) -> Response:
    config, name = state().config, row.project
    with state().store.read() as c:
        policy = projects.lease_policy(c, config, name)
        usual = min(policy.default, policy.longest)
        origin = slice_views.slice_of(c, row.id)
        one, count = origin["slivers"][0], len(origin["slivers"])
        limits, ports = one["limits"], one["ports"]["last"] - one["ports"]["first"] + 1
        form.values.setdefault("lease", leases.text(usual))
        asked = {"count": count, "cpu": limits["cpu"], "memory": str(limits["memory"]), "ports": ports}
        asked |= {"disk": form["disk"] or str(limits["disk"]), "lease": form["lease"]}
        price = cost.estimate(c, config, name, asked, usual)
    values = {"slice": origin, "id": row.id, "snapshot": found, "cost": price, "longest": specs.LONGEST_NAME}
    spans = lease_options(form["lease"], config.lease.longest)
    target = url_for("snapshot_page.clone", name=row.name, snapshot=found["name"], project=row.project)
    return shell.show("slices/clone.html", status, form=form, leases=spans, target=target, **values)
