"""The REST API, /api/v1. A route reads the request, calls one use case, and returns a view."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.web.api import (
    audits,
    credentials,
    experiments,
    invitations,
    leases,
    measures,
    membership,
    node_dials,
    node_images,
    people,
    projects,
    requests,
    samples,
    sign_in,
    snapshots,
    testbed,
)
from slicemgr.web.api.reading import check_target
from slicemgr.web.state import authenticate

__all__ = ["GUARDED", "OPEN", "blueprints", "check_target"]

# routes without a user
OPEN = (testbed.health, sign_in.routes, membership.open_routes, node_images.routes, node_dials.routes)
GUARDED = (
    testbed.slice_routes,
    snapshots.routes,
    testbed.image_routes,
    testbed.node_routes,
    membership.routes,
    testbed.log_routes,
    people.routes,
    projects.routes,
    invitations.routes,
    requests.routes,
    credentials.routes,
    leases.routes,
    samples.routes,
    experiments.routes,
    measures.routes,
    audits.routes,
)


def blueprints() -> tuple[Blueprint, ...]:
    for blueprint in GUARDED:
        if authenticate not in blueprint.before_request_funcs.get(None, []):
            blueprint.before_request(authenticate)
    return (*OPEN, *GUARDED)
