"""The counters of what slivers were allocated: they equal the sums, and the best nodes are found by them alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, IMAGE, SHA, Service
from sqlalchemy.engine import Connection

from slicemgr.agent.checks import testbed
from slicemgr.errors import Refused
from slicemgr.model import GIB
from slicemgr.service.nodes import membership, nodes
from slicemgr.service.slices import limit_changes, placement, slices
from slicemgr.service.views import nodes as node_views
from slicemgr.store import allocations, pending, schema
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

POOLS = {"addresses": "10.77.0.0/24", "ports_first": 10000, "ports_last": 14999}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, {**FACTS, **POOLS}) as made:
        yield made


def add(service: Service, name: str, facts: dict[str, Any], **values: Any) -> None:
    with service.store.write() as c:
        row = {"name": name, "address": f"{name}.example", "facts": facts, "identity": f"node-{name}"}
        c.execute(t.nodes.insert().values(**{**row, "state": "active", "agent_seen_at": utcnow(), **values}))
        allocations.announce(c, {name: facts})


def differences(service: Service) -> dict[str, Any]:
    with service.store.read() as c:
        return allocations.differences(c)


def test_counters_follow_every_change_of_slivers(service: Service) -> None:
    add(service, "n2", {**FACTS, **POOLS})
    service.create("a", count=3, ports=7)
    service.create("b", count=2, memory="100M")
    limit_changes.resize(service.store, service.config, "a", {"disk": 9 * GIB}, ADMIN)
    gone = [row.sliver.id for row in service.rows()][:2]
    service.record(*(pending.SliverGone(one) for one in [*gone, gone[0], "unknown-1"]))
    membership.rename(service.store, "n2", "n3", ADMIN)
    assert differences(service) == {}
    with service.store.read() as c:
        used = {one["name"]: one["used"] for one in node_views.nodes(c, service.config.network)}
        sums = c.execute(sa.select(t.slivers.c.node, sa.func.sum(t.slivers.c.disk)).group_by(t.slivers.c.node)).all()
    assert {node: int(disk) for node, disk in sums} == {
        name: one["disk_limits"] for name, one in used.items() if one["slivers"]
    }
    assert set(used) == {"node1", "n3"}


def test_a_change_that_is_not_counted_is_found_and_corrected(service: Service) -> None:
    """The control of the test above."""
    service.create("a", count=2)
    with service.store.write() as c:
        c.execute(t.slivers.update().values(disk=GIB))
    assert set(differences(service)) == {"node1"}
    assert testbed.counters(list(differences(service))).ok is False
    with service.store.write() as c:
        assert allocations.recount(c) == ["node1"]
    assert differences(service) == {} and testbed.counters([]).ok


def test_an_upgrade_counts_the_slivers_that_there_are(service: Service) -> None:
    service.create("a", count=2)
    with service.store.read() as c:
        before = c.execute(sa.select(t.allocations)).all()
    service.store.close()
    schema.downgrade(service.config.store_url, schema.REVISIONS[schema.REVISIONS.index(schema.HEAD) - 1])
    schema.upgrade(service.config.store_url)
    with service.store.read() as c:
        assert c.execute(sa.select(t.allocations)).all() == before
    assert before[0].slivers == 2 and before[0].ports_total == 5000


@pytest.fixture
def many(service: Service) -> Service:
    """40 nodes, of which some cannot be used, each for another reason."""
    dice = random.Random(7)
    with service.store.write() as c:
        c.execute(t.allocations.update().values(memory=1))
    for number in range(40):
        facts: dict[str, Any] = {**FACTS, **POOLS, "memory": dice.randrange(4, 64) * GIB}
        values: dict[str, Any] = {"drained": number % 9 == 0, "site": "ab"[number % 2]}
        if number % 7 == 0:
            values["agent_seen_at"] = utcnow() - timedelta(seconds=31)
        if number % 5 == 0:
            facts["kinds"] = {"lxc": False}
        if number % 11 == 0:
            facts |= {"addresses": "8.8.8.0/24"}
        add(service, f"n{number:02}", facts, **values)
        with service.store.write() as c:
            given = {
                "slivers": 1,
                "memory": dice.randrange(0, 40) * GIB,
                "disk": dice.randrange(0, 64) * GIB,
                "ports": 20,
            }
            c.execute(t.allocations.update().where(t.allocations.c.node == f"n{number:02}").values(given))
            if number % 4 == 0:
                has = {"image": SHA, "node": f"n{number:02}", "state": "ready", "base": "ready", "updated_at": utcnow()}
                c.execute(t.image_nodes.insert().values(has))
    return service


def chosen(service: Service, *, reasons: bool, **fields: Any) -> tuple[str, ...]:
    draft = slices.Draft(service.request(**fields))
    with service.store.read() as c:
        _, spec = slices._specify(c, service.config, draft, ADMIN)
        return placement.place(c, service.config, spec, reasons=reasons).nodes


WANTED: tuple[dict[str, Any], ...] = (
    {},
    {"count": 5},
    {"count": 12},
    {"memory": "6G"},
    {"node": "n01,n02,n03", "count": 2},
)


@pytest.mark.parametrize("fields", WANTED, ids=str)
def test_the_best_nodes_are_those_of_the_complete_search(
    many: Service, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = chosen(many, reasons=True, **fields)
    with monkeypatch.context() as patch:
        patch.setattr(nodes, "every", None)  # the complete search would fail
        assert chosen(many, reasons=False, **fields) == expected


def test_what_the_best_nodes_cannot_do_is_searched_on_all(many: Service) -> None:
    with many.store.write() as c:
        only = {**FACTS, **POOLS, "kinds": {"lxc": False, "kvm": True}, "uefi": True}
        c.execute(t.nodes.update().where(t.nodes.c.name == "n39").values(facts=only))
    assert chosen(many, reasons=False, type="kvm") == ("n39",)
    assert chosen(many, reasons=False, count=60) == chosen(many, reasons=True, count=60)
    for fields in ({"node": "n01,unknown"}, {"node": "n00"}, {"site": "c"}):
        with pytest.raises(Refused) as fast:
            chosen(many, reasons=False, **fields)
        with pytest.raises(Refused) as complete:
            chosen(many, reasons=True, **fields)
        assert (fast.value.message, fast.value.hint) == (complete.value.message, complete.value.hint)


def test_the_slivers_of_a_node_are_read_only_if_what_follows_is_taken(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    given = nodes.given

    def counted(c: Connection, node: str) -> Any:
        read.append(node)
        return given(c, node)

    monkeypatch.setattr(nodes, "given", counted)
    service.create("a", count=3)
    service.create("b", count=2)
    assert read == []
    with service.store.write() as c:
        c.execute(t.nodes.update().values(next_address=1, next_port=40, next_uid=3))
    service.create("c", count=2)
    assert read == ["node1"]
    with service.store.read() as c:
        first = sa.select(t.slivers.c.address, t.slivers.c.port_first).order_by(t.slivers.c.serial)
        rows = c.execute(first).all()
    assert [one.address for one in rows] == [f"10.77.0.{number}" for number in range(1, 8)]
    assert [one.port_first for one in rows] == list(range(10000, 10140, 20))


def test_a_create_takes_as_many_statements_for_many_nodes_as_for_one(many: Service) -> None:
    def statements(name: str, count: int) -> int:  # without a spare, which one sliver might take
        found: list[str] = []

        def note(*event: Any) -> None:
            found.append(event[2])

        sa.event.listen(many.store.engine, "before_cursor_execute", note)
        many.create(name, count=count, warm=False)
        sa.event.remove(many.store.engine, "before_cursor_execute", note)
        return len(found)

    statements("a", 1)
    assert statements("b", 1) == statements("c", 5) > 0
    with many.store.read() as c:
        assert c.scalar(sa.select(sa.func.count(t.slivers.c.node.distinct()))) == 5
        assert c.scalar(sa.select(sa.func.count()).select_from(t.ports)) == c.scalar(
            sa.select(sa.func.sum(t.slivers.c.port_count))
        )


def test_a_dry_run_has_the_reasons_of_all_other_nodes(many: Service) -> None:
    _, placed, _ = slices.plan(many.store, many.config, slices.Draft(many.request()), ADMIN)
    assert len(placed.elsewhere) == 40 and placed.image_name == IMAGE
