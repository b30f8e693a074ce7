"""Shared by all pages: navigation by role, headers, redirects after a change, parts that update themselves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Flask, Response, current_app, flash, g, redirect, render_template, request, url_for
from markupsafe import Markup

from slicemgr import __version__
from slicemgr.service.restores import review
from slicemgr.web.pages import assets, browser_session, kept_form
from slicemgr.web.state import state

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_STOP_POLLING = 286  # htmx's own


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the navigation. group: "" without a heading. admin: for admins alone.

    badge: the name of a template that shows a count.
    """

    endpoint: str
    label: str
    icon: str
    order: int
    group: str = ""
    admin: bool = False
    badge: str = ""


def blueprint(name: str, *entries: Entry, is_open: bool = False, under: str = "") -> Blueprint:
    """A blueprint of pages for signed-in users, or with is_open for everyone; its forms are protected.

    under: the endpoint of the entry that the navigation marks on its pages that have no entry of their own.
    """
    made = Blueprint(name, __name__)
    if under:
        made.record(lambda setup: setup.app.extensions.setdefault("slicemgr.under", {}).update({name: under}))
    if not is_open:
        made.before_request(browser_session.require)
    made.before_request(browser_session.protect)
    made.record(lambda setup: setup.app.extensions.setdefault("slicemgr.navigation", []).extend(entries))
    return made


def uploads(name: str) -> Blueprint:
    """A blueprint for uploads: each route calls `browser_session.protect` itself, before it reads the file."""
    made = Blueprint(name, __name__)
    made.before_request(browser_session.require)
    return made


def install(app: Flask) -> None:
    app.after_request(_headers)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.context_processor(
        lambda: {
            "by": g.get("principal"),
            "asset": assets.url,
            "version": __version__,
            "navigation": _navigation(),
            "current_entry": _current_entry(),
            "form_kept": bool(kept_form.read()),
        }
    )
    app.context_processor(lambda: {"hold_notice": _hold})


def _hold() -> str:
    """The state of the hold after a restore, "" without one."""
    with state().store.read() as c:
        return review.notice(c)


def _navigation() -> list[tuple[str, list[Entry]]]:
    """The user's navigation entries, by group, in their order."""
    by = g.get("principal")
    if by is None:
        return []
    groups: dict[str, list[Entry]] = {}
    every: list[Entry] = current_app.extensions.get("slicemgr.navigation", [])
    for entry in sorted(every, key=lambda one: one.order):
        if by.admin or not entry.admin:
            groups.setdefault(entry.group, []).append(entry)
    return list(groups.items())


def _current_entry() -> str:
    """The endpoint of the navigation entry to which the page belongs, "" if there is none."""
    entries = [one.endpoint for one in current_app.extensions.get("slicemgr.navigation", [])]
    if request.endpoint in entries:
        return str(request.endpoint)
    under: dict[str, str] = current_app.extensions.get("slicemgr.under", {})
    own = (one for one in entries if one.split(".")[0] == request.blueprint)
    return under.get(request.blueprint or "") or next(own, "")


def _headers(response: Response) -> Response:
    """The headers of every response; a page that needs another policy sets its own."""
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Referrer-Policy", "same-origin")  # forms need the Referer for their check over TLS
    response.headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
    if response.mimetype == "text/html":
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers.setdefault("X-Frame-Options", "DENY")
        response.headers.setdefault("Cache-Control", "no-store")
    else:
        response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    return response


def show(template: str, status: int = 200, **values: Any) -> Response:
    """Render a page."""
    return Response(render_template(template, **values), status, mimetype="text/html")


def see(endpoint: str, message: str = "", kind: str = "good", **values: Any) -> Response:
    """Redirect to a page after a change; the page begins with the message. kind: good, notice, bad."""
    if message:
        flash(message, kind)
    response: Response = redirect(url_for(endpoint, **values), 303)  # type: ignore[assignment]
    return response


def part(template: str, name: str, *, every: float, path: str, **values: Any) -> Markup:
    """A part of a page that updates itself: a `<div id=name>` that requests `path` every `seconds` (0: no more).

    In a page: `{{ the_part }}`. The route at `path` responds with `fresh` of the same arguments. The template must not
    contain a token or a random number, otherwise it always counts as changed.
    """
    return _part(template, name, every=every, path=path, **values)[1]


def fresh(template: str, name: str, *, every: float, path: str, **values: Any) -> Response:
    """The response for a part: 204 if the page shows the current content."""
    digest, text = _part(template, name, every=every, path=path, **values)
    if request.args.get("seen") == digest:
        return Response(status=204)
    return Response(text, mimetype="text/html")


def _part(template: str, name: str, *, every: float, path: str, **values: Any) -> tuple[str, Markup]:
    body = Markup(render_template(template, **values))
    digest = hashlib.sha256(f"{every} {body}".encode()).hexdigest()[:16]
    asked = f"{path}{'&' if '?' in path else '?'}seen={digest}"
    return digest, Markup(render_template("parts/live.html", body=body, name=name, every=every, path=asked))


def gone(template: str, **values: Any) -> Response:
    """The last response for a part whose subject no longer exists."""
    return Response(render_template(template, **values), _STOP_POLLING, mimetype="text/html")
