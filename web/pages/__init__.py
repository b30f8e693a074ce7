"""The pages: server-rendered, usable without JavaScript, updated by htmx."""

from __future__ import annotations

from flask import Flask

from slicemgr.web.pages import (
    account,
    all_slices,
    assets,
    browser_session,
    client,
    curves,
    errors,
    experiments,
    images,
    invitation,
    log,
    manual,
    new,
    node_forms,
    nodes,
    openid,
    operation,
    people,
    project_forms,
    project_leases,
    projects,
    requests,
    screens,
    shell,
    sign_in,
    sign_in_link,
    slice,
    slices,
    snapshots,
    words,
)

BLUEPRINTS = (
    sign_in.blueprint,
    sign_in_link.blueprint,
    invitation.blueprint,
    openid.blueprint,
    openid.account,
    slices.blueprint,
    new.blueprint,
    slice.blueprint,
    snapshots.blueprint,
    curves.blueprint,
    operation.blueprint,
    screens.blueprint,
    projects.blueprint,
    project_forms.blueprint,
    project_leases.blueprint,
    account.blueprint,
    requests.blueprint,
    people.blueprint,
    images.blueprint,
    images.uploads,
    nodes.blueprint,
    node_forms.blueprint,
    all_slices.blueprint,
    log.blueprint,
    log.operation_list,
    experiments.blueprint,
)


def install(app: Flask) -> None:
    """Register the pages. Call it after the REST API: other unknown paths get an error page."""
    browser_session.install(app)
    words.install(app)
    shell.install(app)
    errors.install(app)
    openid.install(app)
    app.register_blueprint(assets.blueprint)
    app.extensions.setdefault("slicemgr.navigation", []).append(shell.Entry("reference.page", "API", "terminal", 90))
    manual.install(app)
    client.install(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
