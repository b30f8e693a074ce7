"""What joined nodes used reaches the centre: once, whatever happens to messages, and no more than is possible."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS
from centre_and_node import IDENTITY, LOCAL, NODE, World, member, move
from test_samples import MIB, part, whole

from slicemgr.agent.chores.recorder import Recorder
from slicemgr.figures import HOURS, MINUTES, RAW, Usage
from slicemgr.hub import updates, usage
from slicemgr.hub.reports import Report, apply
from slicemgr.model import Phase
from slicemgr.policy import messages
from slicemgr.policy.messages import Updates
from slicemgr.record.sampler import Sample
from slicemgr.service.nodes import retention
from slicemgr.service.slices import slices
from slicemgr.service.views import metrics
from slicemgr.service.views import samples as views
from slicemgr.store import outbox, pending, sample_reports, samples
from slicemgr.store import tables as t
from slicemgr.store.updates import NodeSampled, SliverSampled, SliverUsed, Update, utcnow

STEP = 150  # seconds between two samples here
GIB = 1 << 30
CPUS = 4  # of the node, in FACTS


def start() -> int:
    """The last hour but three."""
    return (int(utcnow().timestamp()) // HOURS - 3) * HOURS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The node has the slice `mine` of two slivers, which was created a day ago; `exp` is on the centre's own node."""
    with World(tmp_path) as made:
        made.config.membership_dir.mkdir(parents=True)
        made.service.create("exp")
        made.service.create("mine", count=2)
        with made.centre.write() as c:
            c.execute(t.slices.update().values(created_at=utcnow() - timedelta(days=1)))
        move(made.centre, "mine")
        made.settle()
        yield made


class Node:
    """The recorder of the node, with a sampler that measures the same each time."""

    def __init__(self, world: World) -> None:
        self.world, self.now = world, start()
        self.kills: dict[int, int] = {}
        self.recorder = Recorder(world.config, world.node, SimpleNamespace(), dict, {})  # type: ignore[arg-type]
        self.recorder._sampler = SimpleNamespace(sample=self._sample, keep=lambda: None)  # type: ignore[assignment]

    def _sample(self, now: int, slivers: Any, _: Any) -> Sample:
        values = {"charged": 8 * MIB, "charged_peak": 9 * MIB, "disk": GIB, "net_in": 1000}
        counted = {"seconds": float(STEP), "running": float(STEP), "cpu": 15.0}
        rows = [part(now, one.serial, node=LOCAL, **values, **counted) for one in slivers]
        about = whole(now, node=LOCAL, seconds=float(STEP), cpu=30.0)
        used = [Usage(one.serial, 7 * MIB, 8 * MIB, GIB, None) for one in slivers]
        kills, self.kills = self.kills, {}
        return Sample(about, rows, used, kills)

    def run(self, seconds: int) -> None:
        for _ in range(seconds // STEP):
            self.now += STEP
            self.recorder.record(self.now)
        self.world.link.look()


def accounts(store: Any) -> dict[str, Any]:
    with store.read() as c:
        query = sa.select(t.accounts).where(t.accounts.c.project == "default")
        rows = [row._mapping for row in c.execute(query)]
    return {name: sum(row[name] for row in rows) for name in samples._ACCOUNTED}


def own(world: World, slice: str = "mine") -> list[Any]:
    s, l = t.slivers.c, t.slices.c
    with world.centre.read() as c:
        query = sa.select(s.id, s.serial).join(t.slices, l.id == s.slice).where(l.name == slice).order_by(s.idx)
        return list(c.execute(query))


def test_what_was_used_is_charged_once(world: World) -> None:
    node = Node(world)
    for _ in range(9):
        node.run(900)
        world.settle(10.0)
    found = accounts(world.centre)
    assert found == pytest.approx(accounts(world.node)) and found["sliver_hours"] == pytest.approx(2 * 2.25)
    assert found["net_in"] == 2 * 54 * 1000
    with world.centre.read() as c:
        rows = {(row.resolution, row.node) for row in c.execute(sa.select(t.samples))}
        assert rows == {(HOURS, NODE)}, "finer samples of slivers stay there"
        assert c.scalar(sa.select(sa.func.count()).where(t.node_samples.c.resolution == MINUTES)) == 27


def test_a_node_that_was_away(world: World) -> None:
    """Its outbox has one row for each hour of a sliver, and everything is charged when it is back."""
    node = Node(world)
    node.run(9000)
    with world.node.read() as c:
        kinds = [kind for _, kind, _ in outbox.batch(c)]
    assert kinds.count("sliver-sample") == 2 * 3 and kinds.count("node-sample") == 30 + 3
    world.settle()
    assert accounts(world.centre) == pytest.approx(accounts(world.node))


@pytest.mark.parametrize("protected", [True, False])
def test_a_report_again(world: World, monkeypatch: pytest.MonkeyPatch, protected: bool) -> None:
    """The centre asks for everything again. Without its rows of hours, it would charge it again."""
    node = Node(world)
    node.run(7200)
    world.settle()
    if not protected:
        monkeypatch.setattr(sample_reports, "stored", lambda *_: {})
    with world.centre.write() as c:
        c.execute(t.links.update().values(applied=0, applied_after=0))
    world.start_hub()
    node.run(900)
    world.settle()
    wanted = pytest.approx(accounts(world.node))
    assert (accounts(world.centre) == wanted) is protected


def test_a_centre_that_was_restored_is_charged_again(world: World) -> None:
    node = Node(world)
    node.run(7200)
    world.settle()
    with world.centre.write() as c:
        for table in (t.samples, t.node_samples, t.accounts):
            c.execute(table.delete())
        c.execute(t.links.update().values(applied=0, applied_after=0))
    world.start_hub()
    node.run(900)
    world.settle()
    assert accounts(world.centre) == pytest.approx(accounts(world.node))


def test_a_sliver_that_is_deleted_within_an_hour(world: World) -> None:
    node = Node(world)
    node.run(450)
    world.settle()
    slices.act(world.centre, world.service.config, "mine", "delete", ADMIN)
    move(world.centre, "mine")
    world.settle()
    world.record(*(pending.SliverGone(one.id) for one in own(world)))
    world.settle()
    assert own(world) == []
    assert accounts(world.centre) == pytest.approx(accounts(world.node)), "also what was not summed up yet"
    assert accounts(world.centre)["sliver_hours"] == pytest.approx(2 * 450 / 3600)


def test_a_week_is_kept(world: World) -> None:
    one, now = own(world)[0].id, int(utcnow().timestamp()) // HOURS * HOURS
    with world.node.write() as c:
        for hours in range(200, 0, -1):
            outbox.add(c, [SliverSampled(one, now - hours * HOURS, {}), NodeSampled(HOURS, now - hours * HOURS, {})])
        outbox.add(c, [pending.EventSeen("agent", "repair")])
        waiting = c.execute(sa.select(t.outbox.c.kind, sa.func.count()).group_by(t.outbox.c.kind)).all()
    found = {kind: count for kind, count in waiting}  # noqa: C416
    assert 160 < found["sliver-sample"] == found["node-sample"] <= 168 and found["event"] == 1


def test_processes_that_were_killed(world: World) -> None:
    node, (one, _) = Node(world), own(world)
    node.kills = {one.serial: 3}
    node.run(STEP)
    world.settle()

    def row() -> Any:
        with world.centre.read() as c:
            return c.execute(sa.select(t.slivers.c.oom_kills, t.slivers.c.oom_at).where(t.slivers.c.id == one.id)).one()

    assert tuple(row()) == (3, datetime.fromtimestamp(node.now, UTC))
    report(world, SliverUsed(one.id, 1, oom_kills=2, oom_at=utcnow()))
    assert row().oom_kills == 3, "it does not decrease"


# --- views -------------------------------------------------------------------------------------------


def test_the_pages_of_the_centre(world: World) -> None:
    node = Node(world)
    node.now = int(utcnow().timestamp()) // MINUTES * MINUTES - 7200
    node.run(7200)
    world.record(*(pending.SliverSeen(one.id, Phase.RUNNING) for one in own(world)))
    world.settle()
    config = world.service.config
    with world.centre.read() as c:
        wanted = views.time_range(config.record, "6h", None, None)
        id = c.scalar(sa.select(t.slices.c.id).where(t.slices.c.name == "mine"))
        found = views.of_slice(c, config, str(id), wanted)
        assert found["resolution"] == "1h" and len(found["slivers"]) == 2
        assert sum(one["totals"]["cpu_seconds"] for one in found["slivers"]) == pytest.approx(2 * 48 * 15.0, rel=0.15)
        both = views.of_slice(c, config, str(id), wanted, total=True)
        assert both["slivers"][0]["totals"]["net_in"] == sum(one["totals"]["net_in"] for one in found["slivers"])
        about = views.of_node(c, config, NODE, views.time_range(config.record, "1h", None, "raw"))
        assert about["resolution"] == "5m" and about["totals"]["cpu_seconds"] > 300
        top = views.top(c, config, ADMIN)
    assert [one["node"] for one in top["nodes"]] == [NODE] and len(top["slivers"]) == 2
    assert all(one["reported"] and one["charged"] == 8 * MIB and one["cpu"] is None for one in top["slivers"])
    families = {one.name: one for one in metrics.Testbed(world.centre, config).collect()}
    assert families["slicemgr_node_memory_bytes"].samples[0].labels == {"node": NODE}
    assert families["slicemgr_project_cpu_seconds"].samples[0].value == pytest.approx(2 * 48 * 15.0, rel=0.2)


def test_slivers_here_and_there_together(world: World) -> None:
    node = Node(world)
    node.run(7200)
    world.settle()
    with world.centre.write() as c:
        [here] = own(world, "exp")
        for at in (start() + HOURS, start() + 2 * HOURS):
            c.execute(t.node_samples.insert().values(whole(at, node="node1", resolution=HOURS)))
            c.execute(t.samples.insert().values(part(at, here.serial, node="node1", resolution=HOURS, net_in=5)))
    serials = [here.serial, *(one.serial for one in own(world))]
    with world.centre.read() as c:
        rows = samples.of_slivers(c, serials, HOURS, start(), start() + 2 * HOURS, together=True)
    assert [(row.at - start(), row.net_in) for row in rows] == [(HOURS, 48005), (2 * HOURS, 48005)]


def test_old_rows_of_nodes_are_deleted(world: World) -> None:
    [one, _] = own(world)
    old = int(utcnow().timestamp()) // HOURS * HOURS - 400 * 86400
    with world.centre.write() as c:
        c.execute(t.clock.insert().values(id=1, seen_at=utcnow()))
        c.execute(t.samples.insert().values(part(old, one.serial, node=NODE, resolution=HOURS)))
        c.execute(t.node_samples.insert().values(whole(old, node=NODE, resolution=HOURS)))
    retention.forget(world.centre, world.service.config)
    assert world.service.count("samples") == world.service.count("node_samples") == 0


def test_the_statements_of_a_deletion_do_not_grow_with_nodes(world: World) -> None:
    [one, _] = own(world)
    old = int(utcnow().timestamp()) // HOURS * HOURS - 400 * 86400
    with world.centre.write() as c:
        c.execute(t.clock.insert().values(id=1, seen_at=utcnow()))

    def statements() -> int:
        noted: list[object] = []

        def note(*args: object) -> None:
            noted.append(args)

        sa.event.listen(world.centre.engine, "before_cursor_execute", note)
        retention.forget(world.centre, world.service.config)
        sa.event.remove(world.centre.engine, "before_cursor_execute", note)
        return len(noted)

    few = statements()
    for number in range(60):
        member(world.centre, f"n{number:02}", f"node-{number:02}")
    assert statements() == few
    with world.centre.write() as c:
        rows = [part(old, one.serial, node=f"n{number:02}", resolution=HOURS) for number in range(60)]
        c.execute(t.samples.insert(), [*rows, part(old + 2000 * 86400, one.serial, node=NODE, resolution=HOURS)])
    assert statements() > few, "control"
    assert 0 < world.service.count("samples") < 61, "some in each call"
    statements()
    assert world.service.count("samples") == 0


# --- a hostile node ----------------------------------------------------------------------------------


def report(world: World, *found: Update, mirror: list[int] = [1 << 50]) -> None:  # noqa: B006
    """What a node sends that does not keep to the program, of a new incarnation each time."""
    mirror[0] += 1
    parts = [(number + 1, outbox._NAMES[type(one)], outbox._body(one)) for number, one in enumerate(found)]
    body = messages.updates(Updates(mirror[0], 0, tuple(parts)))
    apply(world.centre, [Report(IDENTITY, messages.parse_updates(body))])


def hour(sliver: str, at: int | None = None, **values: Any) -> SliverSampled:
    row = part(0, 0, **{"seconds": 3600.0, "running": 3600.0, **values})
    kept = {name: value for name, value in row.items() if name not in ("node", "resolution", "at", "sliver")}
    return SliverSampled(sliver, start() + HOURS if at is None else at, kept)


def test_no_more_than_the_node_has(world: World) -> None:
    [one, _] = own(world)
    huge = 1 << 60
    report(world, hour(one.id, seconds=1e15, running=1e15, cpu=1e15, charged=huge, disk=huge, net_in=huge, pids=huge))
    with world.centre.read() as c:
        [row] = c.execute(sa.select(t.samples)).all()
    assert (row.seconds, row.running, row.cpu) == (3600.0, 3600.0, CPUS * 3600.0)
    assert (row.charged, row.disk) == (FACTS["memory"], FACTS["disk_total"])
    assert row.net_in == usage._FASTEST * 3600 and row.pids == 1 << 31
    report(world, NodeSampled(HOURS, start() + HOURS, {"cpu": 1e15, "seconds": 1e9, "memory": huge, "load": 1e300}))
    with world.centre.read() as c:
        [row] = c.execute(sa.select(t.node_samples)).all()
    assert (row.seconds, row.cpu, row.memory) == (3600.0, CPUS * 3600.0, FACTS["memory"])


@pytest.mark.parametrize("protected", [True, False])
def test_all_slivers_together(world: World, monkeypatch: pytest.MonkeyPatch, protected: bool) -> None:
    if not protected:
        monkeypatch.setattr(updates, "_affordable", lambda c, known, found: found)
    for _ in range(2):
        for one in own(world):
            report(world, hour(one.id, cpu=1e15))
    most = CPUS * 1.0 if protected else CPUS * 2.0
    assert accounts(world.centre)["cpu_hours"] == pytest.approx(most)


def test_reports_that_are_refused(world: World) -> None:
    [one, _], [other] = own(world), own(world, "exp")
    now = int(utcnow().timestamp()) // HOURS * HOURS
    refused: dict[str, Update] = {
        "another's sliver": hour(other.id, cpu=5.0),
        "no sliver": hour("x", cpu=5.0),
        "in the future": hour(one.id, now + 4 * HOURS, cpu=5.0),
        "long ago": hour(one.id, now - 24 * 30 * HOURS, cpu=5.0),
        "before it was created": hour(one.id, now - 48 * HOURS, cpu=5.0),
        "no hour": hour(one.id, now - 5, cpu=5.0),
        "negative": hour(one.id, cpu=-5.0),
        "not a number": hour(one.id, cpu="5"),
        "infinite": hour(one.id, cpu=float("inf")),
        "a row of the node without a span": NodeSampled(RAW, start(), {"seconds": 30.0}),
        "a row of the node in the future": NodeSampled(HOURS, now + 4 * HOURS, {}),
    }
    for what, update in refused.items():
        report(world, update)
        assert world.service.count("samples") == world.service.count("node_samples") == 0, what
    assert world.service.count("accounts") == 0
    report(world, hour(one.id, cpu=5.0), NodeSampled(MINUTES, start(), {}))  # the control
    assert world.service.count("samples") == world.service.count("node_samples") == 1


def test_what_was_charged_is_not_taken_back(world: World) -> None:
    [one, _] = own(world)
    report(world, hour(one.id, cpu=50.0))
    report(world, hour(one.id, cpu=5.0))
    report(world, hour(one.id, cpu=50.0, seconds=60.0))
    assert accounts(world.centre)["cpu_hours"] == pytest.approx(50 / 3600)
