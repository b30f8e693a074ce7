"""What a node reports about images: what it has of them, and the findings of those that it imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, BOOT, SHA
from centre_and_node import LOCAL, NODE, World, move

from slicemgr.hub import updates
from slicemgr.model import ImageState, NodeImageState, OperationState
from slicemgr.service.nodes import images
from slicemgr.service.views import images as image_views
from slicemgr.store import outbox, pending
from slicemgr.store import tables as t

NEW = "cd" * 32


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        made.service.create("mine")
        move(made.centre, "mine")
        made.settle()
        made.record(pending.NodeSeen(LOCAL, "192.0.2.7", {}))
        yield made


def states(world: World, sha256: str = SHA) -> list[tuple[str, str, str, int]]:
    with world.centre.read() as c:
        found = image_views.on_nodes(c, sha256)
    return [(one["node"], one["state"], one["error"], one["base_size"]) for one in found]


def on_node(state: NodeImageState, **values: Any) -> pending.ImageOnNode:
    return pending.ImageOnNode(SHA, values.pop("node", LOCAL), state, **values)


def test_the_state_arrives_under_the_name_that_the_node_has_at_the_centre(world: World) -> None:
    world.record(on_node(NodeImageState.FETCHING), on_node(NodeImageState.FAILED, error="no room\nhere " + "x" * 500))
    with world.node.read() as c:
        assert [kind for _, kind, _ in outbox.batch(c)] == ["image-on-node"], "the later state replaces the earlier"
    world.settle()
    ((node, state, error, _),) = states(world)
    assert (node, state, error[:13], len(error)) == (NODE, "failed", "no room here ", 300)
    world.record(on_node(NodeImageState.READY, base_size=1 << 60))
    world.settle()
    ((node, state, error, size),) = states(world)
    assert (node, state, error) == (NODE, "ready", "") and 0 < size < 1 << 54, "no more than the disk of the node"
    world.record(on_node(NodeImageState.ABSENT))
    world.settle()
    assert states(world) == []


def test_no_node_reports_for_another(world: World) -> None:
    world.record(on_node(NodeImageState.READY, node="node1"))
    world.settle()
    assert [one[0] for one in states(world)] == [NODE]


def test_a_new_incarnation_reports_its_images_again(world: World) -> None:
    world.record(on_node(NodeImageState.READY, base_size=7))
    world.settle()
    with world.centre.write() as c:
        c.execute(t.image_nodes.delete())
    with world.node.write() as c:
        state = outbox.state(c)
        assert not outbox.acknowledge(c, state.incarnation, state.acknowledged, again=True)
    world.settle()
    assert states(world) == [(NODE, "ready", "", 7)]


def importing(world: World) -> str:
    """The operation with which the node imports an image."""
    upload = images.Upload("new", "raw", NEW, 1)
    with world.centre.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == "node1").values(state="joined"))
        c.execute(t.nodes.update().where(t.nodes.c.name == NODE).values(agent_seen_at=sa.func.now()))
    _, operation = images.register_upload(world.centre, world.service.config, upload, ADMIN, Path.touch)
    world.settle()
    assert operation is not None
    return operation


def row(world: World) -> Any:
    with world.centre.read() as c:
        return c.execute(sa.select(t.images).where(t.images.c.sha256 == NEW)).first()


def findings(**values: Any) -> pending.ImageSeen:
    known: dict[str, Any] = {"arch": "x86_64", "os": "Debian 12", "virtual_size": 9, "boot": BOOT, "base_size": 7}
    return pending.ImageSeen(NEW, ImageState.READY, **{**known, "systemd": True, **values})


def test_a_node_imports_an_image(world: World) -> None:
    operation = importing(world)
    with world.node.read() as c:
        (todo,) = (one for one in pending.pending_operations(c, LOCAL) if one.id == operation)
    assert (todo.kind, todo.image, todo.params["size"]) == ("image-import", NEW, 1)
    world.record(findings())
    world.record(pending.OperationEnded(operation, OperationState.DONE))
    world.settle()
    found = row(world)
    assert (found.state, found.arch, found.os, found.boot, found.base_size) == ("ready", "x86_64", "Debian 12", BOOT, 7)
    world.record(findings(arch="aarch64"), pending.ImageGone(NEW))
    world.settle()
    assert row(world) == found, "after the operation has ended, the node has no say"


def test_a_failed_import_leaves_no_image(world: World) -> None:
    operation = importing(world)
    world.record(pending.ImageGone(NEW), pending.OperationEnded(operation, OperationState.FAILED, "it is damaged"))
    world.settle()
    assert row(world) is None


FORGED: dict[str, dict[str, Any]] = {
    "a root with other arguments": {"boot": {**BOOT, "root": "root=UUID=1 init=/bin/sh"}},
    "a kernel elsewhere": {"boot": {**BOOT, "kernel": "/../../etc/shadow"}},
    "an initrd with a space": {"boot": {**BOOT, "initrd": "/boot/initrd x"}},
    "another field": {"boot": {**BOOT, "more": 1}},
    "a number for a flag": {"boot": {**BOOT, "bios": 1}},
    "an architecture with markup": {"arch": "<b>"},
    "a negative size": {"virtual_size": -1},
    "text for a flag": {"systemd": "yes"},
    "a number for a configuration": {"kernel_config": 1},
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_findings(world: World, what: str) -> None:
    importing(world)
    before = row(world)
    body = outbox._body(findings(**FORGED[what]))
    with world.centre.write() as c:
        assert updates.accepted(c, NODE, [("image", body)]) == []
        assert updates.accepted(c, NODE, [("image", outbox._body(findings()))]) == [findings()], "the control"
        lost = outbox._body(pending.ImageSeen(NEW, ImageState.MISSING))
        assert updates.accepted(c, NODE, [("image", lost)]) == []
    assert row(world) == before


def test_the_image_of_an_operation_is_in_the_mirror(world: World) -> None:
    """Also if no sliver of the node uses it; then its node can fetch it."""
    world.service.add_image(NEW, "more")
    images.push(world.centre, world.service.config, "more", NODE, ADMIN)
    world.settle()
    with world.node.read() as c:
        found = pending.image(c, NEW)
        kinds = [one.kind for one in pending.pending_operations(c, LOCAL)]
    assert found is not None and found.state is ImageState.READY and kinds[-1] == "image-push"
