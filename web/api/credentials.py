"""SSH keys, API tokens and sessions: the user's own, or with `user` another user's, for an admin."""

from __future__ import annotations

from flask import request
from flask_smorest import Blueprint

from slicemgr.policy import access
from slicemgr.service.accounts import sessions, ssh_keys, tokens
from slicemgr.service.views import people
from slicemgr.web import schemas, schemas_people
from slicemgr.web.api import lists, reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("credentials", __name__, url_prefix="/api/v1", description="SSH keys, tokens, sessions")
_USER = {"in": "query", "name": "user", "schema": {"type": "string"}, "description": "whose, if you are an admin"}


def _whose() -> str:
    user = request.args.get("user") or principal().user
    access.see_credentials(principal(), user)
    return user


@routes.route("/keys", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.KEYS.parameters)
@routes.alt_response(200, schema=schemas_people.Keys)
def list_keys() -> Answer:
    """List your SSH keys with their fingerprints."""
    _, page = lists.KEYS.read()
    with state().store.read() as c:
        return lists.KEYS.answer(people.keys(c, _whose(), page=page), page)


@routes.route("/keys", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.KEY_REQUEST))
@routes.alt_response(201, schema=schemas_people.Keys)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def add_keys() -> Answer:
    """Add the keys of a .pub file to your account and your slices, including running ones."""
    body = reading.body()
    reading.only(body, "key")
    ids = ssh_keys.add(state().store, body.get("key"), principal(), state().config)
    with state().store.read() as c:
        return {"keys": [one for one in people.keys(c, principal().user) if one["id"] in ids]}, 201


@routes.route("/keys/<id>", methods=["DELETE"])
@routes.doc(security=SECURED, parameters=[_USER])
@routes.alt_response(200, schema=schemas_people.Done)
@routes.alt_response(404, schema=schemas.Problem)
def remove_key(id: str) -> Answer:
    """Remove a key from your account and your slices, including running ones."""
    ssh_keys.remove(state().store, id, request.args.get("user") or principal().user, principal(), state().config)
    return {"deleted": id}


@routes.route("/tokens", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.TOKENS.parameters)
@routes.alt_response(200, schema=schemas_people.Tokens)
def list_tokens() -> Answer:
    """List your tokens with their access, expiry and last use."""
    _, page = lists.TOKENS.read()
    with state().store.read() as c:
        return lists.TOKENS.answer(people.tokens(c, _whose(), principal(), page=page), page)


@routes.route("/tokens", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.TOKEN_REQUEST))
@routes.alt_response(201, schema=schemas_people.NewToken)
@routes.alt_response(422, schema=schemas.Problem)
def create_token() -> Answer:
    """Create a token. Only this response contains `token`."""
    by, store = principal(), state().store
    token, id_, _ = tokens.create(store, tokens.wanted(reading.body(), state().config), by)
    with store.read() as c:
        return {"token": token, **people.tokens(c, by.user, by, id_)[0]}, 201


@routes.route("/tokens/<id>", methods=["DELETE"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Done)
@routes.alt_response(404, schema=schemas.Problem)
def revoke_token(id: str) -> Answer:
    """Revoke a token. `current` is the token of the request."""
    tokens.revoke(state().store, id, principal())
    return {"deleted": id}


@routes.route("/sessions", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.SESSIONS.parameters)
@routes.alt_response(200, schema=schemas_people.Sessions)
def list_sessions() -> Answer:
    """List your browser sessions."""
    _, page = lists.SESSIONS.read()
    with state().store.read() as c:
        return lists.SESSIONS.answer(people.sessions(c, _whose(), principal(), page=page), page)


@routes.route("/sessions/<id>", methods=["DELETE"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Done)
@routes.alt_response(404, schema=schemas.Problem)
def revoke_session(id: str) -> Answer:
    """End a session."""
    sessions.revoke(state().store, id, principal())
    return {"deleted": id}
