"""All routes of the API, with valid and slightly invalid requests, by two tenants.

The requests are bounded and reproducible. No answer is a 5xx, each matches the description, and no data of bob, which
contain a secret word, reach carol.
"""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import published
import pytest
import schemathesis
from bare_service import IMAGE, SHA
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tenants import BOB, CAROL, LAB_IMAGE, LAB_SHA, Tenants, ask

from slicemgr.config import Config
from slicemgr.model import OperationState
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import ssh_keys, users
from slicemgr.service.projects import projects
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.web.api.reading import LONGEST_WAIT

API = "/api/v1"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 15  # requests of each route by each tenant
FEW = 4  # of each in `make test`: what is aimed at carol's things, at bob's and at none
FEWER = {f"POST {API}/login": 4, f"POST {API}/me/password": 4, f"POST {API}/invitation": 6}  # each costs a hash
WORD = "zq4xj7"  # occurs only in data of bob
_LEFT_OUT = {
    f"{API}/console": "a WebSocket",
    f"{API}/node-dials": "a WebSocket",
}
_BOBS = ("slices", "projects", "members", "quotas", "requests", "ssh_keys")  # tables whose rows of his stay as they are


class World(Tenants):
    """Tenants whose things carry WORD where they are lab's; carol has things of each kind of her own."""

    _seed: Path | None = None  # the state with all things: to copy it takes a tenth of the time of adding them

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._add_things()
        self.store.close()  # completes the file of the database
        self._seed = shutil.copytree(self.config.node.state_dir, folder / "seed")

    def _write_seed(self, config: Config) -> None:
        if self._seed is None:
            super()._write_seed(config)
        else:
            shutil.copytree(self._seed, config.node.state_dir)

    def _add_things(self) -> None:
        projects.change(self.store, "lab", {"description": WORD}, Principal("root", True))
        for one in ("alice", "bob", "dave"):
            users.change(self.store, one, {"full_name": WORD, "email": f"{WORD}@example.org"}, Principal("root", True))
        with self.store.write() as c:
            c.execute(t.images.update().where(t.images.c.name == LAB_IMAGE).values(name=f"{WORD}-image"))
        hidden = ask(self, BOB, "hidden", image=LAB_SHA).operation
        waits = ask(self, BOB, "hidden-large", WORD, count=9, memory="64M", ports=2).request
        with self.store.write() as c:
            c.execute(t.tokens.update().where(t.tokens.c.user == "bob").values(label=WORD))
        done = ask(self, CAROL, "own").operation
        self.record(pending.OperationEnded(done, OperationState.DONE))
        own = {"slices": "own", "images": SHA, "nodes": "node1", "operations": done, "users": "carol"}
        own["requests"] = ask(self, CAROL, "big", "why", count=9, memory="64M", ports=2).request
        own |= {"projects": "rival", "keys": ssh_keys.add(self.store, _key("carol"), CAROL)[0], "tokens": "none"}
        his = {"slices": "hidden", "images": LAB_SHA, "nodes": "node1", "users": "bob"}
        his |= {"projects": "lab", "requests": waits, "operations": hidden}
        his |= {"keys": self.found["key"], "tokens": self.found["token"], "sessions": self.found["session"]}
        with self.store.write() as c:
            published.add(c, self.config, "cd34" * 4, name=WORD, public=False)
        own["experiments"], his["experiments"] = self.found["experiment"], "cd34" * 4
        self.ids = {"carol": own, "bob": his}

    def bobs(self) -> dict[str, list[Any]]:
        """The rows that carol must not change."""
        marks = {"lab", "bob", "alice", "dave"}
        rows = self.dump()
        found = {name: [row for row in rows[name] if marks & set(map(str, row))] for name in _BOBS}
        found["slivers"] = [row for row in rows["slivers"] if row.slice in {one.id for one in found["slices"]}]
        found["credentials"] = [
            row.hash for name in ("tokens", "sessions") for row in rows[name] if row.user != "carol"
        ]
        return found


def _key(comment: str) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8x2dEw0kB0yJ3Ck8t8S1m2S2cYyN3wN0o0o0o0o0o0 {comment}"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.fixture
def world(kept: World) -> World:
    """The initial state."""
    kept.restore()
    return kept


@functools.lru_cache(maxsize=1)
def _schema(tenants: Tenants) -> Any:
    return schemathesis.openapi.from_wsgi(f"{API}/openapi.json", tenants.app)


def _operations(schema: Any) -> Iterator[tuple[str, str]]:
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path not in _LEFT_OUT:
            yield operation.method.upper(), operation.path


def _routes() -> list[str]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, Tenants(Path(folder)) as tenants:
        return [f"{verb} {path}" for verb, path in _operations(_schema(tenants))]


def aim(case: Any, ids: dict[str, str]) -> None:
    """Put the name of an existing object into the path."""
    kind = case.path.removeprefix(f"{API}/").partition("/")[0]
    for name in case.path_parameters or {}:
        if name in ("name", "id") and kind in ids:
            case.path_parameters[name] = ids[kind]
        elif name == "user" and ids:
            case.path_parameters[name] = ids["users"]
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 1 < wait <= LONGEST_WAIT:
        case.query["wait"] = 1  # a second tests the same as half a minute


@functools.lru_cache(maxsize=1)
def _strategy(world: World, path: str, verb: str) -> Any:
    """Kept from one tenant's run to the next: to make it, schemathesis reads all sources."""
    return _schema(world)[path][verb].as_strategy()


def run(world: World, route: str, who: str, examples: int = EXAMPLES) -> str:
    """All answers to `who`."""
    verb, path = route.split()
    asked = _strategy(world, path, verb)
    heard: list[str] = []
    targets = itertools.cycle([{}, world.ids["carol"], world.ids["bob"]])
    headers = {"Authorization": f"Bearer {world.found[who]}"}

    @given(case=asked)
    @settings(
        max_examples=min(FEWER.get(route, EXAMPLES), examples),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def ask_it(case: Any) -> None:
        aim(case, next(targets))
        response = case.call(headers=headers)
        heard.append(response.text)
        case.validate_response(response, checks=CHECKS)

    ask_it()
    return "".join(heard)


@pytest.mark.parametrize("examples", [FEW, pytest.param(EXAMPLES, marks=pytest.mark.long)], ids=["few", "many"])
@pytest.mark.parametrize("route", _routes())
def test_whatever_is_asked_is_answered_as_described(world: World, route: str, examples: int) -> None:
    if route == f"GET {API}/operations/{{id}}/events":  # bob's does not end: use carol's, which has ended
        world.record(pending.OperationEnded(world.ids["bob"]["operations"], OperationState.DONE))
    before = world.bobs()
    assert WORD not in run(world, route, "carol", examples).casefold()
    assert world.bobs() == before, "carol changed something that is bob's"
    run(world, route, "bob", examples)


@pytest.mark.parametrize("path", ["slices", "images", "operations", "events", "users", "projects", "requests"])
def test_the_word_is_there_to_be_seen(world: World, path: str) -> None:
    """The control: who may see it does, in the same lists."""
    assert WORD in world.client("bob").get(f"{API}/{path}").text
    assert world.client("carol").get(f"{API}/{path}").get_json()[path] is not None


def test_an_answer_that_was_not_described_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a field more, and a status that is not described."""
    for answer, told in (
        ({"slices": [], "surprise": IMAGE}, "violates schema"),
        (({"slices": []}, 418), "status code"),
    ):
        monkeypatch.setitem(world.app.view_functions, "slices.list_slices", lambda answer=answer: answer)
        with pytest.raises(BaseExceptionGroup) as caught:
            run(world, f"GET {API}/slices", "carol")
        assert any(told in str(one) for one in caught.value.exceptions)


def test_what_is_shown_to_everybody_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without rights carol hears the word."""
    monkeypatch.setattr(Principal, "sees", lambda self, project: True)
    assert WORD in run(world, f"GET {API}/operations/{{id}}", "carol")
