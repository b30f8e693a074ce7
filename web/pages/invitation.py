"""The page of an invitation link: set the first password, or create an account that a PI invited."""

from __future__ import annotations

from flask import Response, g, request

from slicemgr.errors import Refused, invalid
from slicemgr.service.accounts import authentication, passwords, sessions, users
from slicemgr.service.projects import invited_accounts
from slicemgr.web.pages import browser_session, shell
from slicemgr.web.pages.form import Form
from slicemgr.web.state import address, state

_FIELDS = ("name", "full_name", "password", "repeated")

blueprint = shell.blueprint("invitation", is_open=True)


@blueprint.route("/invitation/<secret>")
def show(secret: str) -> Response:
    """Show the user of the link. The link stays valid, because mail programs open links too."""
    if offer := invited_accounts.find(state().store, state().config, secret):
        return shell.show("new_account.html", form=Form(), offer=offer, least=passwords.LEAST)
    user = users.invited(state().store, secret)
    return shell.show("invitation.html", form=Form(), user=user, least=passwords.LEAST)


@blueprint.route("/invitation/<secret>", methods=["POST"])
def accept(secret: str) -> Response:
    """Set the password, and sign in."""
    store, config = state().store, state().config
    if offer := invited_accounts.find(store, config, secret):
        return _create(secret, offer)
    user, form = users.invited(store, secret), Form()
    password, repeated = request.form.get("password", ""), request.form.get("repeated", "")
    try:
        if password != repeated:
            raise invalid("repeated", "does not match the password above", "enter the same password in both fields")
        users.accept(store, state().authenticator, secret, password, address())
    except Refused as error:
        return form.again(error, "invitation.html", user=user, least=passwords.LEAST)
    return _sign_in(user, f"Welcome, {user}. Your password is set.")


def _create(secret: str, offer: invited_accounts.Offer) -> Response:
    """Create the account, and sign in."""
    form, password = Form.sent(), request.form.get("password", "")
    for name in ("password", "repeated"):
        form.values.pop(name, None)
    raw = {name: form[name] for name in ("name", "full_name") if form[name]}
    try:
        if password != request.form.get("repeated", ""):
            raise invalid("repeated", "does not match the password above", "enter the same password in both fields")
        user = invited_accounts.create(
            state().store, state().config, state().authenticator, secret, raw, password, address()
        )
    except Refused as error:
        return form.again(error, "new_account.html", known=_FIELDS, offer=offer, least=passwords.LEAST)
    return _sign_in(user, f"Welcome, {user}. You are a member of project {offer.project}.")


def _sign_in(user: str, message: str) -> Response:
    store, agent = state().store, request.headers.get("User-Agent", "")
    g.pop("principal", None)
    browser_session.start(sessions.start(store, state().config, authentication.account(store, user, address()), agent))
    return shell.see("slices_page.mine", message)
