"""The connections that nodes open when the service asks for them, with a token that they sign."""

from __future__ import annotations

from functools import partial

from flask import Response, request
from flask_smorest import Blueprint

from slicemgr.errors import Code, Refused, invalid
from slicemgr.ipc import tunnel
from slicemgr.service.nodes import dials
from slicemgr.store.updates import utcnow
from slicemgr.web import schemas
from slicemgr.web.console import Served
from slicemgr.web.state import state

routes = Blueprint("node_dials", __name__, description="Connections of nodes to the service")


@routes.route(tunnel.PATH, websocket=True)
@routes.doc(
    responses={"101": {"description": "a WebSocket; binary frames carry the packets of one console or question"}}
)
@routes.alt_response(400, schema=schemas.Problem)
@routes.alt_response(403, schema=schemas.Problem)
def open_dial() -> Response:
    """Open a connection that the service has asked a node for: `Sec-WebSocket-Protocol: slicemgr.dial.v1, token.TOKEN`.

    Only nodes use this. TOKEN has the secret of the order, signed with the key of the node's certificate.
    """
    from slicemgr.ipc import websocket

    connection = request.environ.get("gunicorn.socket")
    if connection is None:
        raise invalid("Upgrade", "this server does not support WebSocket", "run the service with `slicemgr web`")
    protocol, text = websocket.accept(request.headers.items(), tunnel.PATH, tunnel.PROTOCOL)
    if "Origin" in request.headers:
        raise Refused(Code.DENIED, "pages cannot open connections of nodes", field="Origin")
    token = dials.judge(state().store, text, utcnow())
    accept = partial(websocket.opened, connection, protocol, tunnel.PROTOCOL)
    state().dials.serve(token.identity, token.secret, accept)
    return Served()
