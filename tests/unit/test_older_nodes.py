"""A node of the version before with a centre of this one: what both know works, and its rows survive its update."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_of_before
import previous_version
import pytest
import sqlalchemy as sa
from centre_and_node import IDENTITY, LOCAL, World, move

from slicemgr.config import StoreConfig
from slicemgr.model import Dial, DialPurpose, Phase
from slicemgr.policy import messages
from slicemgr.store import schema
from slicemgr.store import tables as t

KEY = "ssh-ed25519 " + "A" * 60
_SETTINGS = """\
[node]
name = "{name}"
state_dir = "{folder}"
run_dir = "{folder}"
[store]
url = "{url}"
"""


class OlderLink:
    """A process with the link of the version before. A context manager."""

    def __init__(self, package: Path, folder: Path, url: str) -> None:
        folder.mkdir()
        settings = folder / "settings.toml"
        settings.write_text(_SETTINGS.format(name=LOCAL, folder=folder, url=url))
        environment = {**os.environ, "PYTHONPATH": str(package), "SLICEMGR_CONFIG": str(settings)}
        pipe, program = subprocess.PIPE, [sys.executable, node_of_before.__file__]
        self._process = subprocess.Popen(program, env=environment, stdin=pipe, stdout=pipe, text=True)

    def ask(self, *words: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with self._process as process:  # its input ends
            pass
        assert process.returncode == 0


class OlderWorld(World):
    """A world whose node is of the version before, until `update`."""

    def __init__(self, folder: Path, package: Path) -> None:
        super().__init__(folder)
        self.file = folder / "older.db"
        self.older: OlderLink | None = OlderLink(package, folder / "older", f"sqlite:///{self.file}")

    def __exit__(self, *words: object) -> None:
        if self.older is not None:
            self.older.close()
        super().__exit__(*words)

    def work(self) -> None:
        if self.older is None:
            super().work()
            return
        self.to_hub += self.older.ask("due", self.now)
        self.hub.step(woken=True)

    def deliver_to_node(self, index: int = 0) -> None:
        if self.older is None:
            super().deliver_to_node(index)
        else:
            self.older.ask("receive", base64.b64encode(self.to_node.pop(index)).decode())

    def update(self) -> None:
        """Stop the node, and start it with this version on its database."""
        assert self.older is not None
        self.older.close()
        self.older = None
        self.node.close()
        url = f"sqlite:///{self.file}"
        schema.upgrade(url)
        self.config = dataclasses.replace(self.config, store=StoreConfig(url=url))
        self.start_node()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    previous_version.extract(previous_version.BEFORE, folder, "slicemgr", "migrations")
    return folder


@pytest.fixture
def world(tmp_path: Path, package: Path) -> Iterator[OlderWorld]:
    with OlderWorld(tmp_path, package) as made:
        yield made


def slivers(world: World, slice: str) -> list[str]:
    query = sa.select(t.slivers.c.id).join(t.slices, t.slices.c.id == t.slivers.c.slice)
    with world.centre.read() as c:
        return sorted(c.scalars(query.where(t.slices.c.name == slice)))


def operation(world: World, slice: str) -> Any:
    with world.centre.read() as c:
        return c.execute(t.operations.select().where(t.operations.c.slice_name == slice)).one()


def create(world: World, name: str) -> list[str]:
    world.service.create(name, count=2)
    move(world.centre, name)
    return slivers(world, name)


def test_an_older_node_does_its_work_and_is_updated(world: OlderWorld) -> None:
    assert world.older is not None
    first = create(world, "first")
    world.settle()
    assert world.older.ask("slivers") == first, "all rows"
    second = create(world, "second")
    world.settle()
    assert world.older.ask("slivers") == sorted(first + second), "those that have changed"

    world.older.ask("finish", operation(world, "first").id, first, KEY)
    world.settle()
    assert operation(world, "first").state == "done"
    assert {world.slivers(world.centre)[one] for one in first} == {Phase.RUNNING.value}

    world.older.ask("finish", operation(world, "second").id, second, KEY)  # the centre learns it after the update
    world.update()
    assert operation(world, "second").state == "queued"
    third = create(world, "third")
    world.settle()
    assert operation(world, "second").state == "done"
    assert set(world.slivers(world.centre)) == {*first, *second, *third}
    assert world.mirrored() == world.wanted()
    assert {world.slivers(world.node)[one] for one in (*first, *second)} == {Phase.RUNNING.value}


def test_an_older_node_ignores_what_it_does_not_know(world: OlderWorld) -> None:
    """The orders that this version added, and fields in those that there were."""
    assert world.older is not None
    first = create(world, "first")
    world.settle()
    dial = messages.dial(Dial("a" * 64, DialPurpose.CONSOLE, "admin", first[0]))
    for body in (dial, messages.peers([]), json.dumps({"v": 1, "kind": "unheard", "more": {}})):
        world.to_node.append(body.encode())
    world.settle()
    assert world.older.ask("slivers") == first
    reported = sa.select(t.links.c.sequence).where(t.links.c.identity == IDENTITY)
    before = world.scalar(world.centre, reported)
    world.settle()
    assert world.scalar(world.centre, reported) > before, "it reports"
