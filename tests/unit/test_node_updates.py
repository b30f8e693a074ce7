"""What nodes report arrives exactly once, and a hostile node changes nothing but what it has."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
import sqlalchemy as sa
from amqp import serialization
from amqp.method_framing import frame_handler
from centre_and_node import IDENTITY, NODE, World, move
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.transport import pyamqp
from raw_messages import HARMFUL, delivery
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.hub import mirrors, reports, updates
from slicemgr.hub.allowance import Allowance
from slicemgr.hub.reports import Report
from slicemgr.ipc import waiting
from slicemgr.link import reports as link_reports
from slicemgr.model import ImageState, OperationState, Phase
from slicemgr.policy import messages
from slicemgr.policy.messages import BadMessage, Beat, Updates
from slicemgr.store import observations, outbox, pending
from slicemgr.store import rows as store_rows
from slicemgr.store import tables as t
from slicemgr.store.updates import MEMORY_SHORT, MEMORY_TAKEN, SliverUsed, Update, utcnow

RUNNING = OperationState.RUNNING
KEY = "ssh-ed25519 " + "A" * 60


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The node has the slice `mine`; the slice `exp` is on the centre's own node."""
    with World(tmp_path) as made:
        made.service.create("exp")
        made.service.create("mine")
        move(made.centre, "mine")
        made.settle()
        yield made


def sliver(world: World, slice: str = "mine") -> str:
    query = sa.select(t.slivers.c.id).join(t.slices, t.slices.c.id == t.slivers.c.slice)
    return str(world.scalar(world.centre, query.where(t.slices.c.name == slice)))


def operation(world: World, slice: str = "mine") -> str:
    return str(world.scalar(world.centre, sa.select(t.operations.c.id).where(t.operations.c.slice_name == slice)))


def host_key(world: World) -> str:
    query = sa.select(t.slivers.c.host_key).where(t.slivers.c.id == sliver(world))
    return str(world.scalar(world.centre, query))


def key(number: int) -> str:
    return f"{KEY}{number}"


def seen(world: World, number: int) -> pending.SliverSeen:
    return pending.SliverSeen(sliver(world), Phase.RUNNING, host_key=key(number))


# --- once ----------------------------------------------------------------------------------------


def waiting_reports(world: World) -> list[list[str]]:
    """Kinds of the updates in each report that is due now."""
    return [
        [kind for _, kind, _ in messages.parse_updates(one).updates]
        for one in world.link.due()
        if messages.kind(one) == messages.UPDATES
    ]


@pytest.mark.parametrize("shares", [True, False])
def test_what_only_began_shares_a_report(world: World, shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shares:
        monkeypatch.setattr(link_reports, "_SHARING", 0.0)
    began: list[Update] = [
        pending.OperationStarted(operation(world)),
        pending.StepSeen(operation(world), "", "a", RUNNING),
    ]
    world.record(*began)
    assert waiting_reports(world) == ([] if shares else [["operation-started", "step"]])
    world.record(pending.OperationEnded(operation(world), OperationState.DONE))
    assert waiting_reports(world) == ([["operation-started", "step", "operation-ended"]] if shares else [])


def test_what_only_began_waits_for_a_moment_only(world: World) -> None:
    world.record(pending.OperationStarted(operation(world)))
    assert waiting_reports(world) == []
    world.now += link_reports._SHARING
    assert waiting_reports(world) == [["operation-started"]]


def test_many_updates_do_not_wait(world: World) -> None:
    """What a node collected while it had no connection is sent at once."""
    world.record(*(pending.StepSeen(operation(world), "", f"s{number}", RUNNING) for number in range(99)))
    assert [len(one) for one in waiting_reports(world)] == [99]


def test_a_sliver_runs_and_its_operation_ends(world: World) -> None:
    one, todo = sliver(world), operation(world)
    world.record(pending.OperationStarted(todo))
    world.record(pending.StepSeen(todo, one, "root", OperationState.DONE))
    world.record(pending.SliverSeen(one, Phase.RUNNING, "", KEY), SliverUsed(one, 1_700_000_000, 5, 6, 7))
    world.record(pending.SliverDone(todo, one, OperationState.DONE))
    world.record(pending.OperationEnded(todo, OperationState.DONE, result={"made": [1, "x"]}))
    world.settle()
    with world.centre.read() as c:
        row = c.execute(t.slivers.select().where(t.slivers.c.id == one)).one()
        assert (row.phase, row.host_key, row.usage_disk, row.usage_charged) == ("running", KEY, 7, 6)
        ended = c.execute(t.operations.select().where(t.operations.c.id == todo)).one()
        assert (ended.state, ended.result) == ("done", {"made": [1, "x"]}) and ended.started_at
        assert c.scalar(sa.select(t.operation_steps.c.state).where(t.operation_steps.c.operation == todo)) == "done"
    assert not world.mirrored()["operations"], "what has ended leaves the mirror"


def test_what_was_only_seen_is_replaced(world: World) -> None:
    one = sliver(world)
    world.record(pending.SliverSeen(one, Phase.RUNNING, "bad", KEY))
    for phase in (Phase.STOPPED, Phase.RUNNING) * 50:
        world.record(pending.SliverSeen(one, phase))
    with world.node.read() as c:
        [(_, kind, body)] = outbox.batch(c)
    assert (kind, body) == ("sliver", {"sliver": one, "phase": "running", "error": "bad", "host_key": KEY})


def test_a_step_keeps_its_beginning(world: World) -> None:
    began, todo = utcnow() - timedelta(minutes=5), operation(world)
    world.record(pending.StepSeen(todo, "", "copy", OperationState.RUNNING, "", 1, began))
    for percent in range(2, 100):
        world.record(pending.StepSeen(todo, "", "copy", OperationState.RUNNING, "", percent))
    world.record(pending.StepSeen(todo, "", "copy", OperationState.DONE))
    with world.node.read() as c:
        assert [body["percent"] for _, _, body in outbox.batch(c)[:1]] == [99] and len(outbox.batch(c)) == 2
    world.settle()
    row = world.scalar(world.centre, sa.select(t.operation_steps.c.started_at))
    assert row == began


def test_events_of_a_node_that_is_away_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_MOST_EVENTS", 20)
    for number in range(50):
        world.record(pending.EventSeen("agent", "repair", detail=str(number)))
    with world.node.read() as c:
        assert [body["detail"] for _, _, body in outbox.batch(c)] == [str(number) for number in range(30, 50)]


def test_what_agents_report_about_memory_arrives(world: World) -> None:
    for action in (MEMORY_SHORT, MEMORY_TAKEN, "invented"):
        world.record(pending.EventSeen("agent", action, detail="the node took it"))
    world.settle()
    query = sa.select(t.events.c.action).where(t.events.c.detail == f"{NODE}: the node took it").order_by(t.events.c.id)
    with world.centre.read() as c:
        assert list(c.scalars(query)) == [MEMORY_SHORT, MEMORY_TAKEN]


def test_many_updates_arrive_in_several_reports(world: World) -> None:
    world.record(*(pending.EventSeen("agent", "repair", detail=f"{number:03}") for number in range(450)))
    world.settle()
    query = sa.select(t.events.c.detail).where(t.events.c.action == "repair").order_by(t.events.c.id)
    with world.centre.read() as c:
        assert list(c.scalars(query)) == [f"{NODE}: {number:03}" for number in range(450)]


def restore(world: World, copy: Path) -> None:
    world.node.close()
    path = Path(world.config.store_url.removeprefix("sqlite:///"))
    for file in path.parent.glob(f"{path.name}-*"):
        file.unlink()
    shutil.copyfile(copy, path)
    world.start_node()


@pytest.mark.parametrize("growth", [1, 2, 9])
def test_an_old_disk_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch, growth: int) -> None:
    """It gives numbers again that the centre has applied, fewer or more of them; nothing that follows is lost."""

    def lose(folder: str) -> str:
        world.record(seen(world, 0))
        world.settle()
        copy = world.config.node.state_dir / folder
        path = world.config.store_url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("VACUUM INTO ?", [str(copy)])
        for number in range(3):
            world.record(seen(world, number + 1))
            world.settle()
        restore(world, copy)
        for number in range(growth):
            world.record(seen(world, number + 10), pending.EventSeen("agent", "repair", detail=f"{folder} {number}"))
        world.settle()
        return host_key(world)

    with monkeypatch.context() as patch:  # the control: numbers alone do not show it
        patch.setattr(reports, "_agree", lambda *_: True)
        patch.setattr(store_rows, "last_number", lambda *_: 1 << 40)
        if growth < 3:
            assert lose("a") == key(3)
    assert lose("b") == key(growth + 9)


def test_a_centre_that_was_restored_gets_everything_again(world: World) -> None:
    world.record(seen(world, 1))
    world.settle()
    with world.centre.write() as c:
        c.execute(t.links.update().values(applied=0, applied_after=0))
        c.execute(t.slivers.update().values(phase="pending", host_key=""))
    world.start_hub()
    world.record(pending.EventSeen("agent", "repair"))
    world.settle()
    assert host_key(world) == key(1)


# --- a hostile node ------------------------------------------------------------------------------


def content(world: World) -> dict[str, Any]:
    found = world.service.dump()
    del found["links"]
    return found


def snapshot(world: World, slice: str) -> str:
    with world.centre.write() as c:
        of = sliver(world, slice).rpartition("-")[0]
        row = {"id": f"s{of}", "slice": of, "name": "before", "user": "admin", "created_at": utcnow()}
        c.execute(t.snapshots.insert().values(row))
        c.execute(t.sliver_snapshots.insert().values(snapshot=f"s{of}", sliver=sliver(world, slice)))
    return f"s{of}"


def attacks(world: World) -> dict[str, Update]:
    other, theirs, todo = sliver(world, "exp"), operation(world, "exp"), operation(world)
    taken, own = snapshot(world, "exp"), snapshot(world, "mine")
    sha256 = world.scalar(world.centre, sa.select(t.images.c.sha256))
    return {
        "the phase of another's sliver": pending.SliverSeen(other, Phase.FAILED, "x", KEY),
        "another's sliver is gone": pending.SliverGone(other),
        "a sliver is gone that shall run": pending.SliverGone(sliver(world)),
        "the usage of another's sliver": SliverUsed(other, 1, 1, 1, 1),
        "another's snapshot": pending.SnapshotMade(other, taken, 1),
        "another's snapshot is gone": pending.SnapshotGone(taken),
        "a snapshot that is not being made is gone": pending.SnapshotGone(own),
        "a step of another's operation": pending.StepSeen(theirs, "", "root", OperationState.DONE),
        "a step of another's sliver": pending.StepSeen(todo, other, "root", OperationState.DONE),
        "the outcome of another's sliver": pending.SliverDone(theirs, other, OperationState.FAILED),
        "the start of another's operation": pending.OperationStarted(theirs),
        "the end of another's operation": pending.OperationEnded(theirs, OperationState.FAILED, "x"),
        "an image of the testbed": pending.ImageSeen(sha256, ImageState.MISSING, arch="i686"),
        "an image of the testbed is gone": pending.ImageGone(sha256),
        "an event of a user": pending.EventSeen("admin", "role", detail="x"),
    }


def report(world: World, *found: Update, mirror: int = 1 << 50) -> None:
    """What a node sends that does not keep to the program."""
    parts = [(number + 1, outbox._NAMES[type(one)], outbox._body(one)) for number, one in enumerate(found)]
    body = messages.updates(Updates(mirror, 0, tuple(parts)))
    reports.apply(world.centre, [Report(IDENTITY, messages.parse_updates(body))])


def test_a_hostile_report_changes_nothing(world: World) -> None:
    found = attacks(world)
    before = content(world)
    for number, (what, update) in enumerate(found.items()):
        report(world, update, mirror=(1 << 50) + number)
        assert content(world) == before, what
    for what, update in found.items():  # the control: without a check, under the name of the other node

        class Undone(Exception):
            pass

        def attempt(update: Update = update, undone: type[Exception] = Undone) -> bool:
            with world.centre.whole() as c:
                observations.record(c, [update], world.service.config.node.name)
                changed = content(world) != before
                c.rollback()
                raise undone(changed)

        with pytest.raises(Undone) as caught:
            attempt()
        assert caught.value.args == (True,), what


def test_events_are_the_agents(world: World) -> None:
    for number, slice in enumerate(("mine", "exp")):
        event = pending.EventSeen("admin", "repair", slice, f"{slice}\x1b[2J", "default")
        report(world, event, mirror=(1 << 50) + number)
    query = sa.select(t.events.c.user, t.events.c.slice, t.events.c.project, t.events.c.detail)
    with world.centre.read() as c:
        found = [tuple(row) for row in c.execute(query.where(t.events.c.action == "repair"))]
    assert sorted(found) == [
        ("agent", "", "", f"{NODE}: exp [2J"),
        ("agent", "mine", "default", f"{NODE}: mine [2J"),
    ]


def test_what_is_impossible_is_cut(world: World) -> None:
    one, todo = sliver(world), operation(world)
    later = utcnow() + timedelta(days=9)
    report(
        world,
        SliverUsed(one, 1 << 52, 1 << 60, 1 << 60, 1 << 60, 1 << 60),
        pending.OperationStarted(todo, later),
        pending.OperationEnded(todo, OperationState.FAILED, "x" * 99999 + "\n", at=later),
    )
    with world.centre.read() as c:
        row = c.execute(t.slivers.select().where(t.slivers.c.id == one)).one()
        ended = c.execute(t.operations.select().where(t.operations.c.id == todo)).one()
        facts = c.scalar(sa.select(t.nodes.c.facts).where(t.nodes.c.name == NODE))
    assert facts is not None and row.usage_charged == facts["memory"] and row.usage_disk == facts["disk_total"]
    assert row.usage_at <= utcnow().timestamp() and ended.finished_at <= utcnow() and len(ended.error) == 4000


@pytest.mark.parametrize("fresh", ["ssh-ed25519 AAAA", f"{KEY}\nevil {KEY}", f"* {KEY}", "x" * 99])
def test_a_host_key_is_one(world: World, fresh: str) -> None:
    report(world, pending.SliverSeen(sliver(world), Phase.RUNNING, host_key=fresh))
    assert host_key(world) == ""
    report(world, seen(world, 1), mirror=1 << 51)
    assert host_key(world) == key(1)


def test_a_flood_of_events_ends(world: World) -> None:
    allowance = Allowance(10)
    found: list[Update] = [pending.EventSeen("agent", "repair", detail=str(one)) for one in range(50)]
    kept = allowance.of(NODE, [*found, seen(world, 1)])
    assert len(kept) == 11 and isinstance(kept[-1], pending.SliverSeen)
    assert len(allowance.of(NODE, found)) <= 1 and len(allowance.of("other", found)) == 10


@pytest.mark.parametrize("bounded", [True, False])
def test_all_rows_are_sent_seldom(world: World, monkeypatch: pytest.MonkeyPatch, bounded: bool) -> None:
    """A node may say as often as it likes that it has lost its rows. Without the bound, it gets them each time."""
    if not bounded:
        monkeypatch.setattr(mirrors, "_WHOLE", 0.0)
    number = count = 0
    for sequence in range(1, 21):
        world.to_node.clear()
        beat = Beat("f" * 16, sequence, "1", "", None, None, mirror=1 << 50, received=number)
        world.hub.apply([Report(IDENTITY, beat)])
        world.hub.step(woken=True)
        world.now += 1.0
        sent = [messages.parse_rows(one) for one in world.to_node if messages.kind(one) == messages.ROWS]
        number = sent[0].number if sent else number
        count += len(sent)
    assert count == (2 if bounded else 20)


def test_steps_of_an_operation_are_bounded(world: World) -> None:
    todo = operation(world)
    for part in range(8):
        found = [pending.StepSeen(todo, "", f"s{part} {one}", OperationState.DONE) for one in range(99)]
        report(world, *found, mirror=(1 << 50) + part)
    assert world.service.count("operation_steps") <= 128


def test_what_one_node_breaks_does_not_stop_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(c: Connection, found: list[Update], node: str) -> None:
        raise exc.IntegrityError("x", None, ValueError())

    with monkeypatch.context() as patch:
        patch.setattr(observations, "record", broken)
        report(world, seen(world, 1))
    report(world, seen(world, 2), mirror=1 << 51)
    assert host_key(world) == key(2)


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5)


@given(kind=st.sampled_from(sorted(outbox.KINDS)), values=st.lists(JSON, min_size=3, max_size=3), data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_content_is_an_update_or_none(kind: str, values: list[Any], data: st.DataObject) -> None:
    names = sorted(updates._READERS.get(kind, {"x": None}))
    good = {"sliver": "a-0", "operation": "b", "phase": "running", "state": "done", "at": utcnow().isoformat()}
    fields = {**good, **{data.draw(st.sampled_from(names)): value for value in values}}
    found = updates._decoded(kind, fields)
    assert found is None or isinstance(found, outbox.KINDS[kind])


@pytest.mark.parametrize("found", [[], [[1, "x", {}]] * 2, [[True, "x", {}]], [[0, "x", {}]], [[1, 2, {}]], {}, None])
def test_what_is_no_report(found: Any) -> None:
    body = messages.updates(Updates(1, 0, ())).replace("[]", json.dumps(found))
    with pytest.raises(BadMessage):
        messages.parse_updates(body)


def test_bodies_of_messages_are_as_they_were_sent() -> None:
    """The sender of a message does not choose how the receiver decodes it."""
    raw = amqp.Message(zlib.compress(b"0" * 9999), application_headers={"compression": "zlib"})
    raw.delivery_info = {"delivery_tag": 1}
    channel = SimpleNamespace(message_to_python=lambda one: pyamqp.Message(one), auto_decode=True)
    assert len(channel.message_to_python(raw).body) == 9999, "the control"
    waiting.ignore_encodings(channel)
    assert channel.message_to_python(raw).body == raw.body and not channel.auto_decode


@pytest.mark.parametrize(("key", "raw"), [(b"\xff", b"\x00\x00"), *((b"", raw) for raw in HARMFUL.values())])
def test_what_a_sender_chooses_beside_the_body_is_not_decoded(key: bytes, raw: bytes) -> None:
    def received(handler: Callable[..., Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        handle = handler(SimpleNamespace(bytes_recv=0), lambda *one: found.append(one))
        for frame in delivery(key, raw, b"the body"):
            handle(frame)
        [(_, _, arguments, message)] = found
        return (*serialization.loads("sLbss", arguments, 4)[0], bytes(message.body))

    assert received(waiting.bare_frames) == ("consumer", 7, False, "from.x", "", b"the body")
    with pytest.raises((ValueError, OverflowError, OSError, RecursionError)):
        received(frame_handler)  # the control
