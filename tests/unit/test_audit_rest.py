"""The REST probes against a real service over a real socket: they pass, and fail with weakened rights."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from tenants import Tenants
from werkzeug.serving import make_server

from slicemgr.audit import rest, rest_routes, rest_world
from slicemgr.audit.rest import FAIL, PASS, Row
from slicemgr.audit.rest_routes import Aim, attempts
from slicemgr.client import Client
from slicemgr.drivers.importer import boot_loader, disk_image
from slicemgr.drivers.importer.confinement import User
from slicemgr.model import Desired, ImageState, OperationState, Phase
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.views import people
from slicemgr.store import pending
from slicemgr.store import tables as t

_PHASES = {Desired.RUNNING: Phase.RUNNING, Desired.STOPPED: Phase.STOPPED, Desired.PAUSED: Phase.PAUSED}
_WAITS = 60.0  # seconds for work that the agent below does at once


class Agent(threading.Thread):
    """Records the results of an agent, without a host."""

    def __init__(self, service: Tenants) -> None:
        super().__init__(daemon=True)
        self.service, self.ended = service, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            with self.service.store.read() as c:
                open_ = sa.select(t.operations).where(t.operations.c.state == OperationState.QUEUED)
                operations = c.execute(open_.order_by(t.operations.c.created_at)).all()
            for operation in operations:
                self.service.record(*self._done(operation), pending.OperationEnded(operation.id, OperationState.DONE))

    def _done(self, operation: Any) -> Iterator[pending.Update]:
        slivers = [row.sliver for row in self.service.rows() if row.sliver.slice_name == operation.slice_name]
        for one in slivers:
            if one.desired is Desired.ABSENT:
                yield pending.SliverGone(one.id)
            else:
                yield pending.SliverSeen(one.id, _PHASES[one.desired], host_key="ssh-ed25519 AAAA")
                if operation.kind == "snapshot":
                    yield pending.SnapshotMade(one.id, operation.params["snapshot"], 5)
        if operation.kind == "image-import":
            yield pending.ImageSeen(operation.image, ImageState.READY, kernel_config="CONFIG_64BIT=y\n")
        elif operation.kind == "image-delete":
            yield pending.ImageGone(operation.image)


@contextmanager
def running(folder: Path) -> Iterator[tuple[Tenants, str]]:
    """A service with users and slices, and its URL."""
    with Tenants(folder) as tenants:
        server = make_server("127.0.0.1", 0, tenants.app, threaded=True)
        server.daemon_threads = True  # type: ignore[attr-defined]
        threads = [threading.Thread(target=server.serve_forever, args=(0.01,)), agent := Agent(tenants)]
        for one in threads:
            one.start()
        try:
            yield tenants, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            agent.ended.set()
            for one in threads:
                one.join()
            server.server_close()


def left(tenants: Tenants) -> dict[str, list[Any]]:
    """The remaining objects of audits."""
    rows, mine = tenants.dump(), (rest_world.ATTACKER, rest_world.VICTIM)
    names = ("projects", "slices", "slivers", "images", "requests", "snapshots", "members", "experiments", "quotas")
    found: dict[str, list[Any]] = {name: rows[name] for name in (*names, "project_invitations", "tokens", "sessions")}
    found["ssh_keys"] = rows["ssh_keys"]
    found["users"] = [row for row in rows["users"] if row.name not in mine]
    found["enabled"] = [row for row in rows["users"] if row.name in mine and row.enabled]
    found["slivers"] = [(row.id, row.desired, row.phase) for row in rows["slivers"]]
    found["tokens"] = [row.hash for row in rows["tokens"]]
    return found


def failed(rows: list[Row]) -> dict[str, str]:
    return {f"{row.method} {row.path}": row.seen for row in rows if row.verdict != PASS}


def test_every_route_is_tried_and_nothing_is_left(tmp_path: Path) -> None:
    """Objects of other users are not changed, either."""
    with running(tmp_path) as (tenants, url):
        before, spec = left(tenants), tenants.client().get(rest.DESCRIPTION).get_json()
        rows = rest.probe(url, tenants.found["root"], _WAITS)
        assert failed(rows) == {}
        described = {f"{verb.upper()} {path}" for path, item in spec["paths"].items() for verb in item}
        described = {one for one in described if one.split()[0].lower() in rest_routes.VERBS}
        assert {row.route for row in rows} == described
        lines = [row.line() for row in rows]
        assert {one.kind for one in lines} == {"rest"} and all(one.ok for one in lines)
        assert {"GET /api/v1/slices", "GET /api/v1/slices?project"} <= {one.row for one in lines}
        assert left(tenants) == before


@pytest.mark.long
def test_without_rights_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a service whose rights allow everything to every user."""

    def nothing(*_: object) -> None: ...

    with running(tmp_path) as (tenants, url):
        before = left(tenants)
        weaken(monkeypatch, access, nothing)
        monkeypatch.setattr(Principal, "sees", lambda self, project: True)
        monkeypatch.setattr(Principal, "leads", lambda self, project: True)
        found = failed(rest.probe(url, tenants.found["root"], _WAITS))
        monkeypatch.undo()
        assert left(tenants) == before, "what a hole made is taken away, too"
    verbs = {one.split()[0] for one in found}
    assert verbs >= {"GET", "POST", "PUT", "PATCH", "DELETE"}
    assert len(found) > 35, found
    wrong = " ".join(found.values())
    for said in ("with the victim's", "changed:", "an earlier request removed", "not expected"):
        assert said in wrong, said


OWN = {  # requests that every user may send, about the own account or public objects
    "GET /api/v1/authority",
    "POST /api/v1/join",  # with a token, by no user
    "GET /api/v1/node-images/{sha256}",  # with a token that a node signed
    "GET /api/v1/node-images/{sha256}/blocks",  # likewise
    "GET /api/v1/node-images/{sha256}/base",  # likewise
    "GET /api/v1/node-images/{sha256}/base/blocks",  # likewise
    "PUT /api/v1/node-images/{sha256}/base",  # likewise
    "POST /api/v1/join/withdraw",  # with the token of a host
    "GET /api/v1/node-dials",  # with a token that a node signed
    "POST /api/v1/renew",  # with the key of a node
    "GET /api/v1/accounts",  # in which a project is that has used something
    "GET /api/v1/clock",
    "GET /api/v1/console",
    "GET /api/v1/me",
    "GET /api/v1/me/invitations",
    "GET /api/v1/nodes",
    "GET /api/v1/nodes/{name}",
    "GET /api/v1/nodes/{name}/samples",
    "GET /api/v1/top",
    "GET /healthz",
    "POST /api/v1/invitation",
    "POST /api/v1/keys",
    "POST /api/v1/login",
    "POST /api/v1/me/invitations/{id}/accept",
    "POST /api/v1/me/invitations/{id}/decline",
    "POST /api/v1/me/password",
    "POST /api/v1/tokens",
}


def test_where_everybody_is_an_admin_every_other_route_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control for each route: nothing is green because it was not aimed at anything."""
    real = authentication.authenticate

    def promoted(*args: Any, **named: Any) -> Principal:
        by = real(*args, **named)
        return replace(by, admin=True) if by.user == rest_world.ATTACKER else by

    with running(tmp_path) as (tenants, url):
        before = left(tenants)
        monkeypatch.setattr(authentication, "authenticate", promoted)
        rows = rest.probe(url, tenants.found["root"], _WAITS)
        assert left(tenants) == before
    assert {row.route for row in rows} - {row.route for row in rows if row.verdict != PASS} == OWN


def only(monkeypatch: pytest.MonkeyPatch, route: str) -> None:
    """Probe only this route."""
    real = rest_routes.attempts
    monkeypatch.setattr(
        rest_routes, "attempts", lambda spec, aim: (one for one in real(spec, aim) if one.route == route)
    )


def weaken(monkeypatch: pytest.MonkeyPatch, module: ModuleType, nothing: Any) -> None:
    """Make every decision function of the policy allow the action."""
    keep = {"visible", "places", "project_for", "missing", "require", "changes"}
    for name, one in vars(module).items():
        if callable(one) and getattr(one, "__module__", "") == module.__name__ and name.islower() and name not in keep:
            monkeypatch.setattr(module, name, nothing)


@pytest.mark.parametrize(
    ("hole", "row", "says"),
    [
        ("a list", "GET /api/v1/slices", "name of a slice"),
        ("a person", "GET /api/v1/users", "mail address"),
        ("a field", "GET /api/v1/projects", "description"),
    ],
)
def test_a_word_in_an_answer_is_enough(
    hole: str, row: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for leaks behind a status that is as it should be: 200, with one of the victim's words in it."""
    with running(tmp_path) as (tenants, url):
        if hole == "a list":
            monkeypatch.setattr(access, "visible", lambda by: None)
        else:
            name = {"a person": "users", "a field": "project_list"}[hole]
            real = getattr(people, name)

            def shown(c: Any, by: Principal, *args: Any, **named: Any) -> Any:
                every = not args and by.user == rest_world.ATTACKER
                return real(c, Principal(by.user, True) if every else by, *args, **named)

            monkeypatch.setattr(people, name, shown)
        only(monkeypatch, row)
        found = failed(rest.probe(url, tenants.found["root"], _WAITS))
        assert found[row].startswith("200: with the victim's ") and says in found[row]


def test_what_a_killed_run_left_is_taken_away(tmp_path: Path) -> None:
    """Nothing else is deleted: a project with a similar name stays."""
    with running(tmp_path) as (tenants, url), Client(url, tenants.found["root"]) as admin:
        before = left(tenants)
        killed = rest_world.World(admin, url, _WAITS)
        killed._make()  # without cleanup
        assert left(tenants) != before
        admin.projects.create("rest-audit-of-the-faculty")
        assert len(rest_world.clean(admin, _WAITS)) == 4
        with rest_world.World(admin, url, _WAITS) as again:
            assert again.attacker.client.account.get()["name"] == rest_world.ATTACKER, "the accounts are used again"
        admin.projects.delete("rest-audit-of-the-faculty")
        assert left(tenants) == before


# the rules


SPEC: Mapping[str, Any] = {
    "paths": {
        "/api/v1/slices/{name}": {"get": {}, "delete": {}},
        "/api/v1/secrets/{name}": {"get": {}},
        "/api/v1/secrets": {"get": {}, "post": {}},
        "/api/v1/slices/{name}/dreams/{dream}": {"patch": {}},
        "/api/v1/lists": {"get": {"parameters": [{"in": "query", "name": "project"}]}},
    }
}


def test_a_route_that_nobody_thought_of_is_untested() -> None:
    aim = Aim({"slices": "his", "projects": "p"}, {"project": "p", "victim": "v"})
    found = {attempt.path: attempt for attempt in attempts(dict(SPEC), aim)}
    assert found["/api/v1/slices/his"].targets == ("his",)
    assert {one.route for one in attempts(dict(SPEC), aim) if one.untested} == {
        "GET /api/v1/secrets/{name}",
        "POST /api/v1/secrets",
        "PATCH /api/v1/slices/{name}/dreams/{dream}",
    }
    assert {"/api/v1/lists", "/api/v1/lists?project=p"} <= set(found)
    last = list(attempts(dict(SPEC), aim))[-1]
    assert last.method == "DELETE", "what takes away comes last"


def test_an_untested_route_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A route of the description that is unknown to the audit is reported as a finding."""
    with running(tmp_path) as (tenants, url):
        real = rest_routes.attempts

        def more(spec: Any, aim: Aim) -> Any:
            paths: Any = {"/api/v1/secrets/{name}": {"get": {}}, "/healthz": {"get": {}}}
            return real({"paths": paths}, aim)

        monkeypatch.setattr(rest_routes, "attempts", more)
        rows = rest.probe(url, tenants.found["root"], _WAITS)
        found = {row.route: row for row in rows}
        assert {route: row.verdict for route, row in found.items()} == {
            "GET /healthz": PASS,
            "GET /api/v1/secrets/{name}": FAIL,
        }
        assert "untested" in found["GET /api/v1/secrets/{name}"].seen


NOBODY = User(65534, 65534)  # only this user reads a raw disk


def test_the_disk_is_one_that_a_node_takes(tmp_path: Path) -> None:
    data, other = rest_world.disk(), rest_world.disk()
    (tmp_path / "disk").write_bytes(data)
    facts = disk_image.detect_and_check(tmp_path / "disk", "raw", max_virtual_size=1 << 30, who=NOBODY)
    assert facts.virtual_size == len(data) and boot_loader.has_code(data[:512]) and data != other
