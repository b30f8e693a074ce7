"""All slices of the testbed, for admins, and actions on several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flask import Response, flash, request

from slicemgr.errors import Code, Refused, SlicemgrError, invalid
from slicemgr.policy import access
from slicemgr.service.slices import slices, specs
from slicemgr.service.views import slices as slice_views
from slicemgr.web.pages import shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.slices import COLUMNS
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

PAGE = 200
MOST = 500  # slices in one action
FILTERS = ("q", "state", "type", "project", "owner")
_COLUMNS: dict[str, Callable[[Row], Any]] = {
    **COLUMNS,
    "memory": lambda one: sum(each["limits"]["memory"] for each in one["slivers"]),
    "created": lambda one: one["created_at"],
}
DOINGS = {"stop": "stopped", "renew": "renewed", "delete": "deleted"}

blueprint = shell.blueprint("all_slices", Entry("all_slices.every", "All slices", "slices", 61, "Testbed", admin=True))


class Chosen(NamedTuple):
    """A slice as the page showed it: created_at distinguishes it from a later one of the same name."""

    project: str
    name: str
    created_at: str

    @classmethod
    def read(cls, text: str) -> Chosen:
        parts = text.split("/")
        if len(parts) != 3:
            raise invalid("chosen", f"{text[:80]!r} is not a slice", "select slices in the list")
        return cls(*parts)


@blueprint.route("/all-slices")
def every() -> Response:
    """The slices by filters, each with a checkbox."""
    _only_admins()
    with state().store.read() as c:
        there = slice_views.slices(c)
    wanted = {name: request.args.get(name, "").strip()[:80] for name in FILTERS}
    sorting = Sorting(_COLUMNS)
    found = sorting.rows([one for one in there if _matches(one, wanted)])
    pages = max(1, -(-len(found) // PAGE))
    number = min(pages, max(1, request.args.get("page", 1, int)))
    choices = {name: sorted({one[name] for one in there}) for name in ("state", "type", "project", "owner")}
    kept = {name: value for name, value in wanted.items() if value}
    values: dict[str, Any] = {"found": len(found), "total": len(there), "number": number, "pages": pages, "kept": kept}
    values["sorting"] = sorting
    shown = found[(number - 1) * PAGE : number * PAGE]
    return shell.show("testbed/slices.html", form=Form(), slices=shown, choices=choices, wanted=wanted, **values)


@blueprint.route("/all-slices/confirm", methods=["POST"])
def confirm() -> Response:
    """Show what the action would do and to which slices."""
    _only_admins()
    try:
        doing, chosen = _asked()
    except Refused as error:
        if error.code is not Code.INVALID:
            raise
        return shell.see("all_slices.every", f"{error.message}: {error.hint}.".capitalize(), "bad")
    return _confirm(doing, chosen, Form({"lease": "7d"}))


@blueprint.route("/all-slices/apply", methods=["POST"])
@once
def apply() -> Response:
    """Apply the action if the confirmation was typed. An error at one slice does not affect the others."""
    _only_admins()
    doing, chosen = _asked()
    form = Form.sent()
    if form["typed"] != phrase(doing, len(chosen)):
        form.errors["typed"] = [f"Type {phrase(doing, len(chosen))} to confirm."]
        return _confirm(doing, chosen, form, 422)
    try:
        lease = specs.renewal(form["lease"]) if doing == "renew" else None
    except Refused as error:
        return _confirm(doing, chosen, form, form.take(error, known=("lease",)))
    done = _each(doing, chosen, lease)
    words = f"{done} {'slice is' if done == 1 else 'slices are'} being {DOINGS[doing]}." if done else ""
    return shell.see("operation_list.every" if done and doing != "renew" else "all_slices.every", words)


def _each(doing: str, chosen: list[Chosen], lease: Any) -> int:
    """Apply the action to each slice; the number of successes. The next page shows the errors."""
    refused = []
    for one in chosen:
        try:
            _do(doing, one, lease)
        except SlicemgrError as error:
            refused.append(f"{one.project}/{one.name}: {error.message}")
    for text in refused[:10]:
        flash(text[:1].upper() + text[1:] + ".", "bad")
    if len(refused) > 10:
        flash(f"{len(refused) - 10} more slices could not be {DOINGS[doing]}.", "bad")
    return len(chosen) - len(refused)


def phrase(doing: str, count: int) -> str:
    """The confirmation to type: `delete 3`."""
    return f"{doing} {count}"


def _only_admins() -> None:
    access.require(principal(), "list all slices")


def _asked() -> tuple[str, list[Chosen]]:
    doing = request.form.get("doing", "")
    if doing not in DOINGS:
        raise invalid("doing", f"{doing[:40]!r} is unknown", ", ".join(DOINGS))
    chosen = [Chosen.read(text) for text in dict.fromkeys(request.form.getlist("chosen"))]
    if not chosen:
        raise invalid("chosen", "no slice is selected", "select at least one slice")
    if len(chosen) > MOST:
        raise invalid("chosen", f"{len(chosen)} slices exceed the limit of one action", f"select at most {MOST}")
    return doing, chosen


def _do(doing: str, one: Chosen, lease: Any) -> None:
    config, store, by = state().config, state().store, principal()
    with store.read() as c:
        row = slices.find(c, one.name, by, one.project)
        shown = slice_views.slice_of(c, row.id)
    if shown["created_at"] != one.created_at:
        raise Refused(Code.CONFLICT, "is now another slice with the same name, created after the page was loaded")
    if doing == "renew":
        slices.renew(store, config, one.name, lease, by, project=one.project)
    else:
        slices.act(store, config, one.name, doing, by, project=one.project)


def _confirm(doing: str, chosen: list[Chosen], form: Form, status: int = 200) -> Response:
    words = phrase(doing, len(chosen))
    values = {"doing": doing, "done": DOINGS[doing], "chosen": chosen, "words": words, "spans": _SPANS}
    return shell.show("testbed/confirm.html", status, form=form, **values)


_SPANS = [("1d", "1 day"), ("7d", "7 days"), ("14d", "14 days"), ("30d", "30 days"), ("90d", "90 days")]


def _matches(one: dict[str, Any], wanted: dict[str, str]) -> bool:
    words = wanted["q"].lower()
    if words and not any(words in str(one[name]).lower() for name in ("name", "image", "owner", "project")):
        return False
    return all(not wanted[name] or one[name] == wanted[name] for name in FILTERS[1:])
