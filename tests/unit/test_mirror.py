"""The database of a node that has joined a testbed: it has the node's rows whatever happens to messages."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN
from centre_and_node import LOCAL, NODE, World, move
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slicemgr.store
from slicemgr import testbed_commands
from slicemgr.config import CENTRE, Config, NodeConfig
from slicemgr.errors import Refused
from slicemgr.hub import documents
from slicemgr.ipc.wake import Listener
from slicemgr.link import mirror as received
from slicemgr.model import Desired, OperationState, Phase
from slicemgr.policy import messages, mirror
from slicemgr.policy.messages import Rows
from slicemgr.service.accounts import sessions
from slicemgr.service.nodes import nodes
from slicemgr.service.slices import consoles, slices
from slicemgr.store import console_tickets, outbox, pending, schema
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def create(world: World, name: str = "exp", count: int = 2) -> str:
    """A slice whose slivers are on the node. Returns the id of its operation."""
    operation = world.service.create(name, count=count)
    move(world.centre, name)
    return operation


def test_the_tables_and_columns_exist() -> None:
    for one in mirror.TABLES:
        columns = t.metadata.tables[one.table].c
        named = {*one.columns, *one.fixed}
        assert named <= set(columns.keys())
        needed = {key for key, column in columns.items() if not column.nullable and column.server_default is None}
        assert needed <= named | ({"node"} if one.node else set()), one.table


def test_rows_arrive_as_the_agent_reads_them(world: World) -> None:
    """Its operations, slivers and images; under the name that the node has in its settings."""
    operation = create(world)
    other = world.service.create("other")
    world.settle()
    assert world.mirrored() == world.wanted() and world.wanted()["slivers"]
    with world.centre.read() as c:
        there, images = pending.slivers(c, NODE), pending.images(c)
        todo = pending.pending_operations(c, NODE)
    with world.node.read() as c:
        assert pending.slivers(c, LOCAL) == there
        assert pending.pending_operations(c, LOCAL) == todo and [one.id for one in todo] == [operation]
        assert pending.images(c) == images
        assert not c.scalar(sa.select(sa.exists().where(t.operations.c.id == other)))
        assert set(c.scalars(sa.select(t.tokens.c.hash))) == set(), "nothing of accounts but their names"
        assert set(c.scalars(sa.select(t.users.c.email))) == {""}


def test_facts_arrive_when_they_change(world: World) -> None:
    """The link may start before the agent; what an agent announces is not held back until facts are due again."""

    def arrived(**facts: int) -> bool:
        with world.node.write() as c:
            c.execute(t.nodes.update().where(t.nodes.c.name == LOCAL).values(facts=facts, agent_seen_at=utcnow()))
        world.settle(10)
        with world.centre.read() as c:
            return bool(c.scalar(sa.select(t.nodes.c.facts).where(t.nodes.c.name == NODE)) == facts)

    world.settle()  # without an agent
    assert arrived(cpus=2)
    assert arrived(cpus=4), "it restarted on a larger machine"


def test_an_operation_on_the_node_itself(world: World) -> None:
    """Such as `doctor`: its agent gets it, and its result arrives."""
    id_ = nodes.request(world.centre, world.service.config, NODE, "doctor", ADMIN, {})
    world.settle()
    with world.node.read() as c:
        [operation] = pending.pending_operations(c, LOCAL)
    assert (operation.id, operation.kind) == (id_, "doctor")
    world.record(pending.OperationEnded(id_, OperationState.DONE, result={"ok": True}))
    world.settle()
    assert world.scalar(world.centre, sa.select(t.operations.c.result)) == {"ok": True}
    assert world.scalar(world.centre, sa.select(t.operations.c.state)) == OperationState.DONE
    with world.node.read() as c:
        assert not pending.pending_operations(c, LOCAL)


def test_who_redeems_the_token_of_a_console(world: World) -> None:
    """The agent beside the service does it itself; for a sliver on another host, the service does it, once."""
    create(world)
    world.service.create("here")
    session = sessions.start(world.centre, world.service.config, ADMIN, "browser").id
    by = dataclasses.replace(ADMIN, credential=session)
    here, far, late, lost = (consoles.ask(world.centre, name, 0, by) for name in ("here", "exp", "exp", "exp"))
    assert consoles.redeem_remote(world.centre, here) is None
    assert console_tickets.take(world.centre, here, utcnow()) is not None
    found = consoles.redeem_remote(world.centre, far)
    assert found is not None and (found.name, found.node, found.ticket.user) == ("exp/0", NODE, "admin")
    assert consoles.redeem_remote(world.centre, far) is None
    slices.act(world.centre, world.service.config, "exp", "stop", ADMIN)
    with pytest.raises(Refused, match="not running"):
        consoles.redeem_remote(world.centre, late)
    sessions.revoke(world.centre, session, by)
    with pytest.raises(Refused, match="revoked"):
        consoles.redeem_remote(world.centre, lost)


def test_a_change_is_sent_alone(world: World) -> None:
    create(world, count=3)
    world.settle()
    slices.act(world.centre, world.service.config, "exp", "stop", ADMIN)
    move(world.centre, "exp")
    world.work()
    sent = [messages.parse_rows(one) for one in world.to_node]
    assert len(sent) == 1 and not sent[0].change.whole
    assert set(sent[0].change.upsert) == {"slivers", "operations", "operation_parts", "operation_slivers"}
    world.settle()
    assert world.mirrored() == world.wanted()


def test_the_columns_of_the_node_are_kept(world: World) -> None:
    create(world)
    world.settle()
    one = sorted(world.slivers(world.node))[0]
    with world.node.write() as c:
        pending.record(c, [pending.SliverSeen(one, Phase.RUNNING, host_key="ssh-ed25519 AAAA")], LOCAL)
    slices.act(world.centre, world.service.config, "exp", "stop", ADMIN)
    move(world.centre, "exp")
    world.settle()
    with world.node.read() as c:
        row = next(row for row in pending.slivers(c, LOCAL) if row.sliver.id == one)
    assert (row.sliver.desired, row.phase, row.sliver.host_key) == (Desired.STOPPED, Phase.RUNNING, "ssh-ed25519 AAAA")


def test_a_new_disk_gets_what_the_centre_knew(world: World) -> None:
    """A node whose database is lost: its slivers have their phases and host keys, its snapshots are made."""
    create(world, count=1)
    world.settle()
    [one] = world.slivers(world.node)
    world.record(pending.SliverSeen(one, Phase.RUNNING, host_key="ssh-ed25519 " + "A" * 60))
    world.settle()
    world.node.close()
    path = Path(world.config.store_url.removeprefix("sqlite:///"))
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    schema.upgrade(world.config.store_url)
    world.start_node()
    world.settle()
    assert world.mirrored() == world.wanted()
    with world.node.read() as c:
        [row] = pending.slivers(c, LOCAL)
    assert (row.phase, row.sliver.host_key) == (Phase.RUNNING, "ssh-ed25519 " + "A" * 60)


def test_a_message_that_does_not_follow_is_dropped(world: World) -> None:
    create(world)
    world.settle()
    state = received.state(world.node)
    for before in ("", "0" * 64):
        stale = Rows(1, before, "1" * 64, mirror.Change({}, {}, whole=True))
        assert not received.receive(world.node, LOCAL, stale)
        assert received.state(world.node).revision == state.revision
    assert world.mirrored() == world.wanted()
    with world.node.write() as c:  # the control: applied, it deletes everything
        received.apply(c, LOCAL, stale.change)
    assert not world.mirrored()["slivers"]


def test_a_change_that_does_not_fit_brings_all_rows(world: World) -> None:
    """The node has deleted a slice of its own accord, and a message changes its slivers."""
    create(world)
    world.settle()
    with world.node.write() as c:
        c.execute(t.slices.delete())
    slices.act(world.centre, world.service.config, "exp", "stop", ADMIN)
    move(world.centre, "exp")
    world.settle()
    assert world.mirrored() == world.wanted()


def test_rows_of_another_version_of_the_program_are_sent_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    create(world)
    world.settle()
    assert received.state(world.node).revision
    monkeypatch.setattr(received, "_FORM", "0" * 16)
    assert received.state(world.node).revision == ""
    world.settle()
    assert received.state(world.node).revision


def test_nothing_is_sent_during_the_hold_after_a_restore(world: World) -> None:
    create(world)
    world.settle()
    held = {"number": 1, "backup_at": utcnow(), "began_at": utcnow()}
    with world.centre.write() as c:
        c.execute(t.incarnations.insert().values(held))
        c.execute(t.slivers.delete())
    world.settle()
    assert len(world.slivers(world.node)) == 2
    with world.centre.write() as c:
        c.execute(t.incarnations.update().values(ended_at=utcnow()))
    world.settle()
    assert not world.slivers(world.node)


def test_a_silent_node_fills_no_queue(world: World) -> None:
    create(world)
    world.settle()
    for number in range(20):
        create(world, f"exp{number}", count=1)
        world.now += 30.0
        world.hub.step(woken=True)
    assert len(world.to_node) == 1
    world.settle()
    assert world.mirrored() == world.wanted()


def test_a_full_queue_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.settle()
    publish = world._publish
    monkeypatch.setattr(world.hub._mirrors, "_publish", lambda *_: False)
    create(world)
    world.settle()
    assert not world.slivers(world.node)
    monkeypatch.setattr(world.hub._mirrors, "_publish", publish)
    world.settle()
    assert world.mirrored() == world.wanted()


EVENTS = ("create", "stop", "start", "delete", "seen", "gone", "time", "hub", "link")
MESSAGES = ("node", "hub", "lose-node", "lose-hub", "twice-node", "twice-hub", "last-node", "last-hub")


@given(steps=st.lists(st.sampled_from(EVENTS + MESSAGES * 2), max_size=40))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_fate_of_messages(steps: list[str]) -> None:
    """Lost, repeated and reordered ones, also with another hub or link: once they flow, both sides agree."""
    folder = Path(tempfile.mkdtemp())
    try:
        with World(folder) as world:
            for number, step in enumerate(steps):
                _do(world, step, number)
            world.settle(90.0)
            assert world.mirrored() == world.wanted()
            phases = world.slivers(world.node)
            assert world.slivers(world.centre) == phases
            assert repairs(world) == world.events, "each once, in their order"
            assert world.scalar(world.node, sa.select(sa.func.count()).select_from(t.outbox)) == 0
    finally:
        shutil.rmtree(folder)


def repairs(world: World) -> list[str]:
    query = sa.select(t.events.c.detail).where(t.events.c.action == "repair").order_by(t.events.c.id)
    with world.centre.read() as c:
        return [one.removeprefix(f"{NODE}: ") for one in c.scalars(query)]


def _do(world: World, step: str, number: int) -> None:
    here = sorted(world.slivers(world.node))
    match step.split("-"):
        case ["create"]:
            create(world, f"s{number}", count=1)
        case ["stop" | "start" | "delete" as action]:
            _act(world, action)
        case ["seen"] if here:
            phase = (Phase.RUNNING, Phase.STOPPED)[number % 2]
            event = pending.EventSeen("agent", "repair", detail=str(number))
            world.events.append(event.detail)
            world.record(pending.SliverSeen(here[number % len(here)], phase), event)
        case ["gone"]:
            _end(world)
        case _:
            pass_on(world, step, number)
    world.work()


def pass_on(world: World, step: str, number: int) -> None:
    """Time passes, hub or link are started again, or a message arrives, also with one of the fates in MESSAGES."""
    match step.split("-"):
        case ["time"]:
            world.now += 11.0
        case ["hub"] if number % 2:
            world.start_hub()
        case ["link"]:
            world.node.close()
            world.start_node()
        case [fate, side] if side in ("node", "hub"):
            _fate(world, fate, side)
        case [side] if side in ("node", "hub"):
            _fate(world, "", side)


def _fate(world: World, fate: str, side: str) -> None:
    queue: list[Any] = world.to_node if side == "node" else world.to_hub
    deliver = world.deliver_to_node if side == "node" else world.deliver_to_hub
    if not queue:
        return
    if fate == "lose":
        queue.pop(0)
    elif fate == "twice":
        queue.insert(0, queue[0])
        deliver()
    else:
        deliver(-1 if fate == "last" else 0)


def _act(world: World, action: str) -> None:
    with world.centre.read() as c:
        live = [row for row in pending.slivers(c, NODE) if row.sliver.desired is not Desired.ABSENT]
    if live:
        name = live[0].sliver.slice_name
        with suppress(Refused):  # it is in that state
            slices.act(world.centre, world.service.config, name, action, ADMIN)
        move(world.centre, name)


def _end(world: World) -> None:
    """The agent of the node carries out its first operation."""
    with world.node.read() as c:
        todo = pending.pending_operations(c, LOCAL)
        rows = {row.sliver.id: row.sliver for row in pending.slivers(c, LOCAL)}
    for one in todo[:1]:
        made: list[Any] = [pending.OperationStarted(one.id)]
        for sliver in one.slivers:
            if sliver in rows and rows[sliver].desired is Desired.ABSENT:
                made.append(pending.SliverGone(sliver))
            made.append(pending.SliverDone(one.id, sliver, OperationState.DONE))
        world.record(*made, pending.OperationEnded(one.id, OperationState.DONE))


def test_digests_ignore_what_the_node_writes(world: World) -> None:
    create(world)
    with world.centre.read() as c:
        before = documents.document(c, NODE)
    changed = {**before, "slivers": [{**row, "phase": "running"} for row in before["slivers"]]}
    assert mirror.revision(mirror.digests(before)) == mirror.revision(mirror.digests(changed))
    for name in ("desired", "epoch", "memory"):
        other = {**before, "slivers": [{**row, name: "x"} for row in before["slivers"]]}
        assert mirror.revision(mirror.digests(before)) != mirror.revision(mirror.digests(other))


def test_the_database_of_a_joined_host(tmp_path: Path) -> None:
    """It is another file than that of a service on the same host, and only root reads it."""
    config = Config(node=NodeConfig(state_dir=tmp_path / "state", run_dir=tmp_path / "run"))
    assert config.store_url.endswith("/state/db/slicemgr.db")
    config.membership_dir.mkdir(parents=True)
    (config.membership_dir / CENTRE).touch()
    config.node.run_dir.mkdir()
    assert config.store_url == f"sqlite:///{tmp_path}/state/mirror.db"
    testbed_commands.make_mirror(config)
    assert config.mirror_file.stat().st_mode & 0o777 == 0o600
    with slicemgr.store.open(config) as store, store.read() as c:
        assert outbox.batch(c) == []


def test_a_change_wakes_the_hub(world: World) -> None:
    config = world.service.config
    with Listener(config.hub_socket) as listener:
        create(world)
        assert listener.wait(30)


def test_the_state_of_a_mirror_is_its_own(world: World) -> None:
    """Another database of the same node is another incarnation."""
    with world.node.write() as c:
        first = outbox.state(c)
        assert outbox.state(c) == first
    assert first.incarnation > 1_600_000_000_000 and dataclasses.astuple(first)[1:] == ("", 0, 0)
