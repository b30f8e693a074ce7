"""A node stops the slivers that the centre has taken from it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from centre_and_node import NODE, World, move

from slicemgr import names
from slicemgr.agent.fence import Fence
from slicemgr.agent.kept_disks import Kept
from slicemgr.errors import Failed
from slicemgr.hub.updates import accepted
from slicemgr.store import outbox, pending
from slicemgr.store import tables as t
from slicemgr.store.updates import EventSeen, utcnow


class Host:
    """The pool of a node, with a fence on the node's real rows. busy: slivers on which work is in progress."""

    def __init__(self, world: World) -> None:
        self.world, self.pool = world, world.config.node.pool
        self.busy: set[str] = set()
        self.forgotten: list[str] = []
        self.stopped: list[str] = []
        self.broken = False
        journal = SimpleNamespace(add=lambda update: world.record(update))
        measuring = SimpleNamespace(is_set=lambda: False)
        node: Any = SimpleNamespace(config=world.config, store=world.node, journal=journal, raw_slivers=measuring)
        disks: Any = SimpleNamespace(keep=self._keep)
        self.fence = Fence(node, disks)

    def _keep(self, sliver: str, group: int | None) -> Kept:
        if self.broken:
            raise Failed("libvirt does not answer")
        self.stopped.append(sliver)
        names.sliver_dir(self.pool, sliver).rmdir()
        return Kept(names.kept_dir(self.pool) / f"{sliver}.1", sliver, 1)

    def step(self) -> list[str]:
        """What this step stopped."""
        before = len(self.stopped)
        self.fence.step(self.forgotten.append, lambda sliver: sliver in self.busy)
        return self.stopped[before:]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two slivers of `exp` exist on the node, and their rows."""
    with World(tmp_path) as world:
        world.service.create("exp", count=2)
        move(world.centre, "exp")
        made = Host(world)
        with world.centre.read() as c:
            for sliver in pending.slivers(c, NODE):
                names.sliver_dir(made.pool, sliver.sliver.id).mkdir(parents=True)
        yield made


def take(world: World, index: int) -> str:
    """The centre gives a sliver to another node. Returns its id."""
    s = t.slivers.c
    with world.centre.write() as c:
        one: str = c.execute(sa.select(s.id).where(s.idx == index)).scalar_one()
        c.execute(t.slivers.update().where(s.id == one).values(node="node1", epoch=1))
    return one


def test_what_another_node_got_is_stopped(host: Host) -> None:
    host.world.settle()
    assert host.step() == [], "both have rows"
    gone = take(host.world, 1)
    assert host.step() == [], "the node does not know it yet"
    host.world.settle()
    host.busy = {gone}
    assert host.step() == [] and host.forgotten == [gone], "work on it ends first, and none begins"
    host.busy = set()
    assert host.step() == [gone]
    assert host.step() == []
    with host.world.node.read() as c:
        assert [row["detail"].split()[0] for _, kind, row in outbox.batch(c) if kind == "event"] == [gone]


def test_before_the_first_rows_nothing_is_stopped(host: Host) -> None:
    """A node with a new database, or one of another version, has no rows: that means nothing. Control: they arrive."""
    assert host.world.slivers(host.world.node) == {} and host.step() == []
    with host.world.centre.write() as c:
        c.execute(t.slivers.update().values(node="node1"))
    host.world.settle()
    assert len(host.step()) == 2


def test_nothing_is_stopped_during_the_hold_after_a_restore(host: Host) -> None:
    """The rows are older than the nodes: an admin looks first. Control: the end of the hold."""
    host.world.settle()
    with host.world.centre.write() as c:
        c.execute(t.incarnations.insert().values(number=1, backup_at=utcnow(), began_at=utcnow()))
        c.execute(t.slices.delete())
    host.world.settle(400.0)
    host.world.start_hub()
    host.world.settle(400.0)
    assert host.step() == [] and len(host.world.slivers(host.world.node)) == 2
    with host.world.centre.write() as c:
        c.execute(t.incarnations.update().values(ended_at=utcnow()))
    host.world.settle()
    assert len(host.step()) == 2


def test_a_failure_is_repeated_later(host: Host) -> None:
    host.world.settle()
    gone = take(host.world, 0)
    host.world.settle()
    host.broken = True
    assert host.step() == []
    host.broken = False
    assert host.step() == [], "not at once"
    host.fence._next = 0.0
    assert host.step() == [gone]


def test_the_event_of_it_is_accepted_without_a_slice(host: Host) -> None:
    host.world.settle()
    update = {"user": "admin", "action": "keep disk", "slice": "other", "project": "default", "detail": "x is kept"}
    with host.world.centre.read() as c:
        (event,) = accepted(c, NODE, [("event", update)])
        assert accepted(c, NODE, [("event", {**update, "action": "delete"})]) == [], "control"
    assert isinstance(event, EventSeen)
    assert (event.user, event.slice, event.detail) == ("agent", "", f"{NODE}: x is kept")
