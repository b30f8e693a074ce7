"""The slices of the user's projects, filtered, updated while the page is open."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from flask import Response, request, url_for

from slicemgr.model import RequestState
from slicemgr.policy import access
from slicemgr.service.slices import requests
from slicemgr.service.views import invitations, people
from slicemgr.service.views import slices as slice_views
from slicemgr.web.pages import browser_session, shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

FILTERS = ("q", "state", "type", "project")
COLUMNS: dict[str, Callable[[Row], Any]] = {
    **{name: itemgetter(name) for name in ("name", "state", "type", "image", "project", "owner")},
    "lease": lambda one: one["lease_ended_at"] or one["expires_at"],
}
PAGE = 100  # slices on a page
_AT_REST = {"running", "stopped", "paused", "failed", "partial"}
_SOON, _LATER = 2.0, 10.0  # seconds between updates: during a change, and otherwise

blueprint = shell.blueprint("slices_page", Entry("slices_page.mine", "Slices", "slices", 10))


@blueprint.route("/slices")
def mine() -> Response:
    """All slices that the user may see."""
    wanted = {name: request.args.get(name, "").strip()[:80] for name in FILTERS}
    by = principal()
    with state().store.read() as c:
        every = slice_views.slices(c, access.visible(by))
        asked = [] if browser_session.is_htmx() else people.requests(c, by, state=RequestState.WAITING)
        invited = [] if browser_session.is_htmx() else invitations.of_user(c, by)
    listed = _listed(every, wanted)
    if browser_session.is_htmx():
        return shell.fresh(**listed)
    choices = {name: sorted({one[name] for one in every}) for name in ("state", "type", "project")}
    table = shell.part(**listed)
    own = [one for one in asked if one["user"] == by.user]
    values: dict[str, Any] = {"wanted": wanted, "total": len(every), "requests": own, "form": Form()}
    values |= {"invited": invited, "sorting": listed["sorting"]}
    return shell.show("slices/list.html", choices=choices, table=table, **values)


@blueprint.route("/slices/requests/<id>/withdraw")
def request_of(id: str) -> Response:
    """The page of the request, which also has this form."""
    return shell.see("request_page.show", id=id)


@blueprint.route("/slices/requests/<id>/withdraw", methods=["POST"])
@once
def withdraw(id: str) -> Response:
    """Withdraw a waiting request of the user."""
    requests.withdraw(state().store, id, principal())
    return shell.see("slices_page.mine", "The request was withdrawn.")


def _listed(every: list[dict[str, Any]], wanted: dict[str, str]) -> dict[str, Any]:
    """The content of the table: the arguments of `shell.part`."""
    sorting = Sorting(COLUMNS)
    found = sorting.rows([one for one in every if _matches(one, wanted)])
    pages = max(1, -(-len(found) // PAGE))
    number = min(pages, max(1, request.args.get("page", 1, int)))
    shown = found[(number - 1) * PAGE : number * PAGE]
    filters: dict[str, Any] = {name: value for name, value in wanted.items() if value}
    return {
        "template": "slices/table.html",
        "name": "slices",
        "every": _SOON if any(one["state"] not in _AT_REST for one in shown) else _LATER,
        "path": url_for("slices_page.mine", **filters, sort=sorting.value, page=None if number == 1 else number),
        "slices": shown,
        "found": len(found),
        "total": len(every),
        "number": number,
        "pages": pages,
        "filters": filters,
        "sorting": sorting,
        "several": len({one["project"] for one in every}) > 1,
    }


def _matches(one: dict[str, Any], wanted: dict[str, str]) -> bool:
    words = wanted["q"].lower()
    if words and not any(words in str(one[name]).lower() for name in ("name", "image", "owner", "project")):
        return False
    return all(not wanted[name] or one[name] == wanted[name] for name in ("state", "type", "project"))
