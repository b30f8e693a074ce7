"""Published experiments: the list, one with its report in a frame, and the actions of admins."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from flask import Response, request

from slicemgr.errors import Refused
from slicemgr.policy import access, experiments
from slicemgr.service.experiments import publications
from slicemgr.web import foreign
from slicemgr.web.pages import shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

PAGE = 50
_COLUMNS: dict[str, Callable[[Row], Any]] = {
    **{name: itemgetter(name) for name in ("name", "kind", "node")},
    "run": itemgetter("started_at"),
    "published": itemgetter("published_at"),
}
_FIELDS = ("name", "note")
_DONE = {
    "show": "{} is now visible to all users.",
    "hide": "{} is now visible to admins only.",
    "delete": "{} was deleted.",
}
_WHAT = f"any({', '.join(_DONE)}):what"

blueprint = shell.blueprint("experiment_page", Entry("experiment_page.every", "Experiments", "curve", 37))


@blueprint.route("/experiments")
def every() -> Response:
    """The published experiments, the newest first; for admins also the hidden ones."""
    with state().store.read() as c:
        found = publications.views(c, principal())
    sorting = Sorting(_COLUMNS, "-published")
    if sorting.value:
        found = sorting.rows(found)
    pages = max(1, -(-len(found) // PAGE))
    number = min(pages, max(1, request.args.get("page", 1, int)))
    shown = found[(number - 1) * PAGE : number * PAGE]
    return shell.show("experiments/list.html", experiments=shown, number=number, pages=pages, sorting=sorting)


@blueprint.route("/experiments/<id>")
def show(id: str) -> Response:
    """One experiment: its outcome, report and files."""
    return _page(id)


@blueprint.route("/experiments/<id>/describe", methods=["POST"])
@once
def describe(id: str) -> Response:
    """Change name or note."""
    form = Form.sent()
    try:
        publications.change(state().store, id, {field: form[field] for field in _FIELDS}, principal())
    except Refused as error:
        return _page(id, form, form.take(error, known=_FIELDS))
    return shell.see("experiment_page.show", "The name and note were saved.", id=id)


@blueprint.route("/experiments/<id>/files/<file>")
def file(id: str, file: str) -> Response:
    """One file of the experiment, in a sandbox."""
    with state().store.read() as c:
        path = publications.file(c, state().config, id, file, principal())
    return foreign.answer(path, experiments.media_type(file))


@blueprint.route(f"/experiments/<id>/<{_WHAT}>")
def confirm(id: str, what: str) -> Response:
    """Show the effect of an action and ask for confirmation."""
    one = _found(id)
    access.change_experiment(principal(), one["public"], id)
    return shell.show("experiments/confirm.html", one=one, what=what, form=Form())


@blueprint.route(f"/experiments/<id>/<{_WHAT}>", methods=["POST"])
@once
def do(id: str, what: str) -> Response:
    """Show it to all users, hide it, or delete it."""
    one, by = _found(id), principal()
    if what == "delete":
        publications.delete(state().store, state().config, id, by)
        return shell.see("experiment_page.every", _DONE[what].format(one["name"]))
    publications.change(state().store, id, {"public": what == "show"}, by)
    return shell.see("experiment_page.show", _DONE[what].format(one["name"]), id=id)


def _found(id: str) -> dict[str, Any]:
    with state().store.read() as c:
        return publications.views(c, principal(), id)[0]


def _page(id: str, form: Form | None = None, status: int = 200) -> Response:
    one = _found(id)
    form = form or Form({"name": one["name"], "note": one["note"] or ""})
    limits = {"name": experiments.LONGEST_NAME, "note": experiments.LONGEST_NOTE}
    response = shell.show("experiments/show.html", status, one=one, form=form, limits=limits, report=experiments.REPORT)
    response.headers["Content-Security-Policy"] = f"{shell.POLICY}; frame-src 'self'"
    return response
