"""Sign-in with an OpenID Connect issuer: the redirect to the issuer and the callback."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import astuple, dataclass, field
from typing import Any, cast

from flask import Flask, Response, current_app, redirect, request, session, url_for

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.service.accounts import openid, password_policy, sessions, users
from slicemgr.service.outbound.openid_issuer import Flight, Issuer
from slicemgr.web.pages import browser_session, shell
from slicemgr.web.pages.form import Form, once, sentence
from slicemgr.web.state import address, principal, state

_KEY = "openid"  # the key of pending sign-ins in the cookie
_TABS = 3  # pending sign-ins of a browser; the size of a cookie is limited
_PATIENCE = 600  # seconds that a sign-in at the issuer may take
_MOST_USED = 50_000
_LONGEST_TARGET = 500
_ENTER, _LINK, _INVITATION = "enter", "link", "invitation"  # purposes; the last two store the user

blueprint = shell.blueprint("openid", is_open=True)
account = shell.blueprint("openid_account")


@dataclass
class Desk:
    """The issuer, and the callbacks that were used: a copied cookie does not sign in twice."""

    issuer: Issuer
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _used: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def use(self, given: str) -> bool:
        """Whether this callback is new; remembered for the lifetime of the cookie."""
        now = time.time()
        with self._lock:
            while self._used and (next(iter(self._used.values())) < now - _PATIENCE or len(self._used) > _MOST_USED):
                self._used.popitem(last=False)
            return self._used.setdefault(given, now) is now


def install(app: Flask) -> None:
    config: Config = app.extensions["slicemgr"].config
    app.jinja_env.globals["openid"] = config.oidc if config.oidc.issuer else None
    app.jinja_env.globals["passwords_for"] = _passwords_for
    if config.oidc.issuer:
        app.extensions["slicemgr.openid"] = Desk(Issuer(config.oidc))


def _passwords_for() -> str:
    """Which accounts sign in with a password: all, admins, none."""
    oidc = state().config.oidc
    if oidc.passwords or not oidc.issuer:
        return "all"
    with state().store.read() as c:
        return "admins" if password_policy.admins_only(c, oidc) else "nobody"


@blueprint.route("/sign-in/openid")
def start() -> Response:
    """Redirect to the issuer."""
    _desk()
    target = browser_session.local(request.args.get("next", "")[:_LONGEST_TARGET])
    if browser_session.signed_in():
        return _see(target)
    try:
        return _see(_set_out(_ENTER, target))
    except Refused as error:
        return _again(error)


@blueprint.route("/invitation/<secret>/openid", methods=["POST"])
def invited(secret: str) -> Response:
    """Redirect to the issuer, to accept an invitation."""
    _desk()
    users.invited(state().store, secret)
    return shell.show("openid.html", address=_set_out(_INVITATION, secret))


@account.route("/account/openid", methods=["POST"])
def link() -> Response:
    """Redirect to the issuer, to link its identity to the account."""
    _desk()
    try:
        return shell.show("openid.html", address=_set_out(_LINK, principal().user))
    except Refused as error:
        return shell.see("account.show", sentence(error), "bad")


@account.route("/account/openid/unlink", methods=["POST"])
@once
def unlink() -> Response:
    _desk()
    try:
        openid.unlink(state().store, state().config, principal())
    except Refused as error:
        return shell.see("account.show", sentence(error), "bad")
    return shell.see("account.show", "Your account is no longer linked.")


@blueprint.route("/sign-in/openid/back")
def back() -> Response:
    """The callback: with a code or the reason for its absence."""
    desk, given = _desk(), request.args.get("state", "")
    attempt, where = f"openid {given[:64]}", address()
    try:
        flight, what, whose = _come_back(desk, given)
        state().authenticator.attempts.begin(attempt, where)
        proven = desk.issuer.prove(flight, _back(), request.args.to_dict())
        response = _arrived(proven, what, whose)
    except Refused as error:
        return _again(error)
    state().authenticator.attempts.forgive(attempt, where)
    return response


def _arrived(proven: Any, what: str, whose: str) -> Response:
    """Complete the purpose of the sign-in."""
    store, config, agent = state().store, state().config, request.headers.get("User-Agent", "")
    if what == _LINK:
        if not browser_session.signed_in() or principal().user != whose:
            hint = "sign in as that user and link the account again"
            raise Refused(Code.UNAUTHENTICATED, f"you are no longer signed in as {whose}", hint=hint)
        openid.link(store, proven, principal())
        known = proven.email or "your identity"
        return shell.see("account.show", f"Your account is now linked to {config.oidc.name} ({known}).")
    made: sessions.Session
    if what == _INVITATION:
        made = openid.accept(store, config, proven, whose, address(), agent)
    else:
        made = openid.enter(store, config, proven, address(), agent)
    browser_session.start(made)
    return _see(whose if what == _ENTER else "/")


def _set_out(what: str, whose: str) -> str:
    """The URL of the issuer; the cookie stores what the callback must match. Refused(UNAVAILABLE)."""
    flight = Flight.begin()
    target = _desk().issuer.address(flight, _back())
    flights = [*session.get(_KEY, ()), [*astuple(flight), int(time.time()), what, whose]]
    session[_KEY] = flights[-_TABS:]
    return target


def _come_back(desk: Desk, given: str) -> tuple[Flight, str, str]:
    """End the pending sign-in with this state. Refused(UNAUTHENTICATED) if this browser did not begin it."""
    flights = session.get(_KEY, [])
    session[_KEY] = [one for one in flights if one[0] != given]
    found = next((one for one in flights if one[0] == given), None)
    if found is None or not 0 <= time.time() - found[3] <= _PATIENCE or not desk.use(given):
        hint = "start the sign-in in this browser and finish it within ten minutes"
        raise Refused(Code.UNAUTHENTICATED, "this response does not belong to a sign-in in progress", hint=hint)
    return Flight(*found[:3]), found[4], found[5]


def _back() -> str:
    return state().config.web.url + url_for("openid.back")


def _desk() -> Desk:
    if (found := current_app.extensions.get("slicemgr.openid")) is None:
        raise Refused(Code.NOT_FOUND, "this testbed does not use OpenID Connect", hint="sign in with a password")
    return cast(Desk, found)


def _again(error: Refused) -> Response:
    """The sign-in page with the error."""
    form = Form()
    form.errors[""] = [sentence(error)]
    response = shell.show("sign_in.html", error.code.status, form=form, next=None)
    if retry := getattr(error, "retry_after", None):
        response.headers["Retry-After"] = str(retry)
    return response


def _see(target: str) -> Response:
    response: Response = redirect(target, 303)  # type: ignore[assignment]
    return response
