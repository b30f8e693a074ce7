"""`Idempotency-Key` for POST routes that change something: the same key and body get the same response."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

from flask import Flask, Response, make_response, request

from slicemgr.errors import invalid
from slicemgr.service import idempotency
from slicemgr.service.idempotency import FIELD, Answer, Asked
from slicemgr.web.state import principal, state

# Their responses contain a secret that is shown once: stored encrypted.
_SECRETS = frozenset(
    {
        "credentials.create_token",
        "people.invite_user",
        "people.invite_again",
        "slices.ask_for_console",
        "membership.add_node",
    }
)
# Images and reports are identified by their content; a changed password no longer matches.
WITHOUT = frozenset({"images.import_image", "experiments.publish_experiment", "people.change_password"})

View = Callable[..., Any]


def endpoints(app: Flask, blueprints: Collection[str]) -> frozenset[str]:
    """The POST routes of these blueprints."""
    rules = (rule for rule in app.url_map.iter_rules() if "POST" in (rule.methods or ()))
    return frozenset(rule.endpoint for rule in rules if rule.endpoint.rpartition(".")[0] in blueprints)


def install(app: Flask, blueprints: Collection[str]) -> None:
    """blueprints: whose routes are authenticated."""
    for endpoint in endpoints(app, blueprints):
        wrap = _refusing if endpoint in WITHOUT else _once
        app.view_functions[endpoint] = wrap(app.view_functions[endpoint], endpoint)


def _refusing(view: View, _endpoint: str) -> View:
    @functools.wraps(view)
    def refusing(**values: Any) -> Any:
        if FIELD in request.headers:
            raise invalid(FIELD, "is not supported for this request", "omit it, this request is safe to repeat")
        return view(**values)

    return refusing


def _once(view: View, endpoint: str) -> View:
    @functools.wraps(view)
    def once(**values: Any) -> Any:
        key = request.headers.get(FIELD)
        if key is None:
            return view(**values)
        what = f"{request.method} {request.full_path}"
        asked = Asked(principal().user, key, what, request.get_data(cache=True), _credential())

        def do() -> Answer:
            response = make_response(view(**values))
            return Answer(response.status_code, response.get_data(as_text=True), endpoint in _SECRETS)

        return _response(idempotency.once(state().store, asked, do))

    return once


def _credential() -> str:
    return request.headers.get("Authorization") or principal().credential


def _response(answer: Answer) -> Response:
    kind = "application/json" if answer.status < 400 else "application/problem+json"
    response = Response(answer.body, answer.status, mimetype=kind)
    if answer.repeated:
        response.headers["Idempotency-Replayed"] = "true"
    return response
