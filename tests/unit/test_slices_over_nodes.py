"""Slices whose slivers are on several nodes: allocations of each node, operations, dry runs, clones, disk limits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, IMAGE, KEY, Service
from browsers import Browser
from tenants import Tenants

from slicemgr.errors import Refused
from slicemgr.model import GIB, OperationState, Phase
from slicemgr.service.slices import limit_changes, slices, snapshots
from slicemgr.service.slices.snapshots import SliceReference
from slicemgr.service.views import operations as operation_views
from slicemgr.store import pending as work
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

OWN = {"addresses": "10.99.0.0/24", "ports_first": 40000, "ports_last": 40999}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with node1, and with n2 and n3 that joined with certificates; n3 has pools of its own."""
    with Service(tmp_path) as made:
        add(made, "n2", site="b")
        add(made, "n3", {**FACTS, **OWN}, site="b")
        yield made


def add(service: Service, name: str, facts: dict[str, Any] = FACTS, **values: Any) -> None:
    with service.store.write() as c:
        row = {"name": name, "address": f"{name}.example", "facts": facts, "identity": f"node-{name}"}
        c.execute(t.nodes.insert().values(**row, state="active", agent_seen_at=utcnow(), **values))


def slivers(service: Service, name: str = "exp") -> list[Any]:
    """The rows of the slivers of a slice, by index."""
    with service.store.read() as c:
        query = sa.select(t.slivers).join(t.slices, t.slices.c.id == t.slivers.c.slice).where(t.slices.c.name == name)
        return list(c.execute(query.order_by(t.slivers.c.idx)).all())


def where(service: Service, name: str = "exp") -> list[str]:
    return [one.node for one in slivers(service, name)]


def plan(service: Service, **fields: Any) -> Any:
    _, placed, _ = slices.plan(service.store, service.config, slices.Draft(service.request(**fields)), ADMIN)
    return placed


def refusal(service: Service, **fields: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        service.create("other", **fields)
    return caught.value


def test_each_node_allocates_from_its_own_pools(service: Service) -> None:
    created = service.create("exp", count=3)
    first, second, third = slivers(service)
    assert where(service) == ["n2", "n3", "node1"]
    assert (first.address, first.port_first) == ("10.77.0.1", 10000), "n2 announces no pools"
    assert (second.address, second.port_first) == ("10.99.0.1", 40000)
    assert (third.address, third.port_first) == (first.address, first.port_first), "private to the node"
    with service.store.read() as c:
        held = c.execute(sa.select(t.ports.c.node, sa.func.min(t.ports.c.port)).group_by(t.ports.c.node)).all()
        cursors = {row.name: row.next_address for row in c.execute(sa.select(t.nodes.c.name, t.nodes.c.next_address))}
        parts = [one["node"] for one in operation_views.operation(c, created)["parts"]]
    assert sorted(held) == [("n2", 10000), ("n3", 40000), ("node1", 10000)]
    assert cursors == {"n2": 1, "n3": 1, "node1": 1}
    assert parts == ["n2", "n3", "node1"]
    service.create("two", count=3)
    second = {one.node: one.address for one in slivers(service, "two")}
    assert second == {"n2": "10.77.0.2", "n3": "10.99.0.2", "node1": "10.77.0.2"}


def test_slivers_know_the_addresses_of_their_node_only(service: Service) -> None:
    service.create("exp", count=4)
    with service.store.read() as c:
        rows = [row.sliver for node in ("n2", "n3", "node1") for row in work.slivers(c, node)]
    assert [len(one.peers) for one in rows] == [2, 2, 1, 1]
    assert all(one.siblings == 4 for one in rows)


def test_where_people_want_them(service: Service) -> None:
    service.create("a", count=2, node="n3, node1")
    assert sorted(where(service, "a")) == ["n3", "node1"]
    service.create("b", count=2, site="b")
    assert sorted(where(service, "b")) == ["n2", "n3"]
    service.create("c", count=4, spread="pack")
    assert len(set(where(service, "c"))) == 1
    service.create("d", count=4, spread="site")
    assert where(service, "d").count("node1") == 2
    service.create("e", count=2, apart="c")
    assert not set(where(service, "e")) & set(where(service, "c"))
    service.create("f", count=3, apart="default/c", node="node1,n2,n3")
    assert not set(where(service, "f")) & set(where(service, "c"))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"node": "node1,n9"}, "node"),
        ({"node": "node1,,n2"}, "node"),
        ({"site": "nowhere"}, "site"),
        ({"spread": "wide"}, "spread"),
        ({"apart": "missing"}, "apart"),
        ({"apart": "secret/exp"}, "apart"),
    ],
)
def test_what_does_not_exist_is_refused_at_its_field(service: Service, fields: dict[str, Any], field: str) -> None:
    service.create()
    assert refusal(service, **fields).field == field
    with service.store.read() as c:
        assert c.scalar(sa.select(sa.func.count()).select_from(t.slices)) == 1


def test_a_dry_run_says_why_not_elsewhere(service: Service) -> None:
    with service.store.write() as c:
        late = utcnow() - timedelta(minutes=2)
        c.execute(t.nodes.update().where(t.nodes.c.name == "n3").values(agent_seen_at=late))
        c.execute(t.nodes.update().where(t.nodes.c.name == "n2").values(drained=True))
    placed = plan(service, count=2)
    assert placed.nodes == ("node1", "node1")
    found = {name: reason.message for name, reason in placed.elsewhere.items()}
    assert set(found) == {"n2", "n3"} and found["n2"] == "node n2 is drained" and "has not for 12" in found["n3"]
    answer: Any = service.app.test_client().post(
        "/api/v1/slices",
        json={**service.request(), "dry_run": True},
        headers={"Authorization": f"Bearer {service.token()}"},
    )
    assert answer.json["plan"]["elsewhere"][0] == {"node": "n2", "reason": "node n2 is drained"}
    assert answer.json["plan"]["slivers"][0]["ssh"]["host"] == "192.0.2.1"
    assert service.count("slices") == 0


def test_a_node_that_announces_nonsense_is_not_used(service: Service) -> None:
    """Its facts are the only thing wrong with it: with its usual facts it is used."""
    for facts, used in (({**FACTS, "addresses": "0.0.0.0/0"}, False), ({**FACTS, **OWN}, True)):
        with service.store.write() as c:
            c.execute(t.nodes.update().where(t.nodes.c.name == "n3").values(facts=facts))
        placed = plan(service, count=3)
        assert ("n3" in placed.nodes) is used
        assert used or "is not a private network" in placed.elsewhere["n3"].message


def test_a_node_with_scattered_ports_is_replaced_by_another(service: Service) -> None:
    """It has enough free ports, but no block of them."""
    service.create("exp", count=8, node="n3", ports=100)
    for one in slivers(service)[::2]:
        service.record(work.SliverGone(one.id), node="n3")
    placed = plan(service, name="other", count=2, node="n3,n2", ports=300)
    assert placed.nodes == ("n2", "n2")
    assert "not enough blocks of 300 ports" in placed.elsewhere["n3"].message
    assert refusal(service, node="n3", ports=300).field == "ports"


def test_a_clone_is_where_the_snapshot_is(service: Service) -> None:
    service.create("exp", count=3)
    for one in slivers(service):
        service.record(work.SliverSeen(one.id, Phase.RUNNING, host_key="ssh-ed25519 AAAA"), node=one.node)
    at = SliceReference("exp", ADMIN)
    operation = snapshots.create(service.store, service.config, at, "before")
    with service.store.read() as c:
        id_ = str(c.scalar(sa.select(t.snapshots.c.id)))
        assert len(operation_views.operation(c, operation)["parts"]) == 3
    for one in slivers(service):
        ended = work.OperationEnded(operation, OperationState.DONE)
        service.record(work.SnapshotMade(one.id, id_, 1), ended, node=one.node)
    snapshots.clone(service.store, service.config, at, "before", {"name": "twin"})
    assert where(service, "twin") == where(service)
    with service.store.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == "n3").values(drained=True))
    with pytest.raises(Refused, match="node n3 is drained"):
        snapshots.clone(service.store, service.config, at, "before", {"name": "third"})


def test_a_larger_disk_needs_room_on_every_node(service: Service) -> None:
    service.create("exp", count=3, disk="1G")
    assert limit_changes.resize(service.store, service.config, "exp", {"disk": 2 * GIB}, ADMIN).operation
    with service.store.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == "n3").values(facts={**FACTS, **OWN, "disk_total": 2 * GIB}))
    with pytest.raises(Refused, match="of disk exceed the capacity of node n3"):
        limit_changes.resize(service.store, service.config, "exp", {"disk": 40 * GIB}, ADMIN)


def test_the_form_asks_for_nodes_only_if_there_are_several(tenants: Tenants) -> None:
    bob = Browser(tenants, "bob")
    assert 'name="spread"' not in bob.get("/new").text
    assert "on node1</small>" not in bob.get("/slices/exp?project=lab").text
    add(tenants, "n2", site="b")
    with tenants.store.write() as c:
        c.execute(t.nodes.update().values(agent_seen_at=utcnow()))  # the rows are as old as the session
    page = bob.get("/new").text
    assert all(f'name="{field}"' in page for field in ("spread", "node", "site", "apart"))
    fields = {"name": "wide", "project": "lab", "type": "lxc", "image": IMAGE, "size": "small", "count": "2"}
    fields |= {"lease": "1d", "more_keys": KEY}
    shown = bob.post("/new/preview", {**fields, "node": "n2"})
    assert 'value="wide"' in shown.text and "<b>n2</b>: 2 slivers" in shown.text, "without JavaScript the whole form"
    assert "Node node1 was not requested." in shown.text
    unkeyed = bob.post("/new/preview", {**fields, "more_keys": ""}, headers={"HX-Request": "true"})
    assert "<b>node1</b>: 1 sliver" in unkeyed.text, "a placement needs no key"
    part = bob.post("/new/preview", {**fields, "apart": "missing"}, headers={"HX-Request": "true"})
    assert "has no slice" in part.text and 'name="spread"' not in part.text
    assert not where(tenants, "wide"), "a preview creates nothing"
    answer = bob.post("/new", {**fields, "apart": "missing"})
    assert answer.status_code == 422 and "has no slice" in answer.text
    assert bob.post("/new", {**fields, "node": "n2"}).status_code in (302, 303)
    assert where(tenants, "wide") == ["n2", "n2"]
    assert "on n2</small>" in bob.get("/slices/wide?project=lab").text
