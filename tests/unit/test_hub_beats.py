"""Beats and other transactions of the centre do not wait for one another, on PostgreSQL."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import FACTS, PATIENT, Databases, Service, databases_on
from postgres_server import Server
from web_process import until

import slicemgr.store
from slicemgr.hub import beats, reports
from slicemgr.hub.reports import Report
from slicemgr.policy.messages import Beat, Updates
from slicemgr.store import Store, StoreError, postgresql
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

NODES = ("node-one", "node-two")
MOMENT = timedelta(milliseconds=300)


@pytest.fixture(scope="module", autouse=True)
def databases(postgres: Server) -> Iterator[Databases]:
    with databases_on(postgres) as made:
        yield made


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """With two nodes that joined and have sent their first beat."""
    with Service(tmp_path) as made:
        with made.store.write() as c:
            for identity in NODES:
                c.execute(
                    t.nodes.insert().values(name=identity, identity=identity, state="joined", address="", facts={})
                )
        reports.apply(made.store, [beat(identity, 1) for identity in NODES])
        assert last(made.store) == dict.fromkeys(NODES, 1)
        yield made


@pytest.fixture
def other(service: Service) -> Iterator[Store]:
    """The store of another process, which soon gives up to wait for a lock."""
    config = dataclasses.replace(service.config.store, lock_timeout=MOMENT)
    with slicemgr.store.open(dataclasses.replace(service.config, store=config)) as opened:
        yield opened


def beat(identity: str, sequence: int, **facts: Any) -> Report:
    return Report(identity, Beat("f" * 16, sequence, "1", "192.0.2.1", 0.0, {**FACTS, **facts}, 1, "r", 0))


def last(store: Store) -> dict[str, int]:
    """The last beat of each node."""
    with store.read() as c:
        query = sa.select(t.links.c.identity, t.links.c.sequence).order_by(t.links.c.identity)
        return {row.identity: row.sequence for row in c.execute(query)}


def totals(store: Store) -> set[int]:
    a = t.allocations.c
    with store.read() as c:
        return set(c.scalars(sa.select(a.memory_total).where(a.node.in_(NODES))))


@pytest.mark.parametrize("beside", [True, False])
def test_beats_do_not_wait_for_who_writes(
    service: Service, other: Store, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control has one kind of transaction."""
    if not beside:
        monkeypatch.setattr(Store, "write_beside", Store.write)
    found = [beat(identity, 2, memory=1 << 30) for identity in NODES]
    with service.store.write():
        if beside:
            assert reports.apply(other, found) == {}
        else:
            with pytest.raises(StoreError, match="locked"):
                reports.apply(other, found)
    assert last(service.store) == dict.fromkeys(NODES, 2 if beside else 1)
    assert totals(service.store) == ({1 << 30} if beside else {FACTS["memory"]})


@pytest.mark.parametrize("beside", [True, False])
def test_who_creates_does_not_wait_for_beats(
    service: Service, other: Store, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not beside:
        monkeypatch.setattr(Store, "write_beside", Store.write)
    with service.store.write_beside() as c:
        assert beats._free(c, NODES).keys() == set(NODES)
        monkeypatch.setattr(service, "store", other)
        if beside:
            service.create("a", node="node1")
        else:
            with pytest.raises(StoreError, match="locked"):
                service.create("a", node="node1")


@pytest.mark.parametrize("skips", [True, False])
def test_a_row_that_another_transaction_changes_delays_no_other_beat(
    service: Service, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the two could also wait for each other: a slice over many nodes takes their rows in another order."""
    if not skips:
        waiting = beats._unlocked().with_for_update(key_share=True)
        monkeypatch.setattr(beats, "_unlocked", lambda: waiting)
    patient = dataclasses.replace(
        service.config, store=dataclasses.replace(service.config.store, lock_timeout=PATIENT.lock_timeout)
    )
    with slicemgr.store.open(patient) as hub, ThreadPoolExecutor(1) as pool:
        with service.store.write() as c:
            c.execute(t.nodes.update().where(t.nodes.c.identity == NODES[1]).values(next_port=20))
            done = pool.submit(reports.apply, hub, [beat(identity, 2) for identity in reversed(NODES)])
            until(lambda: waits(service))
            assert last(service.store) == {NODES[0]: 2 if skips else 1, NODES[1]: 1}
        done.result(PATIENT.lock_timeout.total_seconds())
    assert last(service.store) == dict.fromkeys(NODES, 2)
    with service.store.read() as c:
        assert c.scalar(sa.select(t.nodes.c.next_port).where(t.nodes.c.identity == NODES[1])) == 20


def waits(service: Service) -> int:
    """How many transactions of this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with service.store.read() as c:
        return int(c.exec_driver_sql(query).scalar_one())


def test_a_node_that_was_removed_meanwhile_gets_no_rows(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    with service.store.write() as c:
        c.execute(t.links.delete().where(t.links.c.identity == NODES[0]))
        c.execute(t.nodes.delete().where(t.nodes.c.identity == NODES[0]))
    with caplog.at_level(logging.WARNING):
        reports.apply(service.store, [beat(identity, 2) for identity in NODES])
    assert last(service.store) == {NODES[1]: 2}
    assert [one.getMessage() for one in caplog.records] == ["a report of node-one is dropped: it is no member"]


@pytest.mark.parametrize(
    ("longest", "seen"), [(0.0, [(1, 1), (1, 1), (1, 2)]), (3600.0, [(1, 1)])], ids=["short", "one for all"]
)
def test_others_write_between_the_reports_of_nodes(
    service: Service, longest: float, seen: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control writes all in one transaction. The beat of a node is not visible before its other reports."""
    monkeypatch.setattr(reports, "_LONGEST", longest)
    events = ((1, "event", {"user": "agent", "action": "repair", "at": utcnow().isoformat()}),)
    found = [Report(identity, Updates(7, 0, events)) for identity in (*NODES, NODES[0])]
    found += [beat(identity, 2) for identity in NODES]
    before: list[tuple[int, ...]] = []
    monkeypatch.setattr(postgresql, "lock", lambda c: before.append(tuple(last(service.store).values())))
    answers = reports.apply(service.store, found)
    assert before == seen and last(service.store) == dict.fromkeys(NODES, 2)
    assert {identity: one.sequence for identity, one in answers.items()} == dict.fromkeys(NODES, 1)
    with service.store.read() as c:
        assert c.scalar(sa.select(sa.func.count()).where(t.events.c.action == "repair")) == 2
