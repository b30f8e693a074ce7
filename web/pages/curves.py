"""The data of a page's curves: samples of a slice or a node in the format of REST, for the signed-in user."""

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
    """For users who may see the slice."""
    return _told(samples.slice_samples(name))


@blueprint.route("/nodes/<name>/samples")
def of_node(name: str) -> Response:
    """For admins, as the page of the node."""
    access.run_on_node(principal(), "use the admin pages")
    return _told(samples.node_samples(name))


def _told(answer: Any) -> Response:
    response: Response = answer if isinstance(answer, Response) else jsonify(answer)
    response.headers["Cache-Control"] = "no-store"
    return response
