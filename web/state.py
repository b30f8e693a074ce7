"""The context of a request: settings, store, and the authenticated user."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import cast

from flask import current_app, g, request

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.accounts.sign_in import Authenticator
from slicemgr.store import Store
from slicemgr.web.dials import Dials
from slicemgr.web.image_traffic import ImageTraffic
from slicemgr.web.kept_answers import KeptAnswers
from slicemgr.web.news import News
from slicemgr.web.refusals import Refusals
from slicemgr.web.remote_samples import RemoteSamples
from slicemgr.web.thread_limits import ThreadLimits


@dataclass(frozen=True, slots=True)
class State:
    config: Config
    store: Store
    news: News
    thread_limits: ThreadLimits
    refusals: Refusals
    authenticator: Authenticator
    dials: Dials
    remote_samples: RemoteSamples
    image_traffic: ImageTraffic = field(default_factory=ImageTraffic)
    known_tokens: authentication.KnownTokens = field(default_factory=authentication.KnownTokens)
    kept_answers: KeptAnswers = field(default_factory=KeptAnswers)


def state() -> State:
    return cast(State, current_app.extensions["slicemgr"])


def authenticate() -> None:
    """Authenticate the request by its bearer token. Refused(UNAUTHENTICATED)."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        hint = "send the header `Authorization: Bearer TOKEN`"
        raise Refused(Code.UNAUTHENTICATED, "a token is required", hint=hint)
    own = state()
    g.version = own.store.version()
    g.principal = authentication.authenticate(own.store, token.strip(), address(), own.known_tokens, g.version)


def version() -> Hashable | None:
    """The version of the database that was read before the user was authenticated."""
    return cast(Hashable | None, g.version)


def asker() -> Callable[[], Principal]:
    """A function that authenticates the user again after the request's context has ended. Refused(UNAUTHENTICATED)."""
    token = request.headers.get("Authorization", "").partition(" ")[2].strip()
    store, where = state().store, address()
    return lambda: authentication.authenticate(store, token, where)


def address() -> str:
    """The client's address."""
    return request.remote_addr or ""


def principal() -> Principal:
    return cast(Principal, g.principal)
