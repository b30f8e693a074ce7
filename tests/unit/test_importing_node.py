"""Which node imports an image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_service import FACTS, Service

from slicemgr.record import node_facts
from slicemgr.service.nodes import images as image_service
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, facts=None) as service:
        with service.store.write() as c:
            for name in ("far", "near"):
                row = {"name": name, "identity": f"node-{name}", "state": "active", "address": "192.0.2.9"}
                c.execute(t.nodes.insert().values(**row, facts=FACTS, agent_seen_at=utcnow()))
                address = "198.51.100.1" if name == "far" else "192.0.2.9"
                join = {"node": name, "hash": name, "user": "admin", "created_at": utcnow(), "expires_at": utcnow()}
                c.execute(t.joins.insert().values(**join, address=address))
        yield service


def test_a_node_that_others_reach_imports(two_nodes: Service) -> None:
    """Not one that joined from another address than it announces, unless it is the only one."""
    store = two_nodes.store
    for name in ("near", "far"):  # the one that reported last would be chosen else
        with store.write() as c:
            c.execute(t.nodes.update().where(t.nodes.c.name == name).values(agent_seen_at=utcnow()))
        with store.read() as c:
            assert image_service._importing_node(c) == "near"
    with store.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == "near").values(state="joined"))
    with store.read() as c:
        assert image_service._importing_node(c) == "far"


def test_a_node_with_the_address_of_a_router_imports_last(two_nodes: Service) -> None:
    """Its connections come from the address that it announces, but the router forwards only some ports to it."""
    store = two_nodes.store
    for forwarded, chosen in ((False, "near"), (True, "far")):
        with store.write() as c:
            changed = t.nodes.update().where(t.nodes.c.name == "near")
            c.execute(changed.values(facts={**FACTS, "forwarded": forwarded}, agent_seen_at=utcnow()))
            c.execute(t.joins.update().values(address="192.0.2.9"))
        with store.read() as c:
            assert image_service._importing_node(c) == chosen


@pytest.mark.parametrize(
    ("address", "forwarded"), [("127.0.0.1", False), ("192.0.2.9", True), ("2001:db8::9", True), ("n1.example", None)]
)
def test_a_host_knows_whether_an_address_is_its_own(address: str, forwarded: bool | None) -> None:
    assert node_facts.is_forwarded(address) is forwarded
