"""Applications that tests use one after the other: creating one takes longer than the requests of most tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from flask import Flask

from slicemgr.config import Config, NodeConfig, StoreConfig
from slicemgr.config_oidc import OidcConfig
from slicemgr.store import Store
from slicemgr.web import create_app, state_of
from slicemgr.web.pages import browser_session, openid

_free: defaultdict[str, list[Flask]] = defaultdict(list)  # by the settings that creating an application depends on


@contextmanager
def application(config: Config, store: Store) -> Iterator[Flask]:
    """An application over an open store, which nobody else uses within the context.

    A test may change its `config`, which is restored. A test that adds routes or functions creates its own application.
    """
    free = _free[repr(replace(config, node=NodeConfig(), store=StoreConfig(), oidc=OidcConfig()))]
    if free:
        app = free.pop()
        app.extensions["slicemgr"] = state_of(config, store)
        browser_session.install_keys(app, config, store)
        app.extensions.pop("slicemgr.openid", None)
        openid.install(app)
    else:
        app = create_app(config, store)
    before = dict(app.config)
    try:
        yield app
    finally:
        app.config.clear()
        app.config.update(before)
        free.append(app)
