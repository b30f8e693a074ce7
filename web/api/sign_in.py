"""Routes without a token: set the first password with a link, and get a token for a password."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.errors import invalid
from slicemgr.service.accounts import sign_in, tokens, users
from slicemgr.service.projects import invited_accounts
from slicemgr.service.views import people
from slicemgr.web import schemas, schemas_people
from slicemgr.web.api import reading
from slicemgr.web.api.reading import Answer
from slicemgr.web.state import address, state

routes = Blueprint("sign-in", __name__, url_prefix="/api/v1", description="Passwords, links, and a first token")


@routes.route("/login", methods=["POST"])
@routes.doc(requestBody=schemas.body(schemas_people.LOGIN))
@routes.alt_response(201, schema=schemas_people.NewToken)
@routes.alt_response(401, schema=schemas.Problem)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(429, schema=schemas.Problem)
def login() -> Answer:
    """Exchange user name and password for a token. Only this response contains `token`."""
    body, store = reading.body(), state().store
    user, password = reading.text(body, "user"), reading.text(body, "password")
    rest = {key: value for key, value in body.items() if key not in ("user", "password")}
    wanted = tokens.wanted(rest, state().config, label="login")
    by = sign_in.check(store, state().authenticator, user, password, address())
    token, id_, _ = tokens.create(store, wanted, by, why="login")
    with store.read() as c:
        return {"token": token, **people.tokens(c, by.user, by, id_)[0]}, 201


@routes.route("/invitation", methods=["POST"])
@routes.doc(requestBody=schemas.body(schemas_people.ACCEPT))
@routes.alt_response(200, schema=schemas_people.Accepted)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
@routes.alt_response(429, schema=schemas.Problem)
def accept_invitation() -> Answer:
    """Set a password with an invitation link. The link works only once.

    The link in the mail of an invitation to a project creates an account, with `name` and `full_name`.
    """
    body, store, config = reading.body(), state().store, state().config
    reading.only(body, "token", "password", "name", "full_name")
    token, password = reading.text(body, "token"), reading.text(body, "password")
    raw = {key: value for key, value in body.items() if key in ("name", "full_name")}
    if invited_accounts.find(store, config, token):
        created = invited_accounts.create(store, config, state().authenticator, token, raw, password, address())
        return {"user": created}
    user = users.invited(store, token)
    if raw:
        raise invalid(next(iter(raw)), f"is set already: the account of this link is {user}", "omit this field")
    return {"user": users.accept(store, state().authenticator, token, password, address())}
