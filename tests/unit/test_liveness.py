"""Which nodes are silent or lost, and what people see of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN
from centre_and_node import IDENTITY, NODE, World, move
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.cli.render import tables
from slicemgr.config import MailConfig
from slicemgr.model import Phase
from slicemgr.policy import liveness, messages
from slicemgr.policy.liveness import Liveness, Reported
from slicemgr.service.nodes import losses
from slicemgr.service.slices import slices
from slicemgr.service.views import filters
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import slices as slice_views
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def shown(world: World) -> dict[str, Any]:
    with world.centre.read() as c:
        return node_views.nodes(c, world.config.network, NODE)[0]


def slice_shown(world: World) -> dict[str, Any]:
    with world.centre.read() as c:
        return slice_views.slice(c, "exp")


def events(world: World) -> list[str]:
    with world.centre.read() as c:
        query = sa.select(t.events.c.action).where(t.events.c.detail.startswith(NODE)).order_by(t.events.c.id)
        return [one for one in c.scalars(query) if one != "node active"]


def hub_listens(world: World, seconds: float, *, receives: bool = True) -> None:
    """Time passes in which the hub works and the node sends nothing. receives: the broker takes messages."""
    end = world.now + seconds
    while world.now < end:
        world.now += 1.0
        world.hub.step(receives=receives)
        world.to_node.clear()


# --- pure ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=60))
def test_only_time_in_which_the_hub_listens_makes_a_node_lost(steps: list[tuple[float, bool]]) -> None:
    """Each step: seconds until the next call, and whether the node reports."""
    reported, now, listened, state = Reported(), 0.0, 0.0, Liveness.ALIVE
    reported.passed(now)
    reported.report("n")
    for seconds, reports in steps:
        now += seconds
        listened += min(seconds, 2.0)
        reported.passed(now)
        if reports:
            reported.report("n")
            listened = 0.0
        state = reported.judge("n", state)
        if min(abs(listened - liveness.SILENT), abs(listened - liveness.LOST)) > 1e-6:  # sums of floats
            assert state is liveness.judge(listened)


def test_a_pause_of_the_hub_silences_nobody() -> None:
    reported = Reported()
    reported.passed(0.0)
    reported.report("n")
    reported.passed(4000.0)
    assert reported.judge("n", Liveness.ALIVE) is Liveness.ALIVE
    assert liveness.judge(4000.0) is Liveness.LOST, "control: the time that has passed"
    reported.paused()
    reported.passed(9000.0)
    assert reported.judge("n", Liveness.ALIVE) is Liveness.ALIVE


def silent_after(reported: Reported, start: float) -> float:
    """Seconds from `start` until a node that does not report is silent."""
    now = start
    while reported.judge("n", Liveness.ALIVE) is Liveness.ALIVE:
        now += 1.0
        reported.passed(now)
    return now - start


def test_alarms_that_repeat_delay_the_verdict_and_do_not_prevent_it() -> None:
    """A node has the time to connect again after each of them, as after a start of the hub."""
    reported = Reported()
    reported.passed(0.0)
    reported.report("n")
    assert silent_after(reported, 0.0) == liveness.SILENT
    reported.report("n")
    reported.interrupted()
    reported.passed(1000.0)
    assert silent_after(reported, 1000.0) == liveness.RECONNECT + liveness.SILENT
    reported.report("n")
    for alarm in range(4):  # each is followed by 40 seconds without one
        reported.interrupted()
        for second in range(41):
            reported.passed(2000.0 + 100 * alarm + second)
    assert reported.judge("n", Liveness.ALIVE) is Liveness.SILENT


def test_a_new_hub_gives_nodes_time_and_forgets_no_state() -> None:
    reported = Reported()
    for now in range(61):
        reported.passed(float(now))
        assert reported.judge("n", Liveness.ALIVE) is (Liveness.ALIVE if now < 60 else Liveness.SILENT)
        assert reported.judge("n", Liveness.LOST) is Liveness.LOST, "only a report ends that"
    reported.report("n")
    assert reported.judge("n", Liveness.LOST) is Liveness.ALIVE


# --- in the rows -----------------------------------------------------------------------------------------------------


def test_a_broker_that_takes_nothing_silences_nobody(world: World) -> None:
    world.settle()
    hub_listens(world, liveness.LOST + 60, receives=False)
    assert shown(world)["liveness"] == "alive"
    hub_listens(world, liveness.RECONNECT + liveness.SILENT / 2)
    assert shown(world)["liveness"] == "alive", "nodes have time to connect again"
    hub_listens(world, liveness.SILENT)
    assert shown(world)["liveness"] == "silent", "control: the broker takes messages, and none comes"


def test_an_alarm_of_the_broker_delays_what_is_sent_and_loses_nothing(world: World) -> None:
    world.settle()
    world.service.create("exp")
    move(world.centre, "exp")
    world.now += 60.0
    world.hub.step(woken=True, receives=False)
    assert world.to_node == []
    world.hub.step()
    assert [messages.kind(one) for one in world.to_node] == [messages.ROWS]


def test_a_node_is_silent_then_lost_then_back(world: World) -> None:
    world.service.create("exp", count=2)
    move(world.centre, "exp")
    world.settle()
    ids = list(world.slivers(world.node))
    world.record(*(pending.SliverSeen(one, Phase.RUNNING, "") for one in ids))
    world.settle()
    assert shown(world)["liveness"] == "alive" and shown(world)["silent_since"] is None
    assert slice_shown(world)["state"] == "running"
    hub_listens(world, 35)
    silent = shown(world)
    assert silent["liveness"] == "silent" and silent["silent_since"] == silent["beat_at"]
    assert slice_shown(world)["state"] == "running", "its slivers run, as far as one knows"
    assert tables._node_state(silent) == "silent" and tables._node_state({**silent, "liveness": "alive"}) == "active"
    hub_listens(world, 300)
    assert shown(world)["liveness"] == "lost"
    found = slice_shown(world)
    assert found["state"] == "unknown"
    assert {one["unknown_since"] for one in found["slivers"]} == {silent["beat_at"]}
    assert "has not reported since" in str(tables._sliver_error(found["slivers"][0]))
    assert set(world.slivers(world.centre).values()) == {"running"}, "what the node wrote stays"
    with world.centre.read() as c:
        assert len(slice_views.slices(c, where=filters.slices({"state": "unknown"}))) == 1
        assert not slice_views.slices(c, where=filters.slices({"state": "running"}))
    world.settle()
    assert shown(world)["liveness"] == "alive" and slice_shown(world)["state"] == "running"
    assert events(world) == ["node silent", "node lost", "node reports"]


def test_another_hub_does_not_make_all_nodes_silent(world: World) -> None:
    world.settle()
    world.now += 3600.0
    world.start_hub()
    hub_listens(world, 25)
    assert shown(world)["liveness"] == "alive"
    hub_listens(world, 400)
    assert shown(world)["liveness"] == "lost"
    world.start_hub()
    hub_listens(world, 5)
    assert shown(world)["liveness"] == "lost", "a new hub does not forget it"


def test_no_node_is_lost_during_the_hold_after_a_restore(world: World) -> None:
    world.settle()
    with world.centre.write() as c:
        c.execute(t.incarnations.insert().values(number=1, backup_at=utcnow(), began_at=utcnow()))
    hub_listens(world, 1000)
    assert shown(world)["liveness"] == "alive" and events(world) == []
    with world.centre.write() as c:
        c.execute(t.incarnations.update().values(ended_at=utcnow()))
    hub_listens(world, 40)
    assert shown(world)["liveness"] == "silent", "control"


def test_admins_get_one_mail_for_each_loss(world: World) -> None:
    world.settle()
    config = dataclasses.replace(world.service.config, mail=MailConfig(server="mail.example", sender="a@example.org"))

    def mails() -> list[tuple[str, str]]:
        losses.act(world.centre, config)
        with world.centre.read() as c:
            return [(row.recipient, row.subject) for row in c.execute(sa.select(t.mails)).all()]

    with world.centre.write() as c:
        c.execute(t.users.update().where(t.users.c.name == "admin").values(email="admin@example.org"))
        c.execute(t.users.insert().values(name="alice", admin=False, created_at=utcnow(), email="alice@example.org"))
    hub_listens(world, 40)
    assert mails() == [], "silent only"
    hub_listens(world, 300)
    assert mails() == mails() == [("admin@example.org", "node node7 is lost")]
    world.settle()
    hub_listens(world, 340)
    with world.centre.write() as c:  # the same second as before in the test
        c.execute(t.nodes.update().where(t.nodes.c.name == NODE).values(silent_since=utcnow() + timedelta(hours=1)))
    assert len(mails()) == 2


def test_a_removed_node_is_forgotten(world: World) -> None:
    world.settle()
    world.hub.forget(IDENTITY)
    hub_listens(world, 10)
    assert shown(world)["liveness"] == "alive"


def test_slices_that_are_deleted_on_a_lost_node(world: World) -> None:
    world.service.create("exp", count=1)
    move(world.centre, "exp")
    with world.centre.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == NODE).values(silent_since=utcnow(), lost=True))
    assert slice_shown(world)["state"] == "unknown"
    slices.act(world.centre, world.service.config, "exp", "delete", ADMIN)
    assert slice_shown(world)["state"] == "deleting"
