"""A sliver's console and a machine's screen in the browser: a page and a route for its token.

xterm.js creates style elements: the policy allows those with the page's nonce (`static/screens/policy.js`).
"""

from __future__ import annotations

import secrets

from flask import Response, jsonify, render_template, request, url_for

from slicemgr.service.slices import consoles
from slicemgr.web import console
from slicemgr.web.pages import shell
from slicemgr.web.state import principal, state

_WHAT = "/slices/<name>/<int:index>/<any(console, screen):what>"

blueprint = shell.blueprint("screens", under="slices_page.mine")


@blueprint.route(_WHAT)
def show(name: str, index: int, what: str) -> Response:
    """Show the page. Refused(NOT_FOUND, DENIED), or INVALID for the screen of a sliver without one."""
    project = request.args.get("project") or None
    with state().store.read() as c:
        place = consoles.find(c, name, index, principal(), project=project, screen=what == "screen")
    nonce = secrets.token_urlsafe(16)
    text = render_template(
        f"screens/{what}.html",
        name=name,
        index=index,
        type=place.type,
        screen=place.screen,
        nonce=nonce,
        ticket=url_for("screens.ticket", name=name, index=index, what=what, project=place.project),
        other=url_for(
            "screens.show",
            name=name,
            index=index,
            what="console" if what == "screen" else "screen",
            project=place.project,
        ),
        back=url_for("slice_page.show", name=name, project=place.project),
    )
    response = Response(text, mimetype="text/html")
    response.headers["Content-Security-Policy"] = shell.POLICY.replace(
        "style-src 'self'", f"style-src 'self' 'nonce-{nonce}'"
    )
    return response


@blueprint.route(_WHAT + "/ticket", methods=["POST"])
def ticket(name: str, index: int, what: str) -> Response:
    """Issue a short-lived one-time token and the address; as JSON, for the page's script."""
    project = request.args.get("project") or None
    token = consoles.ask(state().store, name, index, principal(), project=project, screen=what == "screen")
    response: Response = jsonify(token=token, path=console.PATH)
    response.headers["Cache-Control"] = "no-store"
    return response
