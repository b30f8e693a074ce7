"""The web process: pages and REST API. It runs without root and without libvirt; it reads and writes rows."""

from __future__ import annotations

from flask import Flask
from flask_smorest import Api
from werkzeug.middleware.proxy_fix import ProxyFix

from slicemgr import __version__
from slicemgr.config import Config
from slicemgr.service.accounts.sign_in import Authenticator
from slicemgr.store import Store
from slicemgr.web import problems
from slicemgr.web.connection import SMALL_BODY
from slicemgr.web.dials import Dials
from slicemgr.web.json_answers import JsonAnswers
from slicemgr.web.news import News
from slicemgr.web.refusals import Refusals
from slicemgr.web.remote_samples import RemoteSamples
from slicemgr.web.state import State
from slicemgr.web.thread_limits import ThreadLimits


def state_of(config: Config, store: Store, refusals: Refusals | None = None) -> State:
    """The state shared by the requests of an application. refusals: the counters to use, if others count there too."""
    refusals = refusals or Refusals()
    thread_limits, authenticator = ThreadLimits(config.web, refusals), Authenticator(config)
    authenticator.attempts.on_refusal = lambda: refusals.add("sign_in")
    dials = Dials(config, store, thread_limits)
    samples = RemoteSamples(dials.ask)
    return State(config, store, News(store), thread_limits, refusals, authenticator, dials, samples)


def create_app(config: Config, store: Store, refusals: Refusals | None = None) -> Flask:
    """The WSGI application over an open store. refusals: the counters to use, if others count there too."""
    from slicemgr.web import access_log, api, console, metrics, pages, reference, repeats

    app = Flask("slicemgr.web", static_folder=None)
    app.config.update(
        API_TITLE="slicemgr",
        API_VERSION=__version__,
        OPENAPI_VERSION="3.0.3",
        MAX_CONTENT_LENGTH=SMALL_BODY,  # routes for uploads set their own limit
    )
    app.extensions["slicemgr"] = state_of(config, store, refusals)
    app.json = JsonAnswers(app)
    app.before_request(api.check_target)
    rest = Api(app)
    rest.spec.components.security_scheme("token", {"type": "http", "scheme": "bearer"})
    for blueprint in (*api.blueprints(), console.blueprint, metrics.blueprint):
        rest.register_blueprint(blueprint)
    reference.install(rest)
    repeats.install(app, [one.name for one in api.GUARDED])
    problems.install(app)
    pages.install(app)
    access_log.install(app, config)
    if hops := config.web.proxies:  # each proxy appends one entry: entries of the client are further left
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops)  # type: ignore[method-assign]
    return app
