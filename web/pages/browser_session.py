"""The session of a browser: one signed cookie with the session's secret and the CSRF token's secret."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from flask import Flask, Response, g, redirect, render_template, request, session, url_for
from flask_wtf.csrf import CSRFError, CSRFProtect

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.service.accounts import sessions
from slicemgr.store import Store
from slicemgr.web.pages import kept_form, known_browser
from slicemgr.web.state import address, state

log = logging.getLogger(__name__)
_SECRET = "session"  # the key of the session's secret in the cookie
_csrf = CSRFProtect()


def install(app: Flask) -> None:
    """Set up cookie, key and CSRF protection. REST ignores cookies and needs a token in a header."""
    config: Config = app.extensions["slicemgr"].config
    plain = config.web.cookie == "plain"
    if plain:
        log.warning("web.cookie is plain: an attacker on the network can take over sessions; use TLS")
    app.config.update(
        SESSION_COOKIE_NAME="slicemgr" if plain else "__Host-slicemgr",
        SESSION_COOKIE_SECURE=not plain,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_COOKIE_PATH="/",
        SESSION_REFRESH_EACH_REQUEST=False,
        PERMANENT_SESSION_LIFETIME=config.people.session,
        WTF_CSRF_TIME_LIMIT=None,  # as long as the session
        WTF_CSRF_CHECK_DEFAULT=False,  # `protect` checks it, after authentication
    )
    install_keys(app, config, app.extensions["slicemgr"].store)
    _csrf.init_app(app)


def install_keys(app: Flask, config: Config, store: Store) -> None:
    """Set the key that signs cookies, and what depends on it and on the database."""
    app.config["SECRET_KEY"] = _key(config.node.state_dir / "db" / "web.key")
    known_browser.install(app, config, store)


def _key(path: Path) -> bytes:
    """The key that signs cookies: created once, in a file for the web process alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    with suppress(FileExistsError):  # the file exists, or another process created it first
        os.link(fresh, path)
    fresh.unlink()
    return path.read_bytes()


def start(made: sessions.Session) -> None:
    """Sign the browser in, and remember it as known to the account. Earlier content of the cookie is dropped."""
    session.clear()
    session.permanent = True
    session[_SECRET] = made.secret
    known_browser.remember(made.user)


def end() -> None:
    session.clear()


def signed_in() -> bool:
    """Whether the cookie's session is valid; `state.principal()` is then its user."""
    if "principal" in g:
        return True
    secret = session.get(_SECRET)
    if not isinstance(secret, str):
        return False
    try:
        g.principal = sessions.authenticate(state().store, secret, address())
    except Refused as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        session.clear()
        return False
    return True


def require() -> Response | None:
    """Before each page that is not public: redirect users who are not signed in to the sign-in page.

    A form that they sent is kept, and shown again after the sign-in.
    """
    if signed_in():
        return None
    if is_htmx() and request.method == "POST":  # of a form that the user still fills in, and that is kept when sent
        return Response(render_template("parts/session_ended.html"), mimetype="text/html")
    place = request.full_path.rstrip("?") if request.method == "GET" and not is_htmx() else kept_form.keep() or "/"
    target = url_for("sign_in.show", next=None if place == "/" else place)
    if is_htmx():
        return Response(status=204, headers={"HX-Redirect": target})
    return _see(target)


def protect() -> None:
    """Check the CSRF token of a form. Raises CSRFError."""
    _csrf.protect()


def is_htmx() -> bool:
    return request.headers.get("HX-Request") == "true"


def local(target: str | None) -> str:
    """`target` if it is a local page, otherwise the first page, so that links cannot redirect to other sites."""
    if not target or not target.startswith("/") or target[1:2] in ("/", "\\") or not target.isprintable():
        return "/"
    parts = urlsplit(target)
    return "/" if parts.scheme or parts.netloc or "\\" in target else target


def _see(target: str) -> Response:
    response: Response = redirect(target, 303)  # type: ignore[assignment]
    return response


__all__ = ["CSRFError", "end", "install", "is_htmx", "local", "protect", "require", "signed_in", "start"]
