"""Which requests an attacker sends to each route of an OpenAPI description, and what must be answered. Pure.

A route whose path names an object is aimed at one of the victim's: the word before a parameter says of which kind. What
cannot be filled in by these rules is named as such, so that a new route cannot be left out by silence.
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
_ANSWERED = (200, 204, 400, 403, 404)  # of what is not aimed at an object: it counts what is in the answer
_OWN = (200, 201)
_PARAMETER = re.compile(r"{(\w+)}")
_WHOSE = ("project", "user", "owner")  # query parameters that name somebody or something of the victim


@dataclass(frozen=True, slots=True)
class Aim:
    """What requests are aimed at. objects: the victim's, by kind; fields: what bodies name, by the word for it.

    kind: the segment before the parameter, with `me/` before it where the path begins so.
    """

    objects: Mapping[str, str]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request. expected: the statuses that protect. changes: it would change something if it were carried out.

    targets: the victim's names and ids in the path. untested: why it cannot be sent.
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
    """What a route needs beside its path. body: `$word` stands for what the aim calls so. objects: other ones."""

    body: Any = None
    expected: tuple[int, ...] = HIDDEN
    data: bytes | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)


_NO_NODE = {"nodes": "$no_node"}  # of a node that is not there: what would be carried out harms none
_NODES = Rule(expected=_DENIED, objects=_NO_NODE)  # 404 would be the answer to somebody who may
RULES: Mapping[str, Rule] = {
    f"POST {API}/login": Rule({"user": "$victim", "password": "$wrong"}, _REFUSED),
    f"POST {API}/invitation": Rule({"token": "audit", "password": "$wrong"}, _NOT_THERE),
    f"POST {API}/slices": Rule("$slice"),
    f"POST {API}/slices/{{name}}/snapshots": Rule({"name": "$new"}),
    f"POST {API}/slices/{{name}}/snapshots/{{snapshot}}/clone": Rule({"name": "$new"}),
    f"POST {API}/images": Rule(data=b"audit", query={"name": "$new", "format": "raw", "project": "$project"}),
    f"POST {API}/experiments": Rule(expected=_DENIED, data=b"audit", query={"name": "$new"}),
    f"GET {API}/nodes/{{name}}": Rule(expected=_ANSWERED),
    f"GET {API}/nodes/{{name}}/samples": Rule(expected=_ANSWERED),
    f"POST {API}/nodes/{{name}}/doctor": Rule(expected=_DENIED, objects=_NO_NODE),
    f"POST {API}/nodes/{{name}}/gc": Rule({"apply": False}, _DENIED, objects=_NO_NODE),
    f"POST {API}/nodes/{{name}}/baseline": Rule({"image": "$sha256", "count": 1}, _DENIED, objects=_NO_NODE),
    f"POST {API}/nodes/{{name}}/io": Rule(
        {"root": "overlay", "image": "$sha256", "what": "files", "size": 10}, _DENIED, objects=_NO_NODE
    ),
    f"POST {API}/nodes/{{name}}/sysbench": Rule({"test": "cpu"}, _DENIED, objects=_NO_NODE),
    f"POST {API}/clock/confirm": Rule({}, _DENIED),
    f"POST {API}/me/password": Rule({"old": "$password", "new": "$password"}, _OWN),
    f"POST {API}/users": Rule({"name": "$victim"}, _DENIED),  # who is there already: none would be made
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
    """Every request for every route, in an order in which what takes objects away comes last."""
    found = [(verb, path, item[verb]) for path, item in spec["paths"].items() for verb in VERBS if verb in item]
    # An object goes before what it is in: deeper paths first where something is deleted.
    for verb, path, operation in sorted(found, key=lambda one: (VERBS.index(one[0]), -one[1].count("/"), one[1])):
        yield from _of_route(verb.upper(), path, operation, aim)


def _of_route(method: str, path: str, operation: Json, aim: Aim) -> Iterator[Attempt]:
    route = f"{method} {path}"
    rule = RULES.get(route) or (_NODES if method != "GET" and path.startswith(f"{API}/nodes/") else Rule())
    objects = {**aim.objects, **{kind: str(_filled(one, aim)) for kind, one in rule.objects.items()}}
    target, used, unknown = _path(path, objects)
    changes = method != "GET"
    if unknown:
        yield Attempt(route, method, path, HIDDEN, untested=f"nothing is known to put for {unknown}")
    elif not used and changes and route not in RULES:
        yield Attempt(route, method, path, HIDDEN, untested="nothing is known to send")
    else:
        expected = rule.expected if route in RULES or used else _ANSWERED
        body = _filled(rule.body, aim) if rule.body is not None else _example(operation) if changes else None
        foreign = tuple(one for one in used if one in aim.objects.values())
        for words in _queries(operation, rule, aim, foreign, changes):
            asked = target + (f"?{urlencode(words)}" if words else "")
            yield Attempt(route, method, asked, expected, body, rule.data, changes and expected != _OWN, foreign)


def _path(path: str, objects: Mapping[str, str]) -> tuple[str, tuple[str, ...], str]:
    """The path with the victim's objects in it, which those are, and a parameter that is not known ("": none)."""
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
    """Queries to send: the rule's; else none, and with each parameter that can name what is the victim's."""
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
    """The description's own example of a body; None if it takes none."""
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("example")
