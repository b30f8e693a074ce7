"""Users and their accounts."""

from __future__ import annotations

from typing import Any

from flask import request
from flask_smorest import Blueprint

from slicemgr.service.accounts import deletion, users
from slicemgr.service.views import people
from slicemgr.service.views.formats import when
from slicemgr.web import schemas, schemas_people
from slicemgr.web.api import lists, reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("people", __name__, url_prefix="/api/v1", description="People")
LINK = "/invitation/"  # the page of an invitation link, followed by its secret


@routes.route("/me", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Me)
def me() -> Answer:
    """Show your account, your projects, and the access of this token."""
    with state().store.read() as c:
        return people.me(c, principal())


@routes.route("/me/password", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.PASSWORD))
@routes.alt_response(200, schema=schemas_people.User)
@routes.alt_response(422, schema=schemas.Problem)
@routes.alt_response(429, schema=schemas.Problem)
def change_password() -> Answer:
    """Change your password and end your other sessions."""
    body = reading.body()
    reading.only(body, "old", "new")
    users.change_password(
        state().store, state().authenticator, reading.text(body, "old"), reading.text(body, "new"), principal()
    )
    with state().store.read() as c:
        return people.me(c, principal())


@routes.route("/users", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.USERS.parameters)
@routes.alt_response(200, schema=schemas_people.Users)
def list_users() -> Answer:
    """List users by name: all for admins, else those of your projects."""
    _, page = lists.USERS.read()
    with state().store.read() as c:
        return lists.USERS.answer(people.users(c, principal(), page=page), page)


@routes.route("/users", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.USER_REQUEST))
@routes.alt_response(201, schema=schemas_people.Invited)
@routes.alt_response(409, schema=schemas.Problem)
def invite_user() -> Answer:
    """Create an account. Only this response contains the invitation link to set its password."""
    return _invited(users.invite(state().store, state().config, reading.body(), principal())), 201


@routes.route("/users/<name>", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.User)
@routes.alt_response(404, schema=schemas.Problem)
def show_user(name: str) -> Answer:
    """Show one user."""
    with state().store.read() as c:
        return people.users(c, principal(), name)[0]


@routes.route("/users/<name>", methods=["PATCH"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.USER_CHANGE))
@routes.alt_response(200, schema=schemas_people.User)
@routes.alt_response(409, schema=schemas.Problem)
def change_user(name: str) -> Answer:
    """Change your full_name, email and default_project. Admins can also change `enabled`, `admin` and other users."""
    users.change(state().store, name, reading.body(), principal(), state().config)
    with state().store.read() as c:
        return people.users(c, principal(), name)[0]


@routes.route("/users/<name>", methods=["DELETE"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Done)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(409, schema=schemas.Problem)
def delete_user(name: str) -> Answer:
    """Delete an account that owns no slices (admins). Events keep its name, which no other account gets afterwards."""
    deletion.delete(state().store, state().config, name, principal())
    return {"deleted": name}


@routes.route("/users/<name>/invitation", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(201, schema=schemas_people.Invited)
def invite_again(name: str) -> Answer:
    """Create a new invitation link for a user who lost the link or the password."""
    return _invited(users.invite_again(state().store, state().config, name, principal())), 201


def _invited(made: users.Invitation) -> dict[str, Any]:
    link = (state().config.web.url or request.host_url.rstrip("/")) + LINK + made.secret
    with state().store.read() as c:
        user = people.users(c, principal(), made.user)[0]
    return {"user": user, "invitation": {"token": made.secret, "link": link, "expires_at": when(made.expires_at)}}
