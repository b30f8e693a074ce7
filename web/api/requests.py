"""Requests beyond a quota and decisions about them."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.errors import invalid
from slicemgr.service.slices import requests
from slicemgr.service.views import filters, people
from slicemgr.web import schemas, schemas_people
from slicemgr.web.api import lists, reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("requests", __name__, url_prefix="/api/v1/requests", description="Requests beyond a quota")


def _shown(id: str) -> Answer:
    with state().store.read() as c:
        return people.requests(c, principal(), id)[0]


@routes.route("", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.REQUESTS.parameters)
@routes.alt_response(200, schema=schemas_people.Requests)
def list_requests() -> Answer:
    """List your requests and those that you can decide, newest first."""
    wanted, page = lists.REQUESTS.read()
    with state().store.read() as c:
        found = people.requests(c, principal(), where=filters.requests(wanted), page=page)
    return lists.REQUESTS.answer(found, page)


@routes.route("/<id>", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas.Request)
@routes.alt_response(404, schema=schemas.Problem)
def show_request(id: str) -> Answer:
    """Show one request."""
    return _shown(id)


@routes.route("/<id>/grant", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.GRANT))
@routes.alt_response(202, schema=schemas_people.Granted)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(409, schema=schemas.Problem)
def grant_request(id: str) -> Answer:
    """Grant a request (PIs within the ceiling, admins). `changes` reduces the requested resources."""
    body = reading.body()
    reading.only(body, "changes", "reason")
    changes = body.get("changes") or {}
    if not isinstance(changes, dict):
        raise invalid("changes", "must be an object", 'such as {"count": 2}')
    answer = requests.reason(body.get("reason"))
    operation = requests.grant(state().store, state().config, id, changes, answer, principal())
    return {"request": _shown(id), **reading.asked(operation, with_slice=True)}, 202


@routes.route("/<id>/decline", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.DECLINE))
@routes.alt_response(200, schema=schemas.Request)
@routes.alt_response(409, schema=schemas.Problem)
def decline_request(id: str) -> Answer:
    """Decline a request with a reason."""
    body = reading.body()
    reading.only(body, "reason")
    requests.decline(state().store, id, requests.reason(body.get("reason"), needed=True), principal(), state().config)
    return _shown(id)


@routes.route("/<id>/withdraw", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas.Request)
@routes.alt_response(409, schema=schemas.Problem)
def withdraw_request(id: str) -> Answer:
    """Withdraw your request."""
    requests.withdraw(state().store, id, principal())
    return _shown(id)
