"""A question before a change that is hard to undo: a page with the same form, which sends it again as confirmed.

It needs no script, and a confirmed form that is sent directly, such as by a test, is not asked about again.
"""

from __future__ import annotations

from typing import Any

from flask import Response, request

from slicemgr.web.pages import shell
from slicemgr.web.pages.form import FIELD, Form

_FIELD = "confirmed"
_OWN = ("csrf_token", FIELD, _FIELD)


def given() -> bool:
    """Whether the submitted form confirms its change."""
    return request.form.get(_FIELD) == "yes"


def ask(title: str, words: str, button: str, back: str) -> Response:
    """The page with the question. words: what the change does. button: its verb. back: the URL of the cancel link."""
    fields = [(name, value) for name, value in request.form.items(multi=True) if name not in _OWN]
    values: dict[str, Any] = {"title": title, "words": words, "button": button, "back": back, "fields": fields}
    return shell.show("confirm.html", form=Form(), action=request.full_path.rstrip("?"), **values)
