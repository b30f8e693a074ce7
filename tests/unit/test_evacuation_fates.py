"""Whatever happens to the messages of a node that is evacuated, and returns: no sliver is on two nodes."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest
import sqlalchemy as sa
from bare_service import ADMIN
from centre_and_node import LOCAL, NODE, World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_evacuation import lose
from test_mirror import MESSAGES, _end, pass_on

from slicemgr.errors import Refused
from slicemgr.hub import reports, updates
from slicemgr.model import Phase
from slicemgr.service.nodes import evacuation
from slicemgr.service.slices import slices
from slicemgr.store import allocations, observations, pending
from slicemgr.store import tables as t
from slicemgr.store.operation_parts import ENDED
from slicemgr.store.updates import utcnow

HOST_KEY = "ssh-ed25519 " + "A" * 60
EVENTS = ("create", "stop", "delete", "seen", "seen", "end", "evacuate", "evacuate", "time", "hub", "link")
NEAR = "node1"  # gets the slivers; its agent does nothing here


@contextmanager
def joined() -> Iterator[World]:
    folder = Path(tempfile.mkdtemp())
    try:
        with World(folder) as world:
            world.settle(20.0)
            with world.centre.write() as c:
                c.execute(t.nodes.update().values(agent_seen_at=utcnow()))
            yield world
    finally:
        shutil.rmtree(folder)


def do(world: World, step: str, number: int) -> None:
    here = sorted(world.slivers(world.node))
    match step.split("-"):
        case ["create"]:
            with suppress(Refused):  # the node is lost
                world.service.create(f"s{number}", count=1 + number % 2, node=NODE)
        case ["stop" | "delete" as action]:
            names = sa.select(t.slices.c.name).order_by(t.slices.c.name)
            if name := world.scalar(world.centre, names):
                with suppress(Refused):  # it is being deleted
                    slices.act(world.centre, world.service.config, name, action, ADMIN)
        case ["seen"] if here:
            world.record(pending.SliverSeen(here[number % len(here)], Phase.RUNNING, host_key=HOST_KEY))
        case ["end"]:
            _end(world)
        case ["evacuate"]:
            lose(world)
            evacuation.evacuate(world.centre, world.service.config, NODE, ADMIN)
        case _:
            pass_on(world, step, number)
    world.work()


def finish(world: World) -> None:
    """Messages flow again, and the node carries out what it has to do."""
    world.settle(90.0)
    while True:
        with world.node.read() as c:
            if not pending.pending_operations(c, LOCAL):
                break
        _end(world)
        world.settle(30.0)


def check(world: World) -> None:
    s, p, o = t.slivers.c, t.operation_parts.c, t.ports.c
    with world.centre.read() as c:
        rows = c.execute(t.slivers.select().order_by(s.serial)).all()
        assert allocations.differences(c) == {}
        held = Counter(c.scalars(sa.select(o.sliver)))
        where = {tuple(row) for row in c.execute(sa.select(o.sliver, o.node).distinct())}
        unfinished = c.scalars(sa.select(p.operation).where(p.node == NODE, p.state.not_in(ENDED))).all()
    moved = [one for one in rows if one.node == NEAR]
    assert {(one.phase, one.host_key) for one in moved} <= {("pending", "")}, "only their new node reports on them"
    assert all(one.epoch > 0 for one in moved)
    assert sorted(world.slivers(world.node)) == sorted(one.id for one in rows if one.node == NODE)
    assert world.slivers(world.centre) == world.slivers(world.node)
    assert world.mirrored() == world.wanted() and unfinished == []
    assert held == {one.serial: one.port_count for one in rows} and where == {(one.serial, one.node) for one in rows}
    assert world.scalar(world.node, sa.select(sa.func.count()).select_from(t.outbox)) == 0


@given(steps=st.lists(st.sampled_from(EVENTS + MESSAGES * 2), max_size=40))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_fate_of_messages(steps: list[str]) -> None:
    with joined() as world:
        for number, step in enumerate(steps):
            do(world, step, number)
        finish(world)
        check(world)


LATE = ("create", "node", "hub", "node", "seen", "evacuate", "hub", "hub", "hub")  # a report arrives afterwards


def test_a_late_report() -> None:
    """Control: a hub that does not compare the node of a sliver with the sender."""

    def run() -> None:
        with joined() as world:
            for number, step in enumerate(LATE):
                do(world, step, number)
            check_moved(world)
            finish(world)
            check(world)

    def check_moved(world: World) -> None:
        found = world.scalar(world.centre, sa.select(sa.func.count()).where(t.slivers.c.node == NEAR))
        assert found == 1, "the sliver was moved before the report arrived"

    def anybody(c: sa.Connection, found: list[pending.Update], node: str) -> None:
        record(c, found, node)
        record(c, found, NEAR)

    def all_of_them(_c: object, _node: str, found: list[tuple[str, dict[str, object]]]) -> list[object]:
        return [updates._decoded(kind, content) for kind, content in found]

    record = observations.record
    run()
    with (
        mock.patch.object(reports, "accepted", all_of_them),
        mock.patch.object(observations, "record", anybody),
        pytest.raises(AssertionError, match="only their new node"),
    ):
        run()
