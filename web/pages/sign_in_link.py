"""The page of a link that signs in once."""

from __future__ import annotations

from flask import Response, g, request

from slicemgr.service.accounts import sessions, sign_in_links
from slicemgr.web.pages import browser_session, shell
from slicemgr.web.state import address, state

blueprint = shell.blueprint("sign_in_link", is_open=True)


@blueprint.route(f"{sign_in_links.PATH}<secret>")
def show(secret: str) -> Response:
    """Show the user of the link. The link stays valid, because programs that preview links open it too."""
    user = sign_in_links.holder(state().store, secret)
    browser_session.signed_in()  # for the navigation
    return shell.show("sign_in_link.html", user=user)


@blueprint.route(f"{sign_in_links.PATH}<secret>", methods=["POST"])
def enter(secret: str) -> Response:
    """Sign in; the browser gets a new session, and the link becomes invalid."""
    store, agent = state().store, request.headers.get("User-Agent", "")
    by = sign_in_links.use(store, secret, address())
    g.pop("principal", None)
    browser_session.start(sessions.start(store, state().config, by, agent, "a sign-in link"))
    return shell.see("slices_page.mine", f"You are signed in as {by.user}.")
