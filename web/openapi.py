"""Complete the OpenAPI description: adds what all routes have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import Flask

from slicemgr.errors import Code
from slicemgr.service.idempotency import FIELD, LONGEST
from slicemgr.service.slices.slices import ACTIONS
from slicemgr.web import examples, repeats

Json = dict[str, Any]

PREFIX = "/api/v1"
ABOUT = """\
Send a token in the header `Authorization: Bearer TOKEN`. `slicectl token create` creates one. Times are RFC 3339 in
UTC, sizes are in bytes, and network rates are in bits per second. A resource that the user cannot read is answered
with 404. Errors are `application/problem+json` and name every invalid field. Lists are paginated: send `next` as
`cursor`, with the same filters, until there is no `next`. A POST with an `Idempotency-Key` can be repeated and takes
effect only once.
"""
_VERBS = ("get", "put", "post", "delete", "patch")
_REASONS = {
    400: ("malformed request", Code.INVALID),
    401: ("no token, or a token that is no longer valid", Code.UNAUTHENTICATED),
    403: ("permission denied, or quota exceeded", Code.DENIED),
    404: ("not found, or not visible to the user", Code.NOT_FOUND),
    408: ("the body of the request arrived too slowly", Code.TOO_SLOW),
    409: ("conflict with the current state", Code.CONFLICT),
    413: ("the body is too large", Code.INVALID),
    422: ("a field or parameter is invalid", Code.INVALID),
    429: ("too many failures or too many concurrent requests; retry later", Code.TOO_MANY),
    503: ("the service or its database is not available; retry later", Code.UNAVAILABLE),
}
_RETRY_AFTER = {"description": "seconds to wait before a retry", "schema": {"type": "integer", "minimum": 1}}
_KEY = {
    "in": "header",
    "name": FIELD,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": "^[ -~]+$"},
    "description": "makes a request safe to repeat: for one day the same key and body get the same response, and "
    "another body gets 409",
    "example": "5ddb4dc4-bd1f-4f1d-b8a2-3a9b1a5b2f60",
}
_OPTIONAL = {  # optional fields of responses; every other field is always present
    **dict.fromkeys(("SliceSamples", "NodeSamples", "Top"), ("missing",)),
    "Problem": ("hint", "field", "errors"),
    "Asked": ("request", "operation", "slice", "image", "plan"),
}


def complete(app: Flask, spec: Mapping[str, Any], guarded: list[str]) -> Json:
    """The description from flask-smorest, with operationIds, errors, security, required fields and examples added.

    guarded: blueprints whose routes need a token.
    """
    whole: Json = {**spec, "info": {**spec["info"], "description": ABOUT}, "servers": [{"url": "/"}]}
    shapes: Json = {
        name: shape
        for name, shape in spec["components"]["schemas"].items()
        if name not in ("Error", "PaginationMetadata")
    }
    whole["components"] = {**spec["components"], "schemas": shapes, "responses": {}}
    for name, shape in shapes.items():
        optional = (*_OPTIONAL.get(name, ()), "next")
        shape["required"] = [field for field in shape["properties"] if field not in optional]
    keyed = repeats.endpoints(app, guarded) - repeats.WITHOUT
    for path, verb, operation in operations(whole):
        endpoint = _endpoint(app, path, verb)
        operation["operationId"] = endpoint.rpartition(".")[2]
        operation["security"] = operation.get("security", [])
        operation["parameters"] = _parameters(whole["paths"][path], operation, endpoint in keyed)
        _add_errors(operation, path, verb)
        _add_examples(operation, shapes)
    for item in whole["paths"].values():
        item.pop("parameters", None)
    return whole


def operations(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Json]]:
    """Path, method and description of each operation."""
    for path, item in spec["paths"].items():
        for verb in _VERBS:
            if verb in item:
                yield path, verb, item[verb]


def _endpoint(app: Flask, path: str, verb: str) -> str:
    for rule in app.url_map.iter_rules():
        if rule.rule.replace("<", "{").replace(">", "}") == path and verb.upper() in (rule.methods or ()):
            return str(rule.endpoint)
    raise LookupError(f"no rule for {verb} {path}")


def _parameters(item: Json, operation: Json, keyed: bool) -> list[Json]:
    """Copy the parameters of the path into each operation, so that it is complete by itself."""
    own = [dict(one) for one in (*item.get("parameters", ()), *operation.get("parameters", ()))]
    for one in own:
        if one["in"] == "path" and one["name"] == "action":
            one["schema"] = {"type": "string", "enum": list(ACTIONS)}
        if one["in"] == "path":
            one["example"] = examples.of(one["schema"], {}, "", one["name"])
    return [*own, *([_KEY] if keyed else ())]


def _add_errors(operation: Json, path: str, verb: str) -> None:
    secured, content = bool(operation["security"]), operation.get("requestBody", {}).get("content", {})
    fields = {name for one in content.values() for name in one["schema"].get("properties", ())}
    fields |= {one["name"] for one in operation["parameters"] if one["in"] == "query"}
    always = [429, 503, *([401, 403] if secured else ()), *([408, 413] if content else ())]
    always += [404] if "{" in path or (fields & {"project", "user"} and secured) else []
    always += [409] if secured and verb != "get" else []
    always += [422] if content or operation["parameters"] else []
    responses = {str(status): one for status, one in operation["responses"].items() if str(status) != "default"}
    for status in always:
        responses.setdefault(str(status), {})
    for status, response in responses.items():
        if int(status) >= 400:
            text, code = _REASONS[int(status)]
            shape = {"$ref": "#/components/schemas/Problem"}
            problem = _problem(int(status), text, code)
            response["description"] = text
            if int(status) == 429:
                response["headers"] = {"Retry-After": _RETRY_AFTER}
            response["content"] = {"application/problem+json": {"schema": shape, "example": problem}}
    operation["responses"] = dict(sorted(responses.items()))


def _problem(status: int, text: str, code: Code) -> Json:
    title = code.wire.replace("_", " ").capitalize()
    problem: Json = {"type": "about:blank", "title": title, "status": status, "code": code.wire, "detail": text}
    if status == 422:
        hint = "write it as 512M, 2G or a number of bytes"
        problem |= {"detail": "'much' is not a size", "hint": hint, "field": "memory"}
        problem["errors"] = [{"field": "memory", "message": problem["detail"], "hint": hint}]
    return problem


def _add_examples(operation: Json, shapes: Json) -> None:
    id_ = operation["operationId"]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        if kind == "application/json":
            content["example"] = examples.BODIES.get(id_) or examples.of(content["schema"], shapes)
    for status, response in operation["responses"].items():
        for kind, content in response.get("content", {}).items():
            if int(status) < 400 and kind == "application/json":
                example = examples.of(content["schema"], shapes)
                if id_ in examples.ANSWERS:
                    example = {name: _of_asked(name, shapes) for name in examples.ANSWERS[id_]}
                content["example"] = example


def _of_asked(name: str, shapes: Json) -> Any:
    return examples.of(shapes["Asked"]["properties"][name], shapes)
