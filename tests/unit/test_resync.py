"""A node gets all its rows again when an admin requests it, also where its revision is that of the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN
from centre_and_node import IDENTITY, NODE, World, move

from slicemgr.errors import Code, Refused
from slicemgr.policy import messages
from slicemgr.service.nodes import membership
from slicemgr.service.views import nodes as node_views
from slicemgr.store import tables as t


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        made.service.create("exp")
        move(made.centre, "exp")
        made.settle()
        yield made


def shown(world: World) -> dict[str, Any]:
    with world.centre.read() as c:
        return node_views.nodes(c, world.service.config.network, NODE)[0]


def resync(world: World) -> None:
    membership.resync(world.centre, world.service.config, NODE, ADMIN)


def damage(world: World) -> None:
    """Rows of the node that differ from those of the centre, while its revision is the same."""
    with world.node.write() as c:
        c.execute(t.slivers.update().values(serial=99))


def test_a_resync_replaces_the_rows_of_a_node(world: World) -> None:
    damage(world)
    world.settle()
    assert world.mirrored() != world.wanted(), "the control: revisions are compared, not rows"
    resync(world)
    assert shown(world)["resync_at"] is not None
    world.settle()
    assert world.mirrored() == world.wanted() and shown(world)["resync_at"] is None


def test_it_needs_one_message_and_its_answer(world: World) -> None:
    """Not the ten seconds between two messages with all rows without a request, and not a minute of beats."""
    resync(world)
    world.work()
    assert [messages.kind(one) for one in world.to_node] == [messages.ROWS]
    world.deliver_to_node()
    world.work()
    while world.to_hub:
        world.deliver_to_hub()
    assert shown(world)["resync_at"] is None
    resync(world)
    world.work()
    assert messages.ROWS in [messages.kind(one) for one in world.to_node], "also right after the first"


def test_a_request_survives_another_hub_and_lost_messages(world: World) -> None:
    damage(world)
    resync(world)
    world.work()
    world.to_node.clear()
    world.start_hub()
    world.settle()
    assert world.mirrored() == world.wanted() and shown(world)["resync_at"] is None


def test_a_later_request_is_not_answered_by_earlier_rows(world: World) -> None:
    resync(world)
    world.work()
    resync(world)
    world.deliver_to_node()
    world.work()
    while world.to_hub:
        world.deliver_to_hub()
    assert shown(world)["resync_at"] is not None
    world.settle()
    assert shown(world)["resync_at"] is None


def test_a_node_on_the_database_of_the_service_has_none_of_its_own(world: World) -> None:
    with world.centre.write() as c:
        c.execute(t.links.delete().where(t.links.c.identity == IDENTITY))
    with pytest.raises(Refused, match="has no database of its own") as refused:
        resync(world)
    assert refused.value.code is Code.CONFLICT
    with pytest.raises(Refused) as refused:
        membership.resync(world.centre, world.service.config, "nowhere", ADMIN)
    assert refused.value.code is Code.NOT_FOUND


def test_it_is_recorded(world: World) -> None:
    resync(world)
    e = t.events.c
    with world.centre.read() as c:
        assert c.scalar(sa.select(e.detail).where(e.action == "node resync")) == NODE
