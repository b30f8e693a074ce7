"""The pages: server-rendered, each of them works without JavaScript, htmx keeps them fresh."""

from __future__ import annotations

from flask import Flask

from slicemgr.web.pages import (
    assets,
    door,
    errors,
    invitation,
    new,
    operation,
    screens,
    shell,
    sign_in,
    slice,
    slices,
    words,
)

BLUEPRINTS = (
    sign_in.blueprint,
    invitation.blueprint,
    slices.blueprint,
    new.blueprint,
    slice.blueprint,
    operation.blueprint,
    screens.blueprint,
)


def install(app: Flask) -> None:
    """Put the pages into the application. After the REST API: what is not its own is answered as a page."""
    door.install(app)
    words.install(app)
    shell.install(app)
    errors.install(app)
    app.register_blueprint(assets.blueprint)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
