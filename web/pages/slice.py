"""One slice: its state, how to log in, and its actions."""

from __future__ import annotations

from datetime import datetime, timedelta

from flask import Response, request

from slicemgr.errors import Code, Refused
from slicemgr.policy.quota import OverQuota
from slicemgr.service.slices import limit_changes, requests, slices, specs
from slicemgr.service.views import slices as slice_views
from slicemgr.store.updates import utcnow
from slicemgr.web.pages import browser_session, shell, slice_shown, words
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.slice_shown import back, same
from slicemgr.web.state import principal, state

_DONE = {
    "start": "is starting",
    "stop": "is stopping",
    "restart": "is restarting",
    "pause": "is being paused",
    "resume": "is resuming",
}

blueprint = shell.blueprint("slice_page", under="slices_page.mine")


@blueprint.route("/slices/<name>")
def show(name: str) -> Response:
    """The page; for htmx its live part."""
    try:
        with state().store.read() as c:
            row = slice_shown.find(c, name)
            if browser_session.is_htmx():
                live = slice_shown.live(c, row)
    except Refused as error:
        if browser_session.is_htmx() and error.code is Code.NOT_FOUND:
            return shell.gone("slices/gone.html", name=name)
        raise
    return shell.fresh(**live) if browser_session.is_htmx() else slice_shown.page(row)


@blueprint.route("/slices/<name>/act", methods=["POST"])
@once
def act(name: str) -> Response:
    """start, stop, restart, pause or resume."""
    action, row = slices.check_action(request.form.get("action", "")), same(name)
    if action == "delete":
        return shell.see("slice_page.confirm", name=name, project=row.project)
    slices.act(state().store, state().config, name, action, principal(), project=row.project)
    return back(row, f"{name} {_DONE[action]}.")


@blueprint.route("/slices/<name>/renew", methods=["POST"])
@once
def renew(name: str) -> Response:
    """Renew the lease; the message has the granted date, which may be earlier than the requested one."""
    row, form = same(name), Form.sent()
    try:
        lease = specs.renewal(form["lease"])
        asked = utcnow() + lease
        slices.renew(state().store, state().config, name, lease, principal(), project=row.project)
    except Refused as error:
        return slice_shown.again(row, form, error, "lease")
    with state().store.read() as c:
        granted = slice_views.slice_of(c, row.id)["expires_at"]
    if granted is None:  # of a project whose leases do not end
        return back(row, f"The lease of {name} does not expire.", section="settings")
    less = datetime.fromisoformat(granted) < asked - timedelta(seconds=5)
    message = f"The lease of {name} was renewed and now ends {words.date(granted)}."
    return back(
        row,
        message + (" This is the longest lease that the project allows." if less else ""),
        "notice" if less else "good",
        section="settings",
    )


@blueprint.route("/slices/<name>/resize", methods=["POST"])
@once
def resize(name: str) -> Response:
    """Change the disk and memory limits of each sliver, while they run, or beyond the quota request it."""
    row, form, by = same(name), Form.sent(), principal()
    try:
        given = {name: form[name] for name in limit_changes.FIELDS if form[name]}
        changes, why = limit_changes.read(given), requests.reason(form["reason"])
        made = limit_changes.resize(state().store, state().config, name, changes, by, project=row.project, why=why)
    except Refused as error:
        if isinstance(error, OverQuota):
            form.errors["reason"] = ["This exceeds the quota of the project. Enter a reason, or use less."]
            for one in error.errors:
                one.hint = ""
        return slice_shown.again(row, form, error, "disk", known=(*limit_changes.FIELDS, "reason"))
    if made.request:
        message = f"Your request to resize {name} waits for the decision of a PI of {row.project} or an admin."
        return shell.see("request_page.show", message, "notice", id=made.request)
    return back(row, f"The limits of each sliver of {name} are now: {limit_changes.text(changes)}.", section="settings")


@blueprint.route("/slices/<name>/delete")
def confirm(name: str) -> Response:
    """Ask for the name before deleting the slice."""
    with state().store.read() as c:
        row = slice_shown.find(c, name)
        shown = slice_views.slice_of(c, row.id)
    return shell.show("slices/delete.html", form=Form(), slice=shown, id=row.id)


@blueprint.route("/slices/<name>/delete", methods=["POST"])
@once
def delete(name: str) -> Response:
    """Delete the slice, if its name was typed."""
    row, form = same(name), Form.sent()
    if form["typed"] != row.name:
        form.errors["typed"] = [f"Type {row.name} to confirm."]
        with state().store.read() as c:
            shown = slice_views.slice_of(c, row.id)
        return shell.show("slices/delete.html", 422, form=form, slice=shown, id=row.id)
    operation = slices.act(state().store, state().config, name, "delete", principal(), project=row.project)
    return shell.see("operation_page.show", id=operation)
