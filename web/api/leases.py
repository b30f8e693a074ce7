"""The lease policy of a project, and the clock that leases use."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.service.leases import clock, rules
from slicemgr.web import schemas, schemas_leases
from slicemgr.web.api import reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("leases", __name__, url_prefix="/api/v1", description="Leases and the clock they go by")


@routes.route("/projects/<name>/leases", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_leases.LeaseRules)
@routes.alt_response(404, schema=schemas.Problem)
def show_leases(name: str) -> Answer:
    """Show the lease policy: default, longest, grace period, renewal window, reminders and exemption."""
    with state().store.read() as c:
        return rules.view(c, state().config, name, principal())


@routes.route("/projects/<name>/leases", methods=["PATCH"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_leases.LEASE_RULES))
@routes.alt_response(200, schema=schemas_leases.LeaseRules)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def change_leases(name: str) -> Answer:
    """Change default and reminders (PIs), window and exempt (admins). null restores the default of the testbed."""
    rules.change(state().store, state().config, name, reading.body(), principal())
    return show_leases(name)


@routes.route("/clock", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_leases.Clock)
def show_clock() -> Answer:
    """Show the clock that leases use, and whether the clock of the node is in doubt."""
    with state().store.read() as c:
        return clock.view(c)


@routes.route("/clock/confirm", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_leases.Clock)
@routes.alt_response(403, schema=schemas.Problem)
def confirm_clock() -> Answer:
    """Confirm the clock of the node (admins). Leases that have expired by it then end."""
    clock.confirm(state().store, principal())
    return show_clock()
