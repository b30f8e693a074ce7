"""The pages. This first one lists the slices; signing in and requesting one come with people and projects."""

from __future__ import annotations

from flask import Blueprint, Response, render_template

from slicemgr import __version__
from slicemgr.service import views
from slicemgr.web.state import state

blueprint = Blueprint("pages", __name__, template_folder="templates")


@blueprint.route("/")
def index() -> Response:
    """How many slices and slivers there are: nothing of them that a stranger could use."""
    with state().store.read() as c:
        slices = views.slices(c)
        nodes = views.nodes(c, state().config.network)
    text = render_template("index.html", slices=slices, nodes=nodes, version=__version__)
    response = Response(text, mimetype="text/html")
    response.headers["Content-Security-Policy"] = (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    )
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response
