"""An operation has a part for each node of its slivers, and ends with the last of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, Service, databases_on
from postgres_server import Server

from slicemgr.agent.journal import Journal
from slicemgr.agent.plan import Step
from slicemgr.agent.scheduler import Scheduler
from slicemgr.cli.commands import op
from slicemgr.cli.render import progress
from slicemgr.config import AgentConfig
from slicemgr.ipc.wake import wake
from slicemgr.model import OperationState, Sliver, SliverType
from slicemgr.service.nodes import operations
from slicemgr.service.slices import slices
from slicemgr.service.views import events as event_views
from slicemgr.service.views import operations as operation_views
from slicemgr.store import Store, incarnation, schema
from slicemgr.store import pending as work
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

DONE, FAILED = OperationState.DONE, OperationState.FAILED
NODES = ("node1", "node2", "node3")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with three nodes."""
    with Service(tmp_path) as made:
        for node in NODES[1:]:
            made.record(work.NodeSeen(node, "192.0.2.2", FACTS), node=node)
        yield made


def spread(service: Service) -> list[str]:
    """A slice with a sliver on each node, whose creation has ended; the ids of the slivers."""
    created = service.create("exp", count=3)
    for node in NODES:
        service.record(work.OperationEnded(created, DONE), node=node)
    with service.store.read() as c:
        rows = c.execute(sa.select(t.slivers.c.id, t.slivers.c.node).order_by(t.slivers.c.idx)).all()
    assert tuple(row.node for row in rows) == NODES
    return [row.id for row in rows]


def pending(service: Service, node: str) -> list[work.Operation]:
    with service.store.read() as c:
        return work.pending_operations(c, node)


def shown(service: Service, id: str) -> dict[str, Any]:
    with service.store.read() as c:
        return operation_views.operation(c, id)


def test_each_node_gets_its_slivers_and_the_last_part_ends_the_operation(service: Service) -> None:
    ids = spread(service)
    stop = slices.act(service.store, service.config, "exp", "stop", ADMIN)
    for node, sliver in zip(NODES, ids, strict=True):
        assert [(one.id, one.slivers) for one in pending(service, node)] == [(stop, (sliver,))]
    for node, sliver in zip(NODES[:2], ids, strict=False):
        service.record(
            work.OperationStarted(stop), work.SliverDone(stop, sliver, DONE), work.OperationEnded(stop, DONE), node=node
        )
        assert pending(service, node) == []
    seen = shown(service, stop)
    assert (seen["state"], seen["finished_at"], seen["progress"]) == ("running", None, {"done": 2, "total": 3})
    assert [(one["node"], one["state"]) for one in seen["parts"]] == [
        ("node1", "done"),
        ("node2", "done"),
        ("node3", "queued"),
    ]
    assert [one["progress"] for one in seen["parts"]][1:] == [{"done": 1, "total": 1}, {"done": 0, "total": 1}]
    assert len(pending(service, "node3")) == 1
    service.record(work.OperationEnded(stop, DONE), node="node3")
    seen = shown(service, stop)
    assert (seen["state"], seen["error"]) == ("done", None) and seen["finished_at"]


def test_a_part_that_failed_fails_the_operation_and_is_named(service: Service) -> None:
    spread(service)
    stop = slices.act(service.store, service.config, "exp", "stop", ADMIN)
    service.record(work.OperationEnded(stop, FAILED, "the pool is full", "delete something"), node="node2")
    assert shown(service, stop)["state"] == "queued", "the others continue"
    for node in ("node1", "node3"):
        service.record(work.OperationEnded(stop, DONE), node=node)
    seen = shown(service, stop)
    assert (seen["state"], seen["hint"]) == ("failed", "delete something")
    assert seen["error"] == "1 of 3 nodes: node2: the pool is full"
    with service.store.read() as c:
        newest = event_views.events(c, slice="exp")[0]
    assert (newest["action"], newest["detail"]) == ("stop failed", seen["error"])


def test_a_node_reports_about_its_own_part_only(service: Service) -> None:
    """What it reports about others changes nothing; as another node it does."""
    ids = spread(service)
    stop = slices.act(service.store, service.config, "exp", "stop", ADMIN)
    created = service.create("alone", node="node1")
    before = [shown(service, one)["parts"] for one in (stop, created)]
    lies = (
        work.OperationStarted(created),
        work.SliverDone(stop, ids[0], FAILED),
        work.OperationEnded(created, FAILED, "no"),
    )
    service.record(*lies, node="node3")
    assert [shown(service, one)["parts"] for one in (stop, created)] == before
    assert shown(service, created)["state"] == "queued"
    service.record(*lies, node="node1")
    assert shown(service, created)["state"] == "failed"
    assert shown(service, stop)["progress"]["done"] == 1


def test_a_part_ends_once(service: Service) -> None:
    spread(service)
    stop = slices.act(service.store, service.config, "exp", "stop", ADMIN)
    for node in (NODES[0], *NODES):
        service.record(work.OperationEnded(stop, FAILED if node == "node1" else DONE, "first"), node=node)
        service.record(work.OperationStarted(stop), work.OperationEnded(stop, DONE), node="node1")
    assert [one["state"] for one in shown(service, stop)["parts"]] == ["failed", "done", "done"]
    assert shown(service, stop)["state"] == "failed"


def test_the_errors_of_many_nodes_are_bounded(service: Service) -> None:
    with service.store.write() as c:
        slivers = {f"exp-{number}": f"node{number:04}" for number in range(200)}
        id_ = operations.add(c, "keys", operations.Subject(slice_name="exp", slivers=slivers), "admin", utcnow())
    for node in slivers.values():
        service.record(work.OperationEnded(id_, FAILED, "no room"), node=node)
    error = shown(service, id_)["error"]
    assert error.startswith("200 of 200 nodes: node0000: no room; ") and error.endswith("; and others")
    assert len(error) < 200


def test_a_hold_after_a_restore_ends_all_parts(service: Service) -> None:
    spread(service)
    stop = slices.act(service.store, service.config, "exp", "stop", ADMIN)
    service.record(work.OperationEnded(stop, DONE), node="node1")
    with service.store.write() as c:
        incarnation.begin(c, utcnow(), utcnow())
    assert [pending(service, node) for node in NODES] == [[], [], []]
    seen = shown(service, stop)
    assert [seen["state"], *(one["state"] for one in seen["parts"])] == ["failed", "done", "failed", "failed"]


def test_the_migration_gives_each_operation_a_part(tmp_path: Path) -> None:
    """Of operations that wait, run, are done and have failed; agents take the first two."""
    with Service(tmp_path) as service:
        waiting, running, done, failed = (service.create(name, count=2) for name in ("w", "r", "d", "f"))
        service.record(work.OperationStarted(running), work.OperationEnded(done, DONE, result={"a": 1}))
        service.record(work.OperationEnded(failed, FAILED, "broke", "mend it"))
        parts = [shown(service, one)["parts"] for one in (waiting, running, done, failed)]
        slivers = [one.slivers for one in pending(service, "node1")]
        service.store.close()
        schema.downgrade(service.config.store_url, "0025")
        schema.upgrade(service.config.store_url)
        assert [shown(service, one)["parts"] for one in (waiting, running, done, failed)] == parts
        assert [one.id for one in pending(service, "node1")] == [waiting, running]
        assert [one.slivers for one in pending(service, "node1")] == slivers
        assert pending(service, "node2") == []


class Executor:
    """Does nothing, and remembers for which slivers."""

    def __init__(self) -> None:
        self.planned: list[str] = []
        self.killed: list[str] = []

    def steps(self, sliver: Sliver) -> tuple[Step, ...]:
        self.planned.append(sliver.id)
        return ()

    def carry_out(self, *args: object) -> None:
        return None

    def begin_kill(self, slivers: Sequence[str]) -> None:
        self.killed += slivers


class Batches(Journal):
    """A journal that remembers the kinds of the updates in each of its transactions."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "node1")
        self.written: list[list[type]] = []

    def _write(self, batch: Sequence[work.Update]) -> bool:
        self.written.append([type(one) for one in batch])
        return super()._write(batch)


def run_agent(
    service: Service,
    operation: str,
    journal: Journal | None = None,
    executor: Executor | None = None,
    began: Callable[[], None] = lambda: None,
) -> Executor:
    """Run the scheduler of node1 until its part of the operation has ended. began: called in this thread first."""
    config, stop, executor = service.config, threading.Event(), executor or Executor()

    class Reconciler:
        def compare(self, slivers: Sequence[Sliver], busy: Callable[[str], bool]) -> None:
            return None

    with journal or Journal(service.store, "node1") as journal:
        parts: Any = (config, service.store, journal, executor, Reconciler(), None, stop)
        scheduler = Scheduler(*parts)
        thread = threading.Thread(target=scheduler.run)
        thread.start()
        try:
            began()
            for _ in range(600):
                journal.flush()
                if operation not in {one.id for one in pending(service, "node1")}:
                    break
                threading.Event().wait(0.05)
        finally:
            stop.set()
            wake(config.wake_socket)
            thread.join(60)
    return executor


@pytest.mark.parametrize("action", ["stop", "delete"])
def test_a_sliver_of_another_node_is_an_error(service: Service, action: str) -> None:
    """The row of the part names node1, and the sliver is on node2: it is neither changed here nor called done."""
    first, moved, _ = spread(service)
    operation = slices.act(service.store, service.config, "exp", action, ADMIN)
    with service.store.write() as c:
        c.execute(t.operation_slivers.update().where(t.operation_slivers.c.sliver == moved).values(node="node1"))
    executor = run_agent(service, operation)
    assert executor.planned == [first] and moved not in executor.killed
    part = shown(service, operation)["parts"][0]
    assert (part["node"], part["state"]) == ("node1", "failed")
    assert part["error"] == f"1 of 2 slivers: {moved}: the sliver is on another node"


@pytest.mark.parametrize(("kind", "early"), [(SliverType.LXC, True), (SliverType.KVM, False)])
def test_only_containers_are_killed_before_their_turn(service: Service, kind: SliverType, early: bool) -> None:
    """Their links are removed as well, and QEMU must not lose its link while it runs."""
    first, *_ = spread(service)
    with service.store.write() as c:
        c.execute(t.slices.update().values(type=kind))
    executor = run_agent(service, slices.act(service.store, service.config, "exp", "delete", ADMIN))
    assert executor.planned == [first] and executor.killed == ([first] if early else [])


def test_a_part_without_a_sliver_of_the_node_is_an_error(service: Service) -> None:
    spread(service)
    operation = slices.act(service.store, service.config, "exp", "stop", ADMIN)
    with service.store.write() as c:
        c.execute(t.operation_slivers.update().values(node="node2"))
    run_agent(service, operation)
    part = shown(service, operation)["parts"][0]
    assert (part["state"], part["error"]) == ("failed", "no sliver of it is on node node1")


def test_a_deleted_sliver_ends_its_deletion_and_fails_what_came_before(service: Service) -> None:
    """As after the end of an agent between the deletion and the end of the operations."""
    created = service.create("exp")
    deleted = slices.act(service.store, service.config, "exp", "delete", ADMIN)
    service.record(work.SliverGone(service.rows()[0].sliver.id))
    run_agent(service, deleted)
    assert shown(service, created)["state"] == "failed"
    assert shown(service, created)["error"] == "the sliver was deleted"
    assert shown(service, deleted)["state"] == "done"


def test_the_end_of_an_operation_is_one_transaction(service: Service) -> None:
    """Of a node that has joined a testbed it is then one report: the next one waits until that is applied."""
    operation, journal = service.create("exp", count=3, node="node1"), Batches(service.store)
    run_agent(service, operation, journal)
    ended = [one for one in journal.written if work.OperationEnded in one]
    assert len(ended) == 1 and ended[0].index(work.SliverDone) < ended[0].index(work.OperationEnded)
    assert sum(one.count(work.SliverDone) for one in journal.written) == 3
    assert journal.written[-1] is ended[0], "nothing about it follows its end"
    assert shown(service, operation)["state"] == "done"


def test_people_see_which_nodes_an_operation_waits_for(service: Service) -> None:
    spread(service)
    stop = slices.act(service.store, service.config, "exp", "stop", ADMIN)
    seen = cast("Any", shown(service, stop))
    assert "node" not in progress._line(seen), "none has ended"
    service.record(work.OperationEnded(stop, FAILED, "no \x1broom"), node="node2")
    seen = cast("Any", shown(service, stop))
    assert progress._line(seen).endswith("(waiting for node1, node3)")
    assert [op._part(one) for one in seen["parts"]][:2] == [
        "node1: queued, 0 of 1 slivers",
        "node2: failed, 0 of 1 slivers: no \\x1broom",
    ]


def test_a_turn_waits_while_the_database_restarts(tmp_path: Path) -> None:
    """The server stops during the turn of the first sliver; that of the second one begins before it is back."""
    down = threading.Event()

    class StopsTheServer(Executor):
        def carry_out(self, *args: object) -> None:
            if not down.is_set():
                server.stop()
                down.set()

    with Server() as server, databases_on(server), Service(tmp_path, agent=AgentConfig(workers=1)) as service:
        created = service.create("exp", count=2)

        def restart() -> None:
            assert down.wait(60)
            time.sleep(1.5)  # the next turn has asked the database
            server.start()

        executor = run_agent(service, created, executor=StopsTheServer(), began=restart)
        ended = shown(service, created)
    assert (ended["state"], ended["error"]) == ("done", None)
    assert len(executor.planned) == 2
