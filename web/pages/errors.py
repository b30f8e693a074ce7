"""Errors as HTML pages. The REST API responds with problem+json."""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, request
from flask_wtf.csrf import CSRFError

from slicemgr.web import problems
from slicemgr.web.pages import browser_session, kept_form, shell, slice_shown

_TITLES = {
    403: "Permission denied",
    404: "Not found",
    405: "Not found",
    408: "Request timeout",
    409: "Conflict",
    413: "Request too large",
    422: "Invalid request",
    429: "Too many requests",
    500: "Internal error",
    503: "Service unavailable",
}
_HINTS = {
    404: "It may have been deleted, or it may belong to a project of which you are not a member.",
    413: "A form can contain at most 4 MiB.",
    500: "Try again. If the error persists, report its number to an admin of the testbed, who finds it in the log.",
}
_REST = ("/api/", "/healthz", "/metrics")


def install(app: Flask) -> None:
    app.extensions[problems.PAGE] = _page
    app.register_error_handler(CSRFError, _not_our_form)


def _not_our_form(error: CSRFError) -> Response:
    """A page of an earlier session: its form is shown again. Forms of other sites are refused."""
    if browser_session.signed_in() and (page := kept_form.keep()):
        return Response(status=303, headers={"Location": page})
    problem = {
        "status": 400,
        "title": "This form has expired",
        "detail": "The form does not contain a valid token of this session.",
        "hint": "Go back, reload the page, and send the form again. Nothing was changed.",
    }
    return _page(problem) or Response(status=400)


def _page(problem: dict[str, Any]) -> Response | None:
    """The page for a problem; None if the client is no browser that requested a page."""
    if request.path.startswith(_REST):
        return None
    status = int(problem["status"])
    if status == 405 and request.method == "GET" and (page := kept_form.page_of(request.path)):  # a form's URL
        query, section = request.query_string.decode("ascii", "replace"), slice_shown.section_of(request.path)
        query += f"{'&' if query else ''}section={section}#{section}" if section else ""
        return Response(status=303, headers={"Location": browser_session.local(f"{page}?{query}".rstrip("?"))})
    title = problem["title"] if status == 400 else _TITLES.get(status, problem["title"])
    detail, hint = str(problem["detail"]), str(problem.get("hint") or "")
    if "slicectl" in hint or not hint:  # hints name commands
        hint = _HINTS.get(status, "")
    browser_session.signed_in()  # the page shows the navigation of the user
    return shell.show("error.html", status, problem_status=status, title=title, detail=detail, hint=hint)
