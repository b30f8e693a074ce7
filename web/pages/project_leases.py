"""The lease policy of a project: PIs set default and reminders, admins window and exemption."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flask import Response

from slicemgr.errors import Refused
from slicemgr.policy import access, leases
from slicemgr.service.leases import rules as lease_rules
from slicemgr.web.pages import shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.state import principal, state

_OF_PIS = ("default", "reminders")
_OF_ADMINS = (*_OF_PIS, "window", "exempt")
_NONE = "none"  # as typed: no reminders

blueprint = shell.blueprint("project_leases", under="project_page.every")


@blueprint.route("/projects/<name>/leases")
def show(name: str) -> Response:
    return _page(name, None)


@blueprint.route("/projects/<name>/leases", methods=["POST"])
@once
def change(name: str) -> Response:
    """Change the policy; an empty field uses the node's setting. Only changed fields are sent."""
    form, by = Form.sent(), principal()
    before = _typed(_rules(name))
    changed = [field for field in (_OF_ADMINS if by.admin else _OF_PIS) if form[field] != before[field]]
    body = {field: _value(field, form[field]) for field in changed}
    try:
        lease_rules.change(state().store, state().config, name, body, by)
    except Refused as error:
        return _page(name, form, form.take(error, known=_OF_ADMINS))
    return shell.see("project_page.show", "Saved.", name=name)


def _rules(name: str) -> dict[str, Any]:
    """The policy, for users who may change part of it."""
    by = principal()
    access.describe_project(by, name)
    with state().store.read() as c:
        return lease_rules.view(c, state().config, name, by)


def _page(name: str, form: Form | None, status: int = 200) -> Response:
    rules, node = _rules(name), state().config.lease
    usual = {"default": leases.text(node.default), "window": _window(int(node.window.total_seconds()))}
    usual["reminders"] = _spans([int(one.total_seconds()) for one in node.reminders]) or _NONE
    return shell.show("projects/leases.html", status, form=form or Form(_typed(rules)), rules=rules, usual=usual)


def _typed(rules: dict[str, Any]) -> dict[str, str]:
    """The project's own settings, as texts for the form."""
    own = {
        "default": _text(rules["default"]),
        "window": _text(rules["window"]),
        "reminders": _spans(rules["reminders"]) or _NONE,
    }
    typed = {field: text if field in rules["own"] else "" for field, text in own.items()}
    return {**typed, "exempt": "yes" if rules["exempt"] else ""}


def _value(field: str, text: str) -> Any:
    """The JSON for a typed value."""
    if field == "exempt":
        return text == "yes"
    if not text:
        return None
    if field == "reminders":
        return [] if text.lower() == _NONE else [one.strip() for one in text.split(",")]
    return "0s" if field == "window" and text == "0" else text


def _text(seconds: int) -> str:
    return leases.text(timedelta(seconds=seconds))


def _spans(seconds: list[int]) -> str:
    return ", ".join(map(_text, seconds))


def _window(seconds: int) -> str:
    return _text(seconds) if seconds else "at any time"
