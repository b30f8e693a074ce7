"""Reads and writes of the agent, and values that the constraints refuse independent of the code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, IMAGE, KEY, SHA, Service
from sqlalchemy import exc

from slicemgr.model import Desired, ImageState, OperationState, Phase, SliverType
from slicemgr.service.slices import slices
from slicemgr.service.views import events as event_views
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import operations as operation_views
from slicemgr.store import pending as work
from slicemgr.store import tables

pytestmark = pytest.mark.usefixtures("both_stores")

DONE, FAILED, RUNNING = OperationState.DONE, OperationState.FAILED, OperationState.RUNNING


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


def operation(service: Service, id: str) -> dict[str, Any]:
    with service.store.read() as c:
        return operation_views.operation(c, id)


def pending(service: Service, node: str = "node1") -> list[work.Operation]:
    with service.store.read() as c:
        return work.pending_operations(c, node)


def test_a_sliver_is_all_that_the_agent_needs(service: Service) -> None:
    service.create("exp", count=3, memory="64M", cpu=0.5, memory_soft="32M", ports=4)
    first, second, third = service.rows()
    sliver = second.sliver
    assert (sliver.index, sliver.slice_name, sliver.type, sliver.desired) == (1, "exp", SliverType.LXC, Desired.RUNNING)
    assert (sliver.image, sliver.arch, sliver.siblings, sliver.ssh_keys) == (SHA, "x86_64", 3, (KEY,))
    assert (sliver.limits.memory, sliver.limits.memory_soft, sliver.limits.cpu) == (64 << 20, 32 << 20, 0.5)
    assert sliver.id == f"{sliver.tag}-1"
    assert (sliver.ports.first, sliver.ports.count) == (first.sliver.ports.last + 1, 4)
    assert (second.phase, second.error) == (Phase.PENDING, "")
    assert len({row.sliver.uid_first for row in (first, second, third)}) == 3


def test_an_agent_of_an_earlier_version_finds_the_types(service: Service) -> None:
    """Its queries name the column `kind`: an upgrade renames nothing under an agent that still runs."""
    service.create("exp")
    with service.store.read() as c:
        assert c.exec_driver_sql("SELECT kind FROM slices").scalars().all() == ["lxc"]
        assert c.execute(sa.select(tables.slices)).one().type == "lxc"


def test_only_the_slivers_asked_for_and_only_of_the_node(service: Service) -> None:
    service.create(count=3)
    wanted = service.rows()[1].sliver
    with service.store.read() as c:
        assert [row.sliver for row in work.slivers(c, "node1", [wanted.id])] == [wanted]
        assert work.slivers(c, "node1", []) == []
        assert work.slivers(c, "other") == []


def test_reading_slivers_is_four_queries_however_many(service: Service) -> None:
    service.create("a", count=1)
    service.create("b", count=40)
    statements: list[str] = []
    sa.event.listen(service.store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    assert len(service.rows()) == 41
    found = sum(text.startswith("SELECT") for text in statements)
    assert found == 4, "the slivers, their snapshots, their peers, and the spares"


def test_slivers_of_a_slice_know_each_other(service: Service) -> None:
    service.create("a", count=1)
    service.create("b", count=3)
    alone, *rows = [row.sliver for row in service.rows()]
    assert alone.peers == ()
    assert all(one.peers == tuple((each.index, each.address) for each in rows) for one in rows)
    assert rows[0].hostname_of(2) == "b-2"


def test_operations_come_oldest_first_until_they_ended(service: Service) -> None:
    first, second = service.create("a", count=2), service.create("b")
    assert [one.id for one in pending(service)] == [first, second]
    assert pending(service)[0].slivers == tuple(row.sliver.id for row in service.rows()[:2])
    service.record(work.OperationStarted(first))
    assert [one.state for one in pending(service)] == [RUNNING, OperationState.QUEUED]
    service.record(work.OperationEnded(first, DONE))
    assert [one.id for one in pending(service)] == [second]
    assert pending(service, "other") == []


def test_an_operation_ends_once(service: Service) -> None:
    id_ = service.create()
    service.record(work.OperationEnded(id_, FAILED, "broke", "mend it"))
    service.record(work.OperationStarted(id_), work.OperationEnded(id_, DONE, result={"late": True}))
    seen = operation(service, id_)
    assert (seen["state"], seen["error"], seen["hint"], seen["result"]) == ("failed", "broke", "mend it", None)
    assert seen["started_at"] is not None


def test_a_failure_is_an_event_of_the_slice(service: Service) -> None:
    service.record(work.OperationEnded(service.create("exp"), FAILED, "the pool is full"))
    with service.store.read() as c:
        newest = event_views.events(c, slice="exp")[0]
    assert (newest["action"], newest["detail"]) == ("create failed", "the pool is full")


def test_steps_keep_their_beginning_and_progress_counts_slivers(service: Service) -> None:
    id_ = service.create(count=2)
    ids = [row.sliver.id for row in service.rows()]
    service.record(work.StepSeen(id_, ids[0], "root", RUNNING), work.StepSeen(id_, "", "rules", RUNNING, percent=40))
    with service.store.read() as c:
        began = c.scalar(sa.select(tables.operation_steps.c.started_at).where(tables.operation_steps.c.name == "root"))
    version = operation(service, id_)["version"]
    service.record(
        work.StepSeen(id_, ids[0], "root", DONE, "4 ms"),
        work.SliverDone(id_, ids[0], DONE),
        work.StepSeen("no-such-operation", ids[0], "root", DONE),
    )
    seen = operation(service, id_)
    assert seen["progress"] == {"done": 1, "total": 2}
    assert seen["version"] == version + 1, "a batch is one change"
    step = next(step for step in seen["steps"] if step["name"] == "root")
    assert (step["state"], step["detail"]) == ("done", "4 ms")
    with service.store.read() as c:
        p = tables.operation_steps.c
        row = c.execute(sa.select(p.started_at, p.finished_at).where(p.name == "root")).one()
    assert row.started_at == began
    assert row.finished_at is not None


def test_what_is_not_said_of_a_sliver_is_kept(service: Service) -> None:
    service.create()
    id_ = service.rows()[0].sliver.id
    service.record(work.SliverSeen(id_, Phase.FAILED, "broke", "ssh-ed25519 AAAA"))
    service.record(work.SliverSeen(id_, Phase.RUNNING))
    row = service.rows()[0]
    assert (row.phase, row.error, row.sliver.host_key) == (Phase.RUNNING, "broke", "ssh-ed25519 AAAA")
    service.record(work.SliverSeen(id_, Phase.RUNNING, ""))
    assert service.rows()[0].error == ""


def test_with_its_last_sliver_goes_the_slice_but_not_its_history(service: Service) -> None:
    id_ = service.create(count=2)
    service.create("other")
    ids = [row.sliver.id for row in service.rows() if row.sliver.slice_name == "exp"]
    service.record(work.SliverGone(ids[0]))
    assert service.count("slices") == 2
    service.record(work.SliverGone(ids[1]), work.SliverGone(ids[1]))
    assert (service.count("slices"), service.count("slivers"), service.count("ports")) == (1, 1, 20)
    assert operation(service, id_)["slice"] == "exp"


def test_a_serial_is_never_given_twice(service: Service) -> None:
    serials = []
    for _ in range(3):
        service.create()
        serials.append(service.rows()[0].sliver.serial)
        service.record(work.SliverGone(service.rows()[0].sliver.id))
    assert serials == sorted(set(serials))


def test_images_and_nodes_as_seen(service: Service) -> None:
    service.add_image("cd" * 32, "other", ImageState.UPLOADED)
    service.record(work.ImageSeen("cd" * 32, ImageState.READY, "i686", "Alpine", 77))
    service.record(work.ImageSeen("cd" * 32, ImageState.READY), work.NodeSeen("node1", "198.51.100.9"))
    with service.store.read() as c:
        image = next(one for one in work.images(c) if one.name == "other")
        node = node_views.nodes(c, service.config.network)[0]
    assert (image.arch, image.os, image.virtual_size, image.state) == ("i686", "Alpine", 77, ImageState.READY)
    assert (node["address"], node["facts"]["cpus"]) == ("198.51.100.9", 4)
    service.record(work.ImageGone("cd" * 32))
    with service.store.read() as c:
        assert [one.name for one in work.images(c)] == [IMAGE]


def test_updates_of_what_is_gone_change_nothing(service: Service) -> None:
    before = service.content()
    service.record(
        work.SliverSeen("abcdefgh-0", Phase.RUNNING, ""),
        work.SliverGone("abcdefgh-0"),
        work.SliverDone("x", "abcdefgh-0", DONE),
        work.OperationStarted("x"),
        work.OperationEnded("x", FAILED, "e"),
        work.ImageSeen("0" * 64, ImageState.READY),
        work.ImageGone("0" * 64),
    )
    assert service.content() == before


def test_a_batch_is_written_whole_or_not_at_all(service: Service) -> None:
    service.create()
    before = service.content()
    without_action = work.EventSeen("agent", None)  # type: ignore[arg-type]
    with pytest.raises(exc.IntegrityError):
        service.record(work.SliverSeen(service.rows()[0].sliver.id, Phase.RUNNING, ""), without_action)
    assert service.content() == before


def _sliver(service: Service) -> dict[str, Any]:
    """The columns of an existing sliver."""
    with service.store.read() as c:
        return dict(c.execute(tables.slivers.select()).mappings().first() or {})


@pytest.mark.parametrize("same", ["id", "address", "uid_first", "idx"])
def test_the_database_itself_refuses_to_give_anything_twice(service: Service, same: str) -> None:
    service.create()
    row = _sliver(service)
    free = {"id": "abcdefgh-9", "address": "10.77.9.9", "uid_first": 7, "idx": 9}
    del row["serial"]
    fresh = {**row, **free}
    with service.store.write() as c:  # the control: with different values the row is accepted
        c.execute(
            tables.slivers.insert().values(**{**fresh, "id": "abcdefgh-8", "address": "x", "uid_first": 8, "idx": 8})
        )
    with pytest.raises(exc.IntegrityError), service.store.write() as c:
        c.execute(tables.slivers.insert().values(**{**fresh, same: row[same]}))


def test_overlapping_port_blocks_of_different_sizes_are_impossible(service: Service) -> None:
    service.create(ports=20)
    serial, first = _sliver(service)["serial"], _sliver(service)["port_first"]
    with pytest.raises(exc.IntegrityError), service.store.write() as c:
        c.execute(
            tables.ports.insert(), [{"node": "node1", "port": first + 19 + n, "sliver": serial} for n in range(3)]
        )
    assert service.count("ports") == 20


def test_an_image_in_use_cannot_be_removed_even_by_the_agent(service: Service) -> None:
    """Slices refer to its row, which then records that its files are gone."""
    service.create()
    service.record(work.ImageGone(SHA))
    with service.store.read() as c:
        assert c.scalar(sa.select(tables.images.c.state)) == ImageState.MISSING
    service.record(*(work.SliverGone(row.sliver.id) for row in service.rows()))
    service.record(work.ImageGone(SHA))
    assert service.count("images") == 0


@pytest.mark.parametrize("immediate", [True, False])
def test_two_writers_never_decide_on_the_same_state(service: Service, immediate: bool) -> None:
    """With a plain BEGIN both would have read before either wrote: the second is turned away, its work lost."""
    store = service.store
    begin = store._writing if immediate else store.engine
    both_may_read = threading.Barrier(2)
    failures: list[Exception] = []

    def add_one() -> None:
        both_may_read.wait()
        try:
            with begin.begin() as c:
                n = tables.nodes.c
                value = c.scalar(sa.select(n.next_uid)) or 0
                if not immediate:
                    both_may_read.wait()
                c.execute(tables.nodes.update().values(next_uid=value + 1))
        except exc.OperationalError as error:
            failures.append(error)

    threads = [threading.Thread(target=add_one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as c:
        counted = c.scalar(sa.select(tables.nodes.c.next_uid))
    assert (counted == 2 and not failures) is immediate


def test_actions_are_seen_by_the_agent(service: Service) -> None:
    service.create()
    slices.act(service.store, service.config, "exp", "restart", ADMIN)
    slices.act(service.store, service.config, "exp", "stop", ADMIN, {"force": True})
    sliver = service.rows()[0].sliver
    assert (sliver.desired, sliver.generation) == (Desired.STOPPED, 1)
    assert [(one.kind, dict(one.params)) for one in pending(service)][1:] == [
        ("restart", {}),
        ("stop", {"force": True}),
    ]


def test_an_exception_undoes_the_transaction(service: Service) -> None:
    before = service.content()
    with pytest.raises(KeyError), service.store.write() as c:
        c.execute(tables.images.delete())
        raise KeyError
    assert service.content() == before
