"""The requests of an attacker to each route of an OpenAPI description, and the required answers. Pure.

A route whose path contains an object targets one of the victim; the path segment before a parameter is the kind of the
object. A parameter that these rules cannot fill in is reported, so that no new route is silently omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

Json = dict[str, Any]

API = "/api/v1"
VERBS = ("get", "put", "patch", "post", "delete")  # in the order in which they are sent
HIDDEN = (403, 404)
_DENIED, _NOT_THERE, _REFUSED = (403,), (404,), (401,)
_ANSWERED = (200, 204, 400, 403, 404)  # for requests without a target: the check concerns the content of the answer
_OWN = (200, 201)
_PARAMETER = re.compile(r"{(\w+)}")
_WHOSE = ("project", "user", "owner")  # query parameters that name the victim or its project


@dataclass(frozen=True, slots=True)
class Aim:
    """The targets of requests. objects: of the victim, by kind; fields: the values of `$word` in bodies, by the word.

    The kind is the path segment before the parameter, with `me/` before it if the path begins with `me/`.
    """

    objects: Mapping[str, str]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request. expected: the statuses of a refusal. changes: whether it would change something if accepted.

    targets: names and IDs of the victim in the path. untested: the reason why it cannot be sent.
    """

    route: str
    method: str
    path: str
    expected: tuple[int, ...]
    body: Any = None
    data: bytes | None = None
    changes: bool = False
    targets: tuple[str, ...] = ()
    untested: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """Exceptions for a route. body: `$word` stands for a field of the aim. objects: override those of the aim."""

    body: Any = None
    expected: tuple[int, ...] = HIDDEN
    data: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)


_NO_NODE = {"nodes": "$no_node"}  # a node that does not exist: a request that is accepted harms no node
_NODES = Rule(expected=_DENIED, objects=_NO_NODE)  # 404 would be the answer for an admin
RULES: Mapping[str, Rule] = {
    f"POST {API}/login": Rule({"user": "$victim", "password": "$wrong"}, _REFUSED),
    f"POST {API}/invitation": Rule({"token": "audit", "password": "$wrong"}, _NOT_THERE),
    f"POST {API}/slices": Rule("$slice"),
    f"POST {API}/slices/{{name}}/snapshots": Rule({"name": "$new"}),
    f"POST {API}/slices/{{name}}/snapshots/{{snapshot}}/clone": Rule({"name": "$new"}),
    f"POST {API}/images": Rule(data=b"audit", query={"name": "$new", "format": "raw", "project": "$project"}),
    f"POST {API}/images/{{name}}/push": Rule({"node": "audit"}, _DENIED),
    f"GET {API}/node-images/{{sha256}}": Rule(expected=(401,), objects={"node-images": "$sha256"}),  # for nodes
    f"GET {API}/node-images/{{sha256}}/blocks": Rule(expected=(401,), objects={"node-images": "$sha256"}),
    f"GET {API}/node-images/{{sha256}}/base": Rule(expected=(401,), objects={"node-images": "$sha256"}),
    f"GET {API}/node-images/{{sha256}}/base/blocks": Rule(expected=(401,), objects={"node-images": "$sha256"}),
    f"PUT {API}/node-images/{{sha256}}/base": Rule(
        expected=(401,), objects={"node-images": "$sha256"}, data=b"audit", query={"version": "1"}
    ),
    f"POST {API}/experiments": Rule(expected=_DENIED, data=b"audit", query={"name": "$new"}),
    f"GET {API}/nodes/{{name}}": Rule(expected=_ANSWERED),
    f"GET {API}/nodes/{{name}}/samples": Rule(expected=_ANSWERED),
    f"GET {API}/authority": Rule(expected=(*_ANSWERED, 409)),  # a certificate for all; 409: there is none
    f"POST {API}/nodes": Rule({"name": "/"}, _DENIED),  # no valid name, so that no node would be added
    f"POST {API}/nodes/{{name}}/rename": Rule({"name": "/"}, _DENIED, objects=_NO_NODE),
    f"POST {API}/join": Rule({"token": "audit", "request": "audit"}, (409, 422)),
    f"POST {API}/join/withdraw": Rule({"token": "audit", "request": "audit"}, (403,)),
    f"POST {API}/renew": Rule({"identity": "audit", "request": "audit"}, (422,)),
    f"POST {API}/nodes/{{name}}/doctor": Rule(expected=_DENIED, objects=_NO_NODE),
    f"POST {API}/nodes/{{name}}/gc": Rule({"apply": False}, _DENIED, objects=_NO_NODE),
    f"POST {API}/nodes/{{name}}/baseline": Rule({"image": "$sha256", "count": 1}, _DENIED, objects=_NO_NODE),
    f"POST {API}/nodes/{{name}}/io": Rule(
        {"root": "overlay", "image": "$sha256", "what": "files", "size": 10}, _DENIED, objects=_NO_NODE
    ),
    f"POST {API}/nodes/{{name}}/sysbench": Rule({"test": "cpu"}, _DENIED, objects=_NO_NODE),
    f"POST {API}/nodes/{{name}}/memory": Rule({"bytes": 0}, _DENIED, objects=_NO_NODE),
    f"POST {API}/clock/confirm": Rule({}, _DENIED),
    f"POST {API}/me/password": Rule({"old": "$password", "new": "$password"}, _OWN),
    f"POST {API}/users": Rule({"name": "$victim"}, _DENIED),  # exists already, so that no account would be created
    f"PATCH {API}/users/{{name}}": Rule({"full_name": "audit"}),
    f"POST {API}/projects": Rule({"name": "$new_project"}, _DENIED),
    f"PATCH {API}/projects/{{name}}": Rule({"description": "audit"}),
    f"PUT {API}/projects/{{name}}/members/{{user}}": Rule({"role": "member"}, objects={"members": "$attacker"}),
    f"POST {API}/projects/{{name}}/invitations": Rule({"invitee": "$attacker"}),
    f"PATCH {API}/projects/{{name}}/leases": Rule({"default": "2d"}),
    f"POST {API}/requests/{{id}}/grant": Rule({}),
    f"POST {API}/keys": Rule({"key": "$key"}, _OWN),
    f"POST {API}/tokens": Rule({"label": "audit", "scope": "read", "expires": "1h"}, _OWN),
    "GET /metrics": Rule(expected=_DENIED),
}


def attempts(spec: Json, aim: Aim) -> Iterator[Attempt]:
    """Every request for every route, in an order in which deletions come last."""
    found = [(verb, path, item[verb]) for path, item in spec["paths"].items() for verb in VERBS if verb in item]
    # Deeper paths come first, so that an object is deleted before the one that contains it.
    for verb, path, operation in sorted(found, key=lambda one: (VERBS.index(one[0]), -one[1].count("/"), one[1])):
        yield from _of_route(verb.upper(), path, operation, aim)


def _of_route(method: str, path: str, operation: Json, aim: Aim) -> Iterator[Attempt]:
    route = f"{method} {path}"
    rule = RULES.get(route) or (_NODES if method != "GET" and path.startswith(f"{API}/nodes/") else Rule())
    objects = {**aim.objects, **{kind: str(_filled(one, aim)) for kind, one in rule.objects.items()}}
    target, used, unknown = _path(path, objects)
    changes = method != "GET"
    if unknown:
        yield Attempt(route, method, path, HIDDEN, untested=f"there is no test value for {unknown}")
    elif not used and changes and route not in RULES:
        yield Attempt(route, method, path, HIDDEN, untested="there is no test request for it")
    else:
        expected = rule.expected if route in RULES or used else _ANSWERED
        body = _filled(rule.body, aim) if rule.body is not None else _example(operation) if changes else None
        foreign = tuple(one for one in used if one in aim.objects.values())
        for words in _queries(operation, rule, aim, foreign, changes):
            asked = target + (f"?{urlencode(words)}" if words else "")
            yield Attempt(route, method, asked, expected, body, rule.data, changes and expected != _OWN, foreign)


def _path(path: str, objects: Mapping[str, str]) -> tuple[str, tuple[str, ...], str]:
    """The path with objects of the victim, these objects, and the first unknown parameter ("" if there is none)."""
    begins = "me/" if path.startswith(f"{API}/me/") else ""
    done: list[str] = []
    used: list[str] = []
    kind = ""
    for word in path.split("/"):
        parameter = _PARAMETER.fullmatch(word)
        if parameter is None:
            kind = begins + word
            done.append(word)
            continue
        name = kind if kind in objects else parameter[1]
        if name not in objects:
            return path, (), parameter[0]
        used.append(objects[name])
        done.append(quote(objects[name], safe=""))
        kind = ""
    return "/".join(done), tuple(used), ""


def _queries(
    operation: Json, rule: Rule, aim: Aim, targets: tuple[str, ...], changes: bool
) -> Iterator[Mapping[str, str]]:
    """The queries to send: that of the rule; otherwise none, and one per parameter that can name the victim."""
    if rule.query:
        yield {name: str(_filled(one, aim)) for name, one in rule.query.items()}
        return
    known = [one["name"] for one in operation.get("parameters", ()) if one.get("in") == "query"]
    whose = [name for name in known if name in _WHOSE]
    if not (changes and targets and whose):
        yield {}
    for name in whose:
        yield {name: str(aim.fields["project" if name == "project" else "victim"])}


def _filled(value: Any, aim: Aim) -> Any:
    if isinstance(value, dict):
        return {name: _filled(one, aim) for name, one in value.items()}
    if isinstance(value, str) and value.startswith("$"):
        return aim.fields[value[1:]]
    return value


def _example(operation: Json) -> Any:
    """The example of a body in the description; None if there is none."""
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("example")
