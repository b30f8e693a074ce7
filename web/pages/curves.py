"""What the curves of a page draw: samples of a slice or a node as REST has them, for who is signed in."""

from __future__ import annotations

from typing import Any

from flask import Response, jsonify

from slicemgr.policy import access
from slicemgr.web.api import samples
from slicemgr.web.pages import shell
from slicemgr.web.state import principal

blueprint = shell.blueprint("curves")


@blueprint.route("/slices/<name>/samples")
def of_slice(name: str) -> Response:
    """Of whoever may see the slice."""
    return _told(samples.slice_samples(name))


@blueprint.route("/nodes/<name>/samples")
def of_node(name: str) -> Response:
    """The admins', as the node's page is."""
    access.run_on_node(principal(), "use the admin pages")
    return _told(samples.node_samples(name))


def _told(answer: Any) -> Response:
    response: Response = answer if isinstance(answer, Response) else jsonify(answer)
    response.headers["Cache-Control"] = "no-store"
    return response
