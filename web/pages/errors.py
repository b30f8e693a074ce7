"""Errors as pages, for people. What REST answers stays problem+json."""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, request
from flask_wtf.csrf import CSRFError

from slicemgr.web import problems
from slicemgr.web.pages import door, shell

_TITLES = {
    403: "Not yours to do",
    404: "Not here",
    405: "Not here",
    408: "Too slow",
    409: "This has changed meanwhile",
    413: "Too large",
    422: "That does not fit",
    429: "Too often",
    500: "Something broke",
    503: "Not now",
}
_HINTS = {
    404: "It may have been deleted, or belong to a project that you are not in.",
    413: "A form takes up to 4 MiB.",
    500: "Try again. If it stays, tell an admin of the testbed the number: the service's log has it.",
}
_REST = ("/api/", "/healthz", "/metrics")


def install(app: Flask) -> None:
    app.extensions[problems.PAGE] = _page
    app.register_error_handler(CSRFError, _not_our_form)


def _not_our_form(error: CSRFError) -> Response:
    problem = {
        "status": 400,
        "title": "This form is too old",
        "detail": "The form was sent without the proof that this session made it.",
        "hint": "Go back, reload the page and send it again; nothing happened.",
    }
    return _page(problem) or Response(status=400)


def _page(problem: dict[str, Any]) -> Response | None:
    """The page for a problem; None if the one who asks is no browser looking at pages."""
    if request.path.startswith(_REST):
        return None
    status = int(problem["status"])
    title = problem["title"] if status == 400 else _TITLES.get(status, problem["title"])
    detail, hint = str(problem["detail"]), str(problem.get("hint") or "")
    if "slicectl" in hint or not hint:  # words for a terminal
        hint = _HINTS.get(status, "")
    door.signed_in()  # so that the page has its navigation
    return shell.show("error.html", status, problem_status=status, title=title, detail=detail, hint=hint)
