"""The page of an invitation link: set the first password."""

from __future__ import annotations

from flask import Response, g, request

from slicemgr.errors import Refused, invalid
from slicemgr.service.accounts import authentication, passwords, sessions, users
from slicemgr.web.pages import browser_session, shell
from slicemgr.web.pages.form import Form
from slicemgr.web.state import address, state

blueprint = shell.blueprint("invitation", is_open=True)


@blueprint.route("/invitation/<secret>")
def show(secret: str) -> Response:
    """Show the user of the link. The link stays valid, because mail programs open links too."""
    user = users.invited(state().store, secret)
    return shell.show("invitation.html", form=Form(), user=user, least=passwords.LEAST)


@blueprint.route("/invitation/<secret>", methods=["POST"])
def accept(secret: str) -> Response:
    """Set the password, and sign in."""
    store, config = state().store, state().config
    user, form = users.invited(store, secret), Form()
    password, repeated = request.form.get("password", ""), request.form.get("repeated", "")
    try:
        if password != repeated:
            raise invalid("repeated", "does not match the password above", "enter the same password in both fields")
        users.accept(store, state().authenticator, secret, password, address())
    except Refused as error:
        return form.again(error, "invitation.html", user=user, least=passwords.LEAST)
    agent = request.headers.get("User-Agent", "")
    g.pop("principal", None)
    browser_session.start(sessions.start(store, config, authentication.account(store, user, address()), agent))
    return shell.see("slices_page.mine", f"Welcome, {user}. Your password is set.")
