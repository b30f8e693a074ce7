"""The review after a restore of the centre: what nodes that joined run, and what a hostile node can add to it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from centre_and_node import IDENTITY, LOCAL, NODE, World

from slicemgr import backup_commands
from slicemgr.errors import Refused
from slicemgr.hub import exchange as hub
from slicemgr.hub.inventories import Inventories
from slicemgr.link import inventory
from slicemgr.model import Desired, Phase
from slicemgr.policy import messages
from slicemgr.policy.messages import BadMessage, Inventory
from slicemgr.service.restores import adoption, review
from slicemgr.service.restores.adoption import Wish
from slicemgr.store import allocations, pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

HOST_KEY = "ssh-ed25519 " + "A" * 60


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The node runs `old` with one sliver and `new` with two. The centre is restored from a backup without `new`, and
    with an earlier epoch and generation and a smaller disk of `old`."""
    with World(tmp_path) as made:
        made.settle()
        with made.centre.write() as c:
            c.execute(t.nodes.update().values(agent_seen_at=utcnow()))
        for name, count in (("old", 1), ("new", 2)):
            made.service.create(name, count=count, node=NODE)
        with made.centre.write() as c:
            c.execute(t.slivers.update().where(of(c, "old")).values(epoch=3, generation=2))
        made.settle()
        made.record(*(pending.SliverSeen(one, Phase.RUNNING, "", HOST_KEY) for one in made.slivers(made.node)))
        made.settle()
        restore(made)
        yield made


def of(c: sa.Connection, name: str) -> sa.ColumnElement[bool]:
    return t.slivers.c.slice == c.scalar(sa.select(t.slices.c.id).where(t.slices.c.name == name))


def restore(world: World) -> None:
    with world.centre.write() as c:
        c.execute(t.incarnations.insert().values(number=1, backup_at=utcnow(), began_at=utcnow()))
        new = of(c, "new")
        allocations.free(c, new)
        c.execute(t.ports.delete().where(t.ports.c.sliver.in_(sa.select(t.slivers.c.serial).where(new))))
        c.execute(t.slices.delete().where(t.slices.c.name == "new"))
        allocations.free(c, sa.true())
        c.execute(t.slivers.update().values(epoch=0, generation=0, disk=t.slivers.c.disk - (1 << 30)))
        allocations.take(c, sa.true())
        c.execute(t.operations.delete())


def found(world: World) -> review.Review:
    with world.centre.read() as c:
        return review.review(c)


def finish(world: World) -> None:
    review.finish(world.centre, world.service.config, without=["node1"])
    world.settle()


def on_node(world: World) -> dict[str, Any]:
    """The slivers of the node: name of the slice and index, with state and epoch."""
    with world.node.read() as c:
        rows = pending.slivers(c, LOCAL)
    return {row.sliver.hostname: (row.sliver.desired, row.phase, row.sliver.epoch) for row in rows}


ALL = {
    "old-0": (Desired.RUNNING, Phase.RUNNING, 3),
    "new-0": (Desired.RUNNING, Phase.RUNNING, 0),
    "new-1": (Desired.RUNNING, Phase.RUNNING, 0),
}


def test_the_review_lists_what_a_node_runs(world: World) -> None:
    """What the rows lack, and what they have otherwise. Nothing on the node changes meanwhile."""
    world.settle()
    seen = found(world)
    assert NODE not in seen.silent
    assert [(one.node, one.name, one.state) for one in seen.found] == [(NODE, "new", "running")] * 2
    newer = {"epoch": 3, "generation": 2, "origin": "", "inherited": 0, "disk": 4 << 30}
    assert list(seen.changed.values()) == [newer]
    text = "\n".join(backup_commands.lines(seen))
    assert f"of slice new, project default, on {NODE}, running" in text and "epoch 3" in text
    assert on_node(world) == ALL
    with pytest.raises(Refused, match="has no row"):
        finish(world)


def test_without_the_question_the_node_is_silent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: then the slivers end with the hold, without a word."""
    monkeypatch.setattr(Inventories, "step", lambda self: None)
    world.settle()
    assert NODE in found(world).silent and not found(world).found
    with world.centre.write() as c:
        c.execute(t.incarnations.update().values(ended_at=utcnow()))
    world.settle()
    assert on_node(world) == {"old-0": (Desired.RUNNING, Phase.RUNNING, 0)}, "it would get an older root"


def test_an_adopted_slice_runs_on(world: World) -> None:
    world.settle()
    adoption.adopt(world.centre, world.service.config, Wish("new"))
    world.settle()
    assert not found(world).found
    finish(world)
    assert on_node(world) == ALL
    assert world.mirrored() == world.wanted()
    with world.centre.read() as c:
        assert allocations.differences(c) == {}


def test_a_released_slice_ends_with_the_hold(world: World) -> None:
    """Not before it."""
    world.settle()
    assert "after the end of the hold" in review.release(world.centre, world.service.config, "new")
    world.settle()
    seen = found(world)
    assert on_node(world) == ALL and not seen.undecided
    assert sum("; released" in line for line in backup_commands.lines(seen)) == 2
    finish(world)
    assert on_node(world) == {"old-0": ALL["old-0"]}


def test_a_sliver_that_moved_or_ended_is_listed(world: World) -> None:
    """After the backup. What another node has in the rows is named with both."""
    old = world.scalar(world.centre, sa.select(t.slivers.c.id))
    for node, changed, lost in (("node1", {f"{old} of node node1": {"also on": NODE}}, ()), (NODE, {}, (old,))):
        with world.centre.write() as c:
            c.execute(t.slivers.update().values(node=node))
        if lost:
            with world.node.write() as c:
                c.execute(t.slivers.delete().where(of(c, "old")))
        world.settle()
        seen = found(world)
        assert any(line.startswith("moved: ") for line in backup_commands.lines(seen)) is bool(changed)
        assert (seen.changed, tuple(one for each in seen.lost for one in each.slivers)) == (changed, lost)


def test_an_inventory_outside_of_a_hold_is_ignored(world: World) -> None:
    taken = inventory.take(world.node, LOCAL)
    with world.centre.write() as c:
        c.execute(t.incarnations.update().values(ended_at=utcnow()))
    before = world.service.dump()
    world.hub.apply([hub.parse(IDENTITY, messages.inventory(taken))])
    assert world.service.dump() == before


def test_records_that_are_too_large_are_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "_RECORDS", 2000)
    taken = inventory.take(world.node, LOCAL).slivers
    assert [one["record"] is None for one in taken] == [False, True, True]


# --- a hostile node -------------------------------------------------------------------------------


def _change(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda one: one.__setitem__(name, value)


def _record(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda one: one["record"].__setitem__(name, value)


DROPPED = {
    "no id": _change("sliver", "../../etc"),
    "an id of another type": _change("sliver", 7),
    "a state": _change("state", "<b>"),
    "to be deleted": _change("desired", "absent"),
    "a huge epoch": _change("epoch", 1 << 62),
    "a negative disk": _change("disk", -1),
    "a disk that no node has": _change("disk", 1 << 54),
    "a logical disk": _change("disk", True),
    "an origin": _change("origin", "../x"),
    "snapshots of another type": _change("snapshots", 3),
    "many snapshots": _change("snapshots", ["a"] * 5000),
}
NO_RECORD = {
    "no record": _change("record", None),
    "of another sliver": _record("index", 5),
    "a serial number that ends all": _record("serial", 1 << 60),
    "a name": _record("slice_name", "x\ny"),
    "a project": _record("project", "\u202ex"),
    "an image": _record("image", "../x"),
    "a format": _record("image_format", "iso"),
    "a kernel": _record("boot_facts", {"bios": False, "uefi": False, "kernel": "/x y", "initrd": "", "root": ""}),
    "a host key": _record("host_key", "evil\nkey"),
    "a key of two lines": _record("ssh_keys", ["ssh-ed25519 AAAA\nevil"]),
    "a limit of another type": _record("limits", {"memory": "x", "disk": 1, "pids": 1, "cpu": 1}),
    "a limit that is no number": _record("limits", {"memory": 1, "disk": 1, "pids": 1, "cpu": float("nan")}),
    "a range of ids": _record("uid_first", 1 << 40),
    "siblings": _record("siblings", 1 << 40),
    "data for cloud-init": _record("user_data", "#include\nhttp://evil.example"),
}


def report(world: World, *slivers: dict[str, Any]) -> review.Review:
    world.hub.apply([hub.parse(IDENTITY, json.dumps({"v": 1, "kind": "inventory", "slivers": slivers}))])
    return found(world)


def new(world: World) -> dict[str, Any]:
    """The last sliver of the inventory of an honest node, which is one of `new`."""
    return copy.deepcopy(dict(inventory.take(world.node, LOCAL).slivers[-1]))


def test_the_control_is_accepted(world: World) -> None:
    seen = report(world, new(world))
    assert [one.record is not None for one in seen.found] == [True]


def test_slivers_that_are_not_valid_are_dropped(world: World) -> None:
    for what, change in DROPPED.items():
        one = new(world)
        change(one)
        assert report(world, one).found == (), what


def test_records_that_are_not_valid_cannot_be_adopted(world: World) -> None:
    for what, change in NO_RECORD.items():
        one = new(world)
        change(one)
        assert [each.record for each in report(world, one).found] == [None], what
        with pytest.raises(Refused, match="cannot be read"):
            adoption.adopt(world.centre, world.service.config, Wish(one["sliver"]))


def test_a_node_adds_no_sliver_to_a_slice_of_others(world: World) -> None:
    """A sliver of a slice with rows cannot be adopted, nor does it get a snapshot of another slice."""
    tag = world.scalar(world.centre, sa.select(t.slices.c.id))
    one = new(world)
    one["sliver"] = one["record"]["id"] = f"{tag}-9"
    one["record"] |= {"tag": tag, "index": 9, "siblings": 10}
    with world.centre.write() as c:
        row = {"id": "abcdefgh", "slice": tag, "name": "before", "user": "admin", "created_at": utcnow()}
        c.execute(t.snapshots.insert().values(row))
    other = new(world)
    other["snapshots"] = ["abcdefgh", "ijkmnpqr"]
    seen = {each.sliver: each for each in report(world, one, other, other).found}
    assert seen[f"{tag}-9"].record is None
    assert "abcdefgh" not in seen[other["sliver"]].snapshots, "the control is the other one"


@pytest.mark.parametrize("body", ['{"slivers": 1}', '{"slivers": [1]}', '{"slivers": [' + "{}," * 5000 + "{}]}"])
def test_an_inventory_of_another_form_is_refused(body: str) -> None:
    with pytest.raises(BadMessage):
        messages.parse_inventory(json.dumps({"v": 1, "kind": "inventory", **json.loads(body)}))
    assert messages.parse_inventory(messages.inventory(Inventory(()))).slivers == ()
