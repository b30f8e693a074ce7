"""The cookie of a known browser, in which the user of an account signed in before."""

from __future__ import annotations

from typing import cast

from flask import Flask, Response, after_this_request, current_app, request

from slicemgr.config import Config
from slicemgr.service.accounts import sign_in
from slicemgr.service.accounts.known_browsers import KnownBrowsers
from slicemgr.store import Store

_KEY = "slicemgr.known_browsers"


def install(app: Flask, config: Config, store: Store) -> None:
    """Set up the cookie. Call it after the application has its secret key."""
    app.extensions[_KEY] = KnownBrowsers(store, cast(bytes, app.secret_key), config.people.known_browser)


def recognise(user: str) -> str:
    """The id of this browser, if the account's user signed in here before; "" if not."""
    return _known().recognise(request.cookies.get(_name(), ""), sign_in.name(user))


def remember(user: str) -> None:
    """Add the account to the known-browser cookie of this response."""
    kept = _known().remember(request.cookies.get(_name(), ""), user)

    def keep(response: Response) -> Response:
        config = current_app.extensions["slicemgr"].config
        age, secure = int(config.people.known_browser.total_seconds()), config.web.cookie != "plain"
        response.set_cookie(_name(), kept, max_age=age, path="/", secure=secure, httponly=True, samesite="Lax")
        return response

    after_this_request(keep)


def _known() -> KnownBrowsers:
    return cast(KnownBrowsers, current_app.extensions[_KEY])


def _name() -> str:
    return f"{current_app.config['SESSION_COOKIE_NAME']}-known"
