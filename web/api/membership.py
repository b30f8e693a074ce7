"""Nodes that join a testbed: the actions of admins, and the requests of the hosts, which have no token of the API."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.service.nodes import evacuation, joining, membership, renewal
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views.formats import Json, when
from slicemgr.web import schemas, schemas_nodes, server
from slicemgr.web.api import reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import address, principal, state

routes = Blueprint("membership", __name__, url_prefix="/api/v1/nodes", description="Nodes of the testbed")
open_routes = Blueprint("join", __name__, url_prefix="/api/v1", description="Hosts that join the testbed")


def _node(name: str) -> Json:
    with state().store.read() as c:
        return node_views.nodes(c, state().config.network, name)[0]


def join_command(made: membership.Added) -> str:
    """What the host of an added node runs."""
    url = (state().config.web.url or server.url(state().config)).rstrip("/")
    return f"slicemgr join {url} {made.token}#{made.authority}"


@routes.route("", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_nodes.NODE_REQUEST))
@routes.alt_response(201, schema=schemas_nodes.AddedNode)
@routes.alt_response(409, schema=schemas.Problem)
def add_node() -> Answer:
    """Add a node. The response has the command for its host, which works once, within an hour."""
    made = membership.add(state().store, reading.body(), principal())
    return {"node": _node(made.node), "command": join_command(made), "expires_at": when(made.expires_at)}, 201


@routes.route("/<name>", methods=["DELETE"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_nodes.Removed)
@routes.alt_response(409, schema=schemas.Problem)
def remove_node(name: str) -> Answer:
    """Remove a node without slivers, and revoke its certificate."""
    membership.remove(state().store, name, principal())
    return {"removed": name}


@routes.route("/<name>/drain", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas.Node)
def drain_node(name: str) -> Answer:
    """Place no new slivers on a node. Those on it are not changed."""
    membership.drain(state().store, name, principal())
    return _node(name)


@routes.route("/<name>/undrain", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas.Node)
def undrain_node(name: str) -> Answer:
    """Place new slivers on a node again."""
    membership.drain(state().store, name, principal(), drained=False)
    return _node(name)


@routes.route("/<name>/resync", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas.Node)
@routes.alt_response(409, schema=schemas.Problem)
def resync_node(name: str) -> Answer:
    """Send a node all its rows again. `resync_at` is null when the node has them."""
    membership.resync(state().store, state().config, name, principal())
    return _node(name)


@routes.route("/<name>/evacuate", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_nodes.EVACUATE_REQUEST))
@routes.alt_response(202, schema=schemas_nodes.Evacuation)
@routes.alt_response(409, schema=schemas.Problem)
def evacuate_node(name: str) -> Answer:
    """Make the slivers of a lost node again from their images, on other nodes. Their data is lost."""
    body = reading.body()
    reading.only(body, "lost")
    made = evacuation.evacuate(state().store, state().config, name, principal(), lost=reading.flag(body, "lost"))
    with state().store.read() as c:
        found = [operation_views.operation(c, one) for one in made.operations]
    left = [{"project": one.project, "slice": one.slice, "reason": one.reason.message} for one in made.left]
    return {"operations": found, "left": left}, 202


@routes.route("/<name>/rename", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_nodes.RENAME_REQUEST))
@routes.alt_response(200, schema=schemas.Node)
@routes.alt_response(409, schema=schemas.Problem)
def rename_node(name: str) -> Answer:
    """Rename a node that was added by a command. Its certificate stays valid."""
    body = reading.body()
    reading.only(body, "name")
    return _node(membership.rename(state().store, name, body.get("name"), principal()))


@open_routes.route("/authority", methods=["GET"])
@open_routes.alt_response(200, schema=schemas_nodes.AuthorityCertificate)
@open_routes.alt_response(409, schema=schemas.Problem)
def show_authority() -> Answer:
    """The certificate of the authority, whose fingerprint is in the command for a new node, and the broker."""
    return {"certificate": joining.authority(state().store), "broker": state().config.hub.broker}


@open_routes.route("/join", methods=["POST"])
@open_routes.doc(requestBody=schemas.body(schemas_nodes.JOIN_REQUEST))
@open_routes.alt_response(200, schema=schemas_nodes.Membership)
@open_routes.alt_response(403, schema=schemas.Problem)
@open_routes.alt_response(422, schema=schemas.Problem)
def join_testbed() -> Answer:
    """Request a certificate for a new node. `certificate` is empty until the signer has answered: send it again."""
    body = reading.body()
    reading.only(body, "token", "request")
    token = reading.text(body, "token")
    made = joining.join(state().store, token, body.get("request"), address())
    broker = state().config.hub.broker
    return {
        "node": made.node,
        "site": made.site,
        "identity": made.identity,
        "certificate": made.certificate,
        "broker": broker,
    }


@open_routes.route("/join/withdraw", methods=["POST"])
@open_routes.doc(requestBody=schemas.body(schemas_nodes.JOIN_REQUEST))
@open_routes.alt_response(200, schema=schemas_nodes.Withdrawn)
@open_routes.alt_response(403, schema=schemas.Problem)
def withdraw_join() -> Answer:
    """Undo a join that failed at its host: the certificate is revoked, and the token can be used again."""
    body = reading.body()
    reading.only(body, "token", "request")
    return {"withdrawn": joining.withdraw(state().store, reading.text(body, "token"), body.get("request"), address())}


@open_routes.route("/renew", methods=["POST"])
@open_routes.doc(requestBody=schemas.body(schemas_nodes.RENEW_REQUEST))
@open_routes.alt_response(200, schema=schemas_nodes.RenewedCertificate)
@open_routes.alt_response(403, schema=schemas.Problem)
@open_routes.alt_response(422, schema=schemas.Problem)
def renew_certificate() -> Answer:
    """Request a new certificate for the key of a node. `certificate` is empty until it is issued: send it again."""
    body = reading.body()
    reading.only(body, "identity", "request")
    found = renewal.renew(state().store, reading.text(body, "identity"), body.get("request"), address())
    return {"certificate": found}
