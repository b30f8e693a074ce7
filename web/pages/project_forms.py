"""Create, change and delete projects and their limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any

from flask import Response, request

from slicemgr.errors import Refused
from slicemgr.policy import access, leases
from slicemgr.policy.quota import RESOURCES, SIZES
from slicemgr.service.projects import projects
from slicemgr.service.views import people
from slicemgr.web.pages import shell, words
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

LEVELS = (projects.QUOTA, projects.CEILING)
NAMES = (*RESOURCES, "lease")
_COLUMNS: dict[str, Callable[[Row], Any]] = {
    "name": itemgetter("name"),
    "members": lambda one: len(one["members"]),
    **{name: partial(lambda name, one: one["used"][name], name) for name in RESOURCES},
    "lease": lambda one: one["quota"]["lease"],
}

blueprint = shell.blueprint(
    "project_forms",
    Entry("project_forms.quotas", "Quotas", "quota", 63, "Testbed", admin=True),
    under="project_page.every",
)


@blueprint.route("/quotas")
def quotas() -> Response:
    """All projects in one table."""
    access.make_project(principal())
    with state().store.read() as c:
        found = people.project_list(c, principal())
    sorting = Sorting(_COLUMNS)
    return shell.show("projects/quotas.html", projects=sorting.rows(found), names=RESOURCES, sorting=sorting)


@blueprint.route("/new-project")
def ask() -> Response:
    access.make_project(principal())
    return _new(Form())


@blueprint.route("/new-project", methods=["POST"])
@once
def make() -> Response:
    """Create a project; empty limits use the defaults of the testbed."""
    access.make_project(principal())
    form = Form.sent()
    try:
        limits = {level: _limits(form, level, empty_is=()) for level in LEVELS}
        body: dict[str, Any] = {"name": form["name"], "description": form["description"], **limits}
        if form["pi"]:
            body["pi"] = form["pi"]
        name = projects.create(state().store, state().config, body, principal())
    except Refused as error:
        return _new(form, form.take(error, known=("name", "description", "pi", *_fields())))
    return shell.see("project_page.show", f"{name} was created. Add its members now.", name=name)


@blueprint.route("/projects/<name>/settings")
def settings(name: str) -> Response:
    """Description and quota, and for admins the ceiling."""
    return _settings(name, None)


@blueprint.route("/projects/<name>/settings", methods=["POST"])
@once
def change(name: str) -> Response:
    """Change the project; an empty limit is no limit."""
    form, by = Form.sent(), principal()
    body: dict[str, Any] = {"description": form["description"]}
    sent = any(f"{projects.QUOTA}.{name}" in request.form for name in NAMES)
    for level in LEVELS if by.admin else LEVELS[:1] if sent else ():  # a PI may send the description alone
        body[level] = _limits(form, level, empty_is=NAMES)
    try:
        projects.change(state().store, name, body, by)
    except Refused as error:
        return _settings(name, form, form.take(error, known=("description", *_fields())))
    return shell.see("project_page.show", "Saved.", name=name)


@blueprint.route("/projects/<name>/delete", methods=["POST"])
@once
def delete(name: str) -> Response:
    """Delete an empty project, if its name was typed."""
    access.limit_project(principal(), name)
    form = Form.sent()
    if form["typed"] != name:
        form.errors["typed"] = [f"Type {name} to confirm."]
        return _settings(name, None, 422, ending=form)
    try:
        projects.delete(state().store, name, principal())
    except Refused as error:
        return _settings(name, None, form.take(error, known=("typed",)), ending=form)
    return shell.see("project_page.every", f"{name} was deleted.")


def _new(form: Form, status: int = 200) -> Response:
    with state().store.read() as c:
        users = [one["name"] for one in people.users(c, principal()) if one["enabled"]]
    pis = [("", "none"), *((name, name) for name in users)]
    return shell.show("projects/new.html", status, form=form, pis=pis, names=NAMES)


def _settings(name: str, form: Form | None, status: int = 200, ending: Form | None = None) -> Response:
    by = principal()
    access.see_project(by, name)
    access.describe_project(by, name)
    with state().store.read() as c:
        project = people.project_list(c, by, name)[0]
    values = {
        "project": project,
        "names": NAMES,
        "ending": ending or Form(),
        "levels": LEVELS if by.admin else LEVELS[:1],
    }
    return shell.show("projects/settings.html", status, form=form or Form(_typed(project)), **values)


def _typed(project: dict[str, Any]) -> dict[str, str]:
    """The limits of a project, as texts for the form."""
    values = {f"{level}.{name}": _text(name, project[level][name]) for level in LEVELS for name in NAMES}
    return {"description": project["description"] or "", **values}


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in SIZES:
        return words.typed_size(value)
    return leases.text(timedelta(seconds=value)) if name == "lease" else f"{value:g}"


def _limits(form: Form, level: str, empty_is: tuple[str, ...]) -> dict[str, Any]:
    """The JSON for the fields of one level. empty_is: empty fields that mean no limit; others are left out."""
    found: dict[str, Any] = {}
    for name in NAMES:
        text = form[f"{level}.{name}"]
        if text or name in empty_is:
            found[name] = _number(name, text) if text else None
    return found


def _number(name: str, text: str) -> Any:
    """Counts as numbers; other text is kept, and refused by the service."""
    if name in (*SIZES, "lease"):
        return text
    try:
        return float(text) if name == "vcpus" else int(text)
    except ValueError:
        return text


def _fields() -> tuple[str, ...]:
    return tuple(f"{level}.{name}" for level in LEVELS for name in NAMES)
