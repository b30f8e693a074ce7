"""Slivers of a lost node that are made again elsewhere, and operations that wait for a node."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS
from browsers import Browser
from centre_and_node import NODE, World
from tenants import Tenants

from slicemgr.errors import Refused
from slicemgr.model import OperationState, Phase
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import evacuation, losses, membership, nodes
from slicemgr.service.slices import slices, snapshots
from slicemgr.service.slices.snapshots import SliceReference
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import slices as slice_views
from slicemgr.store import allocations, pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

HOST_KEY = "ssh-ed25519 " + "A" * 60


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Both nodes get slivers: node1, whose agent is beside the centre, and node7."""
    with World(tmp_path) as made:
        made.settle()
        with made.centre.write() as c:
            c.execute(t.nodes.update().values(agent_seen_at=utcnow()))
        yield made


def lose(world: World, *, lost: bool = True) -> None:
    """What the hub notes of a node that does not report."""
    since = utcnow() - timedelta(minutes=6)
    with world.centre.write() as c:
        row = {"silent_since": since, "lost": lost, "agent_seen_at": since}
        c.execute(t.nodes.update().where(t.nodes.c.name == NODE).values(row))


def evacuate(world: World, *, lost: bool = False, by: Principal = ADMIN) -> evacuation.Evacuated:
    return evacuation.evacuate(world.centre, world.service.config, NODE, by, lost=lost)


def rows(world: World, name: str = "exp") -> list[Any]:
    with world.centre.read() as c:
        query = sa.select(t.slivers).join(t.slices, t.slices.c.id == t.slivers.c.slice)
        return list(c.execute(query.where(t.slices.c.name == name).order_by(t.slivers.c.idx)).all())


def on_node7(world: World, name: str = "exp", count: int = 2, **fields: Any) -> str:
    return world.service.create(name, count=count, node=NODE, **fields)


def operation(world: World, id: str) -> dict[str, Any]:
    with world.centre.read() as c:
        return operation_views.operation(c, id)


def run(world: World, name: str = "exp") -> None:
    """The node reports that its slivers of a slice run, and that their operation has ended."""
    updates: list[pending.Update] = []
    with world.node.read() as c:
        for one in pending.pending_operations(c, "elsewhere"):
            updates += [pending.SliverDone(one.id, sliver, OperationState.DONE) for sliver in one.slivers]
            updates += [pending.OperationEnded(one.id, OperationState.DONE)]
    mine = [one.id for one in rows(world, name) if one.node == NODE]
    world.record(*(pending.SliverSeen(one, Phase.RUNNING, "", HOST_KEY) for one in mine), *updates)
    world.settle()


def test_the_slivers_are_new_ones_elsewhere(world: World) -> None:
    made = on_node7(world)
    world.settle()
    run(world)
    before = rows(world)
    assert {one.phase for one in before} == {"running"} and operation(world, made)["state"] == "done"
    lose(world)
    outcome = evacuate(world)
    after = rows(world)
    assert not outcome.left and [one.id for one in after] == [one.id for one in before]
    for one in after:
        assert (one.node, one.epoch, one.phase, one.host_key, one.origin) == ("node1", 1, "pending", "", "")
    with world.centre.read() as c:
        held = c.execute(sa.select(t.ports.c.node, sa.func.count()).group_by(t.ports.c.node)).all()
        assert [tuple(row) for row in held] == [("node1", sum(one.port_count for one in after))]
        assert allocations.differences(c) == {}
        (work,) = pending.pending_operations(c, "node1")
    assert (work.id, work.kind, len(work.slivers)) == (outcome.operations[0], "rebuild", 2)
    assert [one["node"] for one in operation(world, work.id)["parts"]] == ["node1"]
    with pytest.raises(Refused, match="node1 uses the database itself"):
        evacuation.evacuate(world.centre, world.service.config, "node1", ADMIN, lost=True)


def test_a_node_that_returns_changes_nothing_of_them(world: World) -> None:
    """Its mirror loses them, and what it reports about them is dropped. Control: the same report before."""
    on_node7(world)
    world.settle()
    run(world)
    assert {one.phase for one in rows(world)} == {"running"}, "control: a report of the node that has them"
    lose(world)
    evacuate(world)
    ids = [one.id for one in rows(world)]
    world.record(*(pending.SliverSeen(one, Phase.FAILED, "the second copy", "") for one in ids))
    world.settle()
    assert [(one.phase, one.error, one.node) for one in rows(world)] == [("pending", "", "node1")] * 2
    assert world.slivers(world.node) == {}
    assert world.mirrored() == world.wanted()


def test_only_a_lost_node_is_evacuated(world: World) -> None:
    on_node7(world)
    for lost in (False, True):
        with pytest.raises(Refused, match="node node7 reports"):
            evacuate(world, lost=lost)
    lose(world, lost=False)
    with pytest.raises(Refused, match="is not lost yet") as caught:
        evacuate(world)
    assert "--lost" in caught.value.hint and {one.node for one in rows(world)} == {NODE}
    with pytest.raises(Refused, match="admin"):
        evacuate(world, lost=True, by=Principal("alice", False))
    with world.centre.write() as c:
        c.execute(t.incarnations.insert().values(number=1, backup_at=utcnow(), began_at=utcnow()))
    with pytest.raises(Refused, match="on hold"):
        evacuate(world, lost=True)
    with world.centre.write() as c:
        c.execute(t.incarnations.delete())
    assert len(evacuate(world, lost=True).operations) == 1


def test_what_the_lost_node_had_to_do_ends(world: World) -> None:
    made = on_node7(world)
    check = nodes.request(world.centre, world.service.config, NODE, "doctor", ADMIN, {})
    lose(world)
    (rebuild,) = evacuate(world).operations
    for one in (made, check):
        ended = operation(world, one)
        assert (ended["state"], ended["error"]) == ("failed", "node node7 was lost")
    assert operation(world, rebuild)["state"] == "queued"
    membership.remove(world.centre, NODE, ADMIN)


def test_slivers_that_were_to_be_deleted_are_gone(world: World) -> None:
    """Their operation ends, since no node has them; a node that returns finds no rows of them."""
    on_node7(world)
    world.settle()
    deleted = slices.act(world.centre, world.service.config, "exp", "delete", ADMIN)
    lose(world)
    assert evacuate(world) == evacuation.Evacuated((), ())
    assert operation(world, deleted)["state"] == "done" and not rows(world)
    with world.centre.read() as c, pytest.raises(Refused, match="exp"):
        slice_views.slice(c, "exp")
    world.settle()
    assert world.slivers(world.node) == {}


def test_snapshots_that_were_there_are_gone(world: World) -> None:
    on_node7(world)
    world.settle()
    run(world)
    snapshots.create(world.centre, world.service.config, SliceReference("exp", ADMIN), "before")
    assert world.service.count("sliver_snapshots") == 2
    lose(world)
    evacuate(world)
    assert world.service.count("snapshots") == world.service.count("sliver_snapshots") == 0


def test_a_slice_without_a_place_remains(world: World) -> None:
    on_node7(world)
    on_node7(world, "large", count=1, memory="7G")
    lose(world)
    with world.centre.write() as c:
        facts = {**FACTS, "memory": 2 << 30}
        c.execute(t.nodes.update().where(t.nodes.c.name == "node1").values(facts=facts))
    before = rows(world, "large")
    outcome = evacuate(world)
    assert [one.slice for one in outcome.left] == ["large"] and "memory" in str(outcome.left[0].reason)
    assert rows(world, "large") == before and {one.node for one in rows(world)} == {"node1"}


def test_slices_choose_what_happens(world: World) -> None:
    """Only after 5 minutes, and not during the hold after a restore."""
    on_node7(world, "stays")
    on_node7(world, "moves", on_loss="rebuild")
    with pytest.raises(Refused, match="burn"):
        world.service.create("wrong", on_loss="burn")
    with world.centre.read() as c:
        assert [slice_views.slice(c, name)["on_loss"] for name in ("stays", "moves")] == ["keep", "rebuild"]

    def where() -> list[str]:
        losses.act(world.centre, world.service.config)
        return [rows(world, name)[0].node for name in ("stays", "moves")]

    assert where() == [NODE, NODE]
    lose(world, lost=False)
    assert where() == [NODE, NODE]
    lose(world)
    with world.centre.write() as c:
        c.execute(t.incarnations.insert().values(number=1, backup_at=utcnow(), began_at=utcnow()))
    assert where() == [NODE, NODE]
    with world.centre.write() as c:
        c.execute(t.incarnations.update().values(ended_at=utcnow()))
    assert where() == [NODE, "node1"]
    assert where() == [NODE, "node1"] and {one.epoch for one in rows(world, "moves")} == {1}, "once"


def test_a_part_waits_for_its_node(world: World) -> None:
    """The other node's slivers run meanwhile, and the operation ends when the node is back."""
    made = world.service.create("exp", count=2)
    assert sorted(one.node for one in rows(world)) == ["node1", NODE]
    near = next(one.id for one in rows(world) if one.node == "node1")
    world.service.record(
        pending.OperationStarted(made),
        pending.SliverSeen(near, Phase.RUNNING, "", HOST_KEY),
        pending.SliverDone(made, near, OperationState.DONE),
        pending.OperationEnded(made, OperationState.DONE),
    )
    lose(world)
    shown = operation(world, made)
    assert shown["state"] == "running"
    assert [(one["node"], one["state"]) for one in shown["parts"]] == [("node1", "done"), (NODE, "queued")]
    assert [one["silent_since"] is None for one in shown["parts"]] == [True, False]
    with world.centre.read() as c:
        assert sorted(one["state"] for one in slice_views.slice(c, "exp")["slivers"]) == ["running", "unknown"]
    world.settle()
    run(world)
    assert operation(world, made)["state"] == "done"
    with world.centre.read() as c:
        assert slice_views.slice(c, "exp")["state"] == "running"


def test_the_page_asks_first(tenants: Tenants) -> None:
    on_n2 = sa.select(sa.func.count()).where(t.slivers.c.node == "n2")
    with tenants.store.write() as c:
        row = {"name": "n2", "address": "", "facts": {}, "identity": "node-n2", "state": "active"}
        c.execute(t.nodes.insert().values(**row, silent_since=utcnow() - timedelta(hours=1), lost=True))
        c.execute(t.slivers.update().where(t.slivers.c.idx == 0).values(node="n2"))
        c.execute(t.nodes.update().where(t.nodes.c.name == "node1").values(agent_seen_at=utcnow()))
        allocations.recount(c)
    root = Browser(tenants, "root")
    page = root.get("/nodes/n2").text
    assert "Evacuate" in page and "Evacuate" not in root.get("/nodes/node1").text
    asked = root.post("/nodes/n2/evacuate", {})
    assert asked.status_code == 200 and "data on the lost node is lost" in asked.text
    with tenants.store.read() as c:
        assert c.scalar(on_n2)
    assert root.post("/nodes/n2/evacuate", {"confirmed": "yes"}).status_code == 303
    with tenants.store.read() as c:
        assert not c.scalar(on_n2)
