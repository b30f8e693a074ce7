"""Requests beyond a quota: the user's own, and those that the user may grant or decline."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from flask import Response, request
from sqlalchemy.engine import Connection

from slicemgr.errors import Refused
from slicemgr.model import RequestState
from slicemgr.policy.quota import SIZES
from slicemgr.service.slices import requests
from slicemgr.service.views import pages as page_views
from slicemgr.service.views import people
from slicemgr.service.views import slices as slice_views
from slicemgr.web.pages import shell, words
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

PAGE = 50
_GRANT = {
    "create": ("count", "cpu", "memory", "memory_guarantee", "disk", "lease", "ports"),
    "resize": requests.TRIMMED_RESIZE,
}
_COLUMNS: dict[str, Callable[[Row], Any]] = {
    "waiting": lambda one: one["state"] != RequestState.WAITING,
    **{name: itemgetter(name) for name in ("name", "state", "project", "user")},
    "requested": itemgetter("created_at"),
}
_ALIASES = {"slivers": "count", "vcpus": "cpu", "reason": "answer"}

blueprint = shell.blueprint(
    "request_page", Entry("request_page.every", "Requests", "request", 30, badge="requests/badge.html")
)
blueprint.app_context_processor(lambda: {"requests_waiting": waiting_now, "requests_decided": decided_now})


def waiting_now() -> int:
    """The number of requests that wait for the user."""
    with state().store.read() as c:
        return page_views.waiting(c, principal())


def decided_now() -> int:
    """The number of decisions that the user has not read."""
    with state().store.read() as c:
        return page_views.decided(c, principal())


@blueprint.route("/requests")
def every() -> Response:
    """The requests, the waiting ones first."""
    wanted = request.args.get("state", "")
    wanted = wanted if wanted in tuple(RequestState) else ""
    number = max(1, request.args.get("page", 1, int))
    with state().store.read() as c:
        found = people.requests(c, principal(), state=wanted)
    found.sort(key=lambda one: one["state"] != RequestState.WAITING)
    sorting = Sorting(_COLUMNS, "waiting")
    if sorting.value:
        found = sorting.rows(found)
    pages = max(1, -(-len(found) // PAGE))
    number = min(number, pages)
    shown = found[(number - 1) * PAGE : number * PAGE]
    values: dict[str, Any] = {"number": number, "pages": pages, "wanted": wanted, "states": [*RequestState]}
    values["sorting"] = sorting
    return shell.show("requests/list.html", requests=shown, total=len(found), **values)


@blueprint.route("/requests/waiting")
def waiting() -> Response:
    """The count in the navigation, for htmx."""
    return shell.show("requests/badge.html")


@blueprint.route("/requests/<id>")
def show(id: str) -> Response:
    """One request, with the possible decisions. A decision counts as read when the requester opens this page."""
    with state().store.read() as c:
        found = people.requests(c, principal(), id)[0]
    if found["unread"] and found["user"] == principal().user:
        requests.mark_read(state().store, id, principal())
    return _page(id)


@blueprint.route("/requests/<id>/grant", methods=["POST"])
@once
def grant(id: str) -> Response:
    """Create or resize the slice, reduced as entered in the form."""
    form, config, store, by = Form.sent(), state().config, state().store, principal()
    with store.read() as c:
        found = people.requests(c, by, id)[0]
    asked, fields = _typed(found["wanted"]), _GRANT[found["action"]]
    trimmed = {name: form[name] for name in fields if form[name] and form[name] != asked.get(name, "")}
    try:
        requests.grant(store, config, id, trimmed, requests.reason(form["answer"]), by)
    except Refused as error:
        return _page(id, form, form.take(error, _ALIASES, (*fields, "answer")))
    effect = "created" if found["action"] == "create" else "resized"
    message = f"Request granted. {found['name']} of {found['user']} is being {effect}."
    return shell.see("request_page.show", message, id=id)


@blueprint.route("/requests/<id>/decline", methods=["POST"])
@once
def decline(id: str) -> Response:
    """Decline, with a reason."""
    form = Form.sent()
    try:
        requests.decline(state().store, id, requests.reason(form["no"], needed=True), principal(), state().config)
    except Refused as error:
        return _page(id, form, form.take(error, {"reason": "no"}, ("no",)))
    return shell.see("request_page.show", "Request declined. The requester can see your reason.", id=id)


@blueprint.route("/requests/<id>/withdraw", methods=["POST"])
@once
def withdraw(id: str) -> Response:
    """Withdraw the user's own request."""
    requests.withdraw(state().store, id, principal())
    return shell.see("request_page.show", "Withdrawn.", id=id)


def _page(id: str, form: Form | None = None, status: int = 200) -> Response:
    by = principal()
    with state().store.read() as c:
        found = people.requests(c, by, id)[0]
        project = people.project_list(c, by, found["project"])[0] if by.sees(found["project"]) else None
        slice_ = _slice(c, id) if project else None
        there = project is not None and slice_views.is_there(c, found["project"], found["name"])
    waits = found["state"] == RequestState.WAITING
    may = {"decide": waits and by.leads(found["project"]), "withdraw": waits and by.user == found["user"]}
    values = {
        "project": project,
        "may": may,
        "slice": slice_,
        "slice_is_there": there,
        "asked": _typed(found["wanted"]),
    }
    values["granted"] = _typed(found["granted"] or {})
    return shell.show(
        "requests/show.html", status, form=form or Form(_typed(found["wanted"])), request_=found, **values
    )


def _slice(c: Connection, id: str) -> dict[str, Any] | None:
    """The slice that the request is to resize, unless it was deleted."""
    wanted = requests.find(c, id, principal()).slice
    return slice_views.with_id(c, wanted) if wanted else None


def _typed(wanted: dict[str, Any]) -> dict[str, str]:
    """The fields of a request that may be reduced, as texts for the form."""
    return {name: _text(name, wanted[name]) for name in _GRANT["create"] if wanted.get(name) is not None}


def _text(name: str, value: Any) -> str:
    if name in SIZES and isinstance(value, int):
        return words.typed_size(value)
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, int | float) else str(value)
