"""Sign in and out."""

from __future__ import annotations

from flask import Response, g, redirect, request

from slicemgr.errors import Code, Refused, invalid
from slicemgr.service.accounts import sessions
from slicemgr.web.pages import browser_session, known_browser, shell
from slicemgr.web.pages.form import Form
from slicemgr.web.state import address, state

blueprint = shell.blueprint("sign_in", is_open=True)


@blueprint.route("/")
def home() -> Response:
    """The first page."""
    return shell.see("slices_page.mine" if browser_session.signed_in() else "sign_in.show")


@blueprint.route("/sign-in")
def show() -> Response:
    """The form with user and password."""
    target = request.args.get("next")
    if browser_session.signed_in():
        return _go(target)
    return shell.show("sign_in.html", form=Form(), next=target)


@blueprint.route("/sign-in", methods=["POST"])
def enter() -> Response:
    """Sign in; the browser gets a new session."""
    form, target = Form.sent(), request.form.get("next")
    password = request.form.get("password", "")
    form.values.pop("password", None)
    try:
        for name, value in (("user", form["user"]), ("password", password)):
            if not value:
                raise invalid(name, "is missing")
        config, agent = state().config, request.headers.get("User-Agent", "")
        store, entry, known = state().store, state().authenticator, known_browser.recognise(form["user"])
        made = sessions.sign_in_with(store, config, entry, form["user"], password, address(), agent, known)
    except Refused as error:
        return form.again(error, "sign_in.html", next=target)
    browser_session.start(made)
    return _go(target)


@blueprint.route("/sign-out", methods=["POST"])
def leave() -> Response:
    """Sign out: end the session in the cookie and in the database."""
    if browser_session.signed_in():
        by = g.pop("principal")
        try:
            sessions.revoke(state().store, by.credential, by)
        except Refused as error:  # it was revoked before
            if error.code is not Code.NOT_FOUND:
                raise
    browser_session.end()
    return shell.see("sign_in.show", "You are signed out.")


def _go(target: str | None) -> Response:
    response: Response = redirect(browser_session.local(target), 303)  # type: ignore[assignment]
    return response
