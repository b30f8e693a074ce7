"""Audits of a node, for admins."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.policy import access
from slicemgr.service.nodes import audits, nodes
from slicemgr.web import schemas, schemas_audits
from slicemgr.web.api import reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("audits", __name__, url_prefix="/api/v1/nodes/<name>", description="Audits of a node")


@routes.route("/audit", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_audits.Audit)
@routes.alt_response(404, schema=schemas.Problem)
def show_audit(name: str) -> Answer:
    """Show the last audit of the node."""
    with state().store.read() as c:
        return audits.last(c, name, principal())


@routes.route("/audit", methods=["PUT"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_audits.REQUEST))
@routes.alt_response(200, schema=schemas_audits.Audit)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def keep_audit(name: str) -> Answer:
    """Store the table of an audit. It replaces the last one."""
    access.run_on_node(principal(), "audit")
    body = reading.body()
    reading.only(body, "began_at", "rows")
    audits.keep(state().store, name, body, principal())
    with state().store.read() as c:
        return audits.last(c, name, principal())


@routes.route("/tables", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(202, schema=schemas.Asked)
@routes.alt_response(404, schema=schemas.Problem)
def read_tables(name: str) -> Answer:
    """Read the usage of the shared kernel tables of the node. The result has `tables`."""
    return reading.asked(nodes.request(state().store, state().config, name, "tables", principal(), {})), 202
