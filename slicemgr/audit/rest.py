"""Requests to every route of the OpenAPI description, by a member of another project, for objects of the victim.

The audit creates the accounts and projects (`rest_world`), so that a vulnerability harms no user. Requests that read
and requests that change use two projects, so that destruction by one vulnerability does not hide another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slicemgr.audit import rest_routes, row
from slicemgr.audit.http_probe import Answer, HttpProbe
from slicemgr.audit.rest_routes import Aim, Attempt
from slicemgr.audit.rest_world import Things, World, public_key
from slicemgr.client import Client
from slicemgr.errors import Failed

PASS, FAIL = "pass", "fail"
DESCRIPTION = "/api/v1/openapi.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One request. seen: the status, and what is wrong with the answer or with the victim's objects afterwards."""

    route: str
    method: str
    path: str
    expected: str
    seen: str
    verdict: str

    def line(self) -> row.Row:
        """The row in the table of `slicectl audit`."""
        query = re.sub(r"=[^&]*", "", self.path.partition("?")[2])
        asked = f"{self.route}?{query}" if query else self.route
        return row.Row(asked, "rest", self.expected, self.seen, self.verdict == PASS)


def probe(url: str, token: str, patience: float = 300.0) -> list[Row]:
    """Run the audit and return all rows. token: of an admin. patience: seconds for an operation of the agent.

    Raises Refused or Failed if the audit cannot create its objects. It deletes them at the end, and those of a killed
    run at the beginning. Only one audit may run at a time.
    """
    with Client(url, token) as admin, World(admin, url, patience) as world:
        return list(_rows(world))


def _rows(world: World) -> Iterator[Row]:
    attacker = HttpProbe(world.url, world.attacker.token)
    spec = json.loads(attacker.send("GET", DESCRIPTION).text.partition("\n\n")[2])
    _check_canaries(world, world.looked_at)
    _check_canaries(world, world.changed)
    looks = rest_routes.attempts(spec, _aim(world, world.looked_at))
    before = world.view(world.looked_at)
    for attempt in looks:
        if not attempt.changes:
            yield _row(attempt, _judge(world, attempt, attacker))
    if changed := _difference(before, world.view(world.looked_at)):
        yield Row("GET *", "GET", "*", "nothing is changed", f"changed: {changed}", FAIL)
    before = world.view(world.changed)
    for attempt in rest_routes.attempts(spec, _aim(world, world.changed)):
        if attempt.changes:
            faults = _lost(attempt, before, world) or _judge(world, attempt, attacker)
            after = world.view(world.changed) if not attempt.untested else before
            if changed := _difference(before, after):
                faults = f"{faults}; changed: {changed}"
            row_ = _row(attempt, faults)
            if row_.verdict == FAIL and not attempt.untested:  # do not attribute a change to the next request
                world.settle(world.changed)
                after = world.view(world.changed)
            before = after
            yield row_


def _aim(world: World, things: Things) -> Aim:
    slice_: dict[str, Any] = {
        "name": "audit-new",
        "project": things.project,
        "type": things.type,
        "image": things.image,
    }
    slice_ |= {"memory": "64M", "disk": "1G", "ports": 2, "lease": "4h", "ssh_keys": [public_key("attacker")]}
    fields: dict[str, Any] = {
        "victim": world.victim.name,
        "attacker": world.attacker.name,
        "password": world.attacker.password,
        "wrong": "not the victim's password",
        "project": things.project,
        "new_project": world.named("new"),
        "new": "audit-new",
        "slice": slice_,
        "sha256": "0" * 64,
        "no_node": "audit-no-node",
        "key": public_key("attacker"),
    }
    return Aim(things.objects, fields)


def _check_canaries(world: World, things: Things) -> None:
    """Raises Failed unless the victim sees all canaries; otherwise their absence in an answer would prove nothing."""
    text = json.dumps(world.view(things))
    hidden = [one for kind, one in things.objects.items() if kind not in _NOT_IN_VIEW and one not in text]
    if hidden:
        raise Failed(f"the audit's victim does not see its own {', '.join(hidden)}")


_NOT_IN_VIEW = ("operations", "action", "files", "nodes")


def _lost(attempt: Attempt, view: Any, world: World) -> str:
    """The reason why an answer would prove nothing: an earlier request deleted the target; "" if it exists."""
    text, objects = json.dumps(view), world.changed.objects
    outside = {objects[kind] for kind in _NOT_IN_VIEW}
    gone = [one for one in attempt.targets if one not in outside and one not in text]
    return f"not sent: an earlier request removed {', '.join(gone)}" if gone else ""


def _judge(world: World, attempt: Attempt, attacker: HttpProbe) -> str:
    """The status of the answer and, after a colon, what is wrong with it."""
    if attempt.untested:
        return f"untested: {attempt.untested}"
    if attempt.route.endswith("/clock/confirm") and world.admin.leases.clock()["doubt"]:
        return "untested: the clock of the node is in doubt, and a missing check would confirm it"
    answer: Answer = attacker.send(attempt.method, attempt.path, attempt.body, attempt.data)
    sent = f"{attempt.path} {json.dumps(attempt.body)}"
    leaked = world.canaries.within(answer.text, sent)
    if answer.status == 0:
        return f"no answer: {answer.text}"
    if leaked:
        return f"{answer.status}: with the victim's {', '.join(leaked)}"
    return str(answer.status) if answer.status in attempt.expected else f"{answer.status}: not expected"


def _row(attempt: Attempt, seen: str) -> Row:
    expected = " or ".join(map(str, attempt.expected))
    return Row(attempt.route, attempt.method, attempt.path, expected, seen, PASS if seen.isdecimal() else FAIL)


def _difference(before: Any, after: Any, where: str = "") -> str:
    """The places in which two views differ, as text; "" if they are equal."""
    if type(before) is not type(after):
        return where or "everything"
    if isinstance(before, dict):
        found = [_difference(before.get(name), after.get(name), f"{where} {name}") for name in {*before, *after}]
        return ", ".join(sorted(one.strip() for one in found if one))
    if isinstance(before, list) and len(before) == len(after):
        found = [_difference(*pair, where) for pair in zip(before, after, strict=True)]
        return ", ".join(sorted({one.strip() for one in found if one}))
    return "" if before == after else where or "everything"
