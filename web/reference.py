"""The API's description as JSON and as a page in the design of the other pages, from the same data."""

from __future__ import annotations

import json
import re
from typing import Any

from flask import Blueprint, Response, current_app
from flask_smorest import Api
from markupsafe import Markup, escape

from slicemgr.web import api, openapi
from slicemgr.web.pages import browser_session, shell

blueprint = Blueprint("reference", __name__, url_prefix=openapi.PREFIX, template_folder="templates")


def install(rest: Api) -> None:
    """Register both. Call it after every blueprint of `rest` is registered."""
    from flask import Flask

    app: Flask = rest._app
    names = [one.name for one in api.GUARDED]
    app.extensions["slicemgr.openapi"] = openapi.complete(app, rest.spec.to_dict(), names)
    app.register_blueprint(blueprint)


def spec() -> dict[str, Any]:
    described: dict[str, Any] = current_app.extensions["slicemgr.openapi"]
    return described


@blueprint.route("/openapi.json")
def description() -> Response:
    return Response(json.dumps(spec()), mimetype="application/json")


@blueprint.route("/")
def page() -> Response:
    """All routes with their parameters, bodies, responses and errors."""
    groups: dict[str, list[dict[str, Any]]] = {tag["name"]: [] for tag in spec()["tags"]}
    for path, verb, operation in openapi.operations(spec()):
        groups[operation["tags"][0]].append(
            {**operation, "path": path, "verb": verb.upper(), "curl": _curl(path, verb, operation)}
        )
    browser_session.signed_in()  # the page shows the navigation of the user
    return shell.show("reference.html", spec=spec(), groups=groups, prose=_prose, kind=_kind, pretty=_pretty)


def _prose(text: str) -> Markup:
    """Escaped text, with the parts between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "allOf" in schema:
        return _kind(schema["allOf"][0])
    if "oneOf" in schema:
        return " or ".join(_kind(one) for one in schema["oneOf"])
    if schema.get("enum"):
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    words = [str(schema.get("format") or schema.get("type", "anything"))]
    bounds = {"minimum": "from", "maximum": "to", "minLength": "at least", "maxLength": "at most"}
    words += [f"{word} {schema[name]}" for name, word in bounds.items() if name in schema]
    if "default" in schema:
        words.append(f"(default {json.dumps(schema['default'])})")
    return " ".join([*words, *(["or null"] if schema.get("nullable") else ())])


def _curl(path: str, verb: str, operation: dict[str, Any]) -> str:
    """The request as a curl command."""
    for one in operation["parameters"]:
        if one["in"] == "path":
            path = path.replace("{" + one["name"] + "}", str(one["example"]))
    words = ["curl"] + (["-H 'Authorization: Bearer TOKEN'"] if operation["security"] else [])
    words += [f"-X {verb.upper()}"] if verb != "get" else []
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        words.append(f"--json '{json.dumps(content['application/json']['example'])}'")
    elif content:
        words.append("--data-binary @debian.qcow2")
        path += "?name=debian&format=qcow2"
    return " ".join([*words, f"'https://testbed.example{path}'"])
