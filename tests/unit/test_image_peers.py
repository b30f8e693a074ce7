"""Which nodes the hub names to each other for the exchange of an image, and how the names reach the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import FACTS, SHA
from centre_and_node import IDENTITY, LOCAL, NODE, World, member, move
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.hub import image_peers as hub
from slicemgr.ipc import image_peers
from slicemgr.model import ImageState
from slicemgr.policy import image_blocks, messages
from slicemgr.policy.image_blocks import Peer, Shared
from slicemgr.policy.messages import BadMessage
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

PORT = 8481
SHARED = Shared(
    SHA, "qcow2", 9 << 20, (Peer("node-a", "192.0.2.1", PORT, True), Peer("node-b", "2001:db8::2", 1024, False))
)


class Centre:
    """A centre with three nodes that need the image of a slice each, and exchange images."""

    def __init__(self, world: World) -> None:
        self.world, self.store = world, world.centre
        for number in (1, 2, 3):
            name = f"n{number}"
            member(self.store, name, f"node-{number}")
            self.change(name, address=f"192.0.2.{number}", facts={**FACTS, "image_port": PORT})
            with self.store.write() as c:
                row = {"identity": f"node-{number}", "incarnation": "0" * 16, "sequence": 1, "version": "1"}
                c.execute(t.links.insert().values(**row, beat_at=utcnow()))
            world.service.create(f"exp{number}")
            move(self.store, f"exp{number}", name)
            self.report(name, "fetching")

    def change(self, name: str, **values: Any) -> None:
        with self.store.write() as c:
            c.execute(t.nodes.update().where(t.nodes.c.name == name).values(values))

    def report(self, name: str, state: str, **values: Any) -> None:
        m = t.image_nodes
        with self.store.write() as c:
            c.execute(m.delete().where(m.c.node == name, m.c.image == SHA))
            row = {"image": SHA, "node": name, "state": state, "disk": state, "updated_at": utcnow()}
            c.execute(m.insert().values({**row, **values}))

    def named(self) -> dict[str, dict[str, bool]]:
        """By identity: the nodes that are named to it, and whether they have the whole image."""
        with self.store.read() as c:
            found = hub.orders(c)
        assert all(len(images) == 1 and images[0].sha256 == SHA for images in found.values())
        return {who: {one.identity: one.complete for one in images[0].peers} for who, images in found.items()}


def test_rows_without_a_fetch_take_one_query(tmp_path: Path) -> None:
    """The hub looks whenever rows have changed."""
    seen: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    with World(tmp_path) as world:
        made = Centre(world)
        sa.event.listen(made.store.engine, "before_cursor_execute", note)
        assert made.named()
        fetching = len(seen)
        for name in ("n1", "n2", "n3"):
            made.report(name, "ready")
        seen.clear()
        assert not made.named()
        assert len([one for one in seen if "image_nodes" in one]) == 1 < fetching


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    with World(tmp_path) as world:
        yield Centre(world)


ALL = {"node-1": False, "node-2": False, "node-3": False}


def test_those_that_fetch_an_image_are_named_to_each_other(centre: Centre) -> None:
    assert centre.named() == dict.fromkeys(ALL, ALL)
    centre.report("n1", "ready")
    assert centre.named() == {one: {**ALL, "node-1": True} for one in ALL}, "a node that has all gives it"
    centre.report("n3", "failed")
    assert set(centre.named()) == {"node-1", "node-2"}
    centre.report("n2", "ready")
    assert centre.named() == {}, "nobody fetches it"


def test_a_node_that_does_not_need_the_image_is_not_named(centre: Centre) -> None:
    """Whatever it reports: those that are named get the image from others. The control is the test above."""
    move(centre.store, "exp3", NODE)
    assert set(centre.named()) == {"node-1", "node-2"}
    with centre.store.write() as c:
        c.execute(t.operations.update().where(t.operations.c.slice_name == "exp1").values(image=SHA))
        c.execute(t.operation_parts.update().values(node="n3"))
    assert set(centre.named()) == {"node-1", "node-2", "node-3"}, "an operation of it needs the image"


@pytest.mark.parametrize(
    "change",
    [
        {"facts": FACTS},  # of an earlier version
        {"facts": {**FACTS, "image_port": 22}},
        {"facts": {**FACTS, "image_port": True}},
        {"facts": {**FACTS, "image_port": "8481"}},
        {"address": "127.0.0.1"},
        {"address": "::1"},
        {"address": "169.254.169.254"},
        {"address": "0.0.0.0"},
        {"address": "localhost"},
        {"address": ""},
        {"state": "joined"},
    ],
)
def test_nodes_that_cannot_be_reached_or_announce_another_host(centre: Centre, change: dict[str, Any]) -> None:
    """Other nodes connect to the address that a node announces, also if it is hostile."""
    centre.change("n3", **change)
    assert centre.named() == {one: {"node-1": False, "node-2": False} for one in ("node-1", "node-2")}


def test_what_is_old_or_being_deleted(centre: Centre) -> None:
    with centre.store.write() as c:
        c.execute(
            t.links.update().where(t.links.c.identity == "node-3").values(beat_at=utcnow() - timedelta(minutes=1))
        )
    centre.report("n2", "fetching", updated_at=utcnow() - timedelta(hours=7))
    assert set(centre.named()) == {"node-1"}
    with centre.store.write() as c:
        c.execute(t.images.update().values(state=ImageState.DELETING))
    assert centre.named() == {}


def test_orders_are_sent_when_they_change_and_repeated(centre: Centre) -> None:
    sent: list[str] = []
    now = [0.0]
    peers = hub.ImagePeers(centre.store, lambda identity, body: sent.append(identity), lambda: now[0])

    def step(after: float) -> list[str]:
        now[0] += after
        sent.clear()
        peers.step()
        return sorted(sent)

    assert step(0) == sorted(ALL)
    assert step(1) == []
    assert step(hub._REPEAT) == sorted(ALL)
    assert hub._REPEAT * 2 < image_peers.VALID, "one may be lost"
    centre.report("n1", "ready")
    assert step(1) == sorted(ALL)
    for name in ("n2", "n3"):
        centre.report(name, "ready")
    assert step(hub._REPEAT) == []


def test_the_names_reach_the_agent(centre: Centre) -> None:
    """From the rows to the file; without the hub they end."""
    world = centre.world
    centre.change(NODE, address="192.0.2.7", facts={**FACTS, "image_port": PORT})
    world.service.create("mine")
    move(world.centre, "mine")
    world.settle(20)
    assert image_peers.read(world.config.image_peers_file) == "", "an old node: its facts have no port"
    with world.node.write() as c:
        facts = {**FACTS, "image_port": PORT}
        row = {"address": "192.0.2.7", "facts": facts, "agent_seen_at": utcnow()}
        c.execute(t.nodes.update().where(t.nodes.c.name == LOCAL).values(row))
    world.settle(20)
    centre.report(NODE, "fetching")
    world.settle(10)
    (found,) = messages.parse_peers(image_peers.read(world.config.image_peers_file))
    assert (found.sha256, found.format) == (SHA, "qcow2")
    assert {one.identity for one in found.peers} == {*ALL, IDENTITY}


def test_a_file_of_an_earlier_start_of_the_host_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "peers"
    assert image_peers.read(path) == ""
    image_peers.write(path, messages.peers([SHARED]))
    assert messages.parse_peers(image_peers.read(path)) == [SHARED] and path.stat().st_mode & 0o777 == 0o600
    at, _, content = path.read_text().partition("\n")
    for age in (image_peers.VALID + 1, -5.0):
        path.write_text(f"{float(at) - age}\n{content}")
        assert image_peers.read(path) == ""
    path.write_text(f"nan\n{content}")
    assert image_peers.read(path) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sha256", "../../etc/shadow"),
        ("format", "vmdk"),
        ("size", -1),
        ("size", 1 << 50),
        ("nodes", {}),
        ("nodes", [["node-a", "192.0.2.1", 22, True]]),
        ("nodes", [["node-a", "192.0.2.1; x", PORT, True]]),
        ("nodes", [["node-a", "", PORT, True]]),
        ("nodes", [["../a", "192.0.2.1", PORT, True]]),
        ("nodes", [["node-a", "192.0.2.1", True, True]]),
        ("nodes", [["node-a", "192.0.2.1", PORT, 1]]),
        ("nodes", [[]] * 1000),
    ],
)
def test_orders_are_checked(name: str, value: object) -> None:
    order = json.loads(messages.peers([SHARED]))
    assert messages.parse_peers(json.dumps({**order, "later": "field"})) == [SHARED]
    order["images"][0][name] = value
    with pytest.raises(BadMessage):
        messages.parse_peers(json.dumps(order))


def test_many_nodes_form_groups(centre: Centre) -> None:
    """Each node that fetches is in one of them, each group knows nodes that have all."""
    peers = [Peer(f"node-{number}", "192.0.2.1", PORT, number < 40) for number in range(300)]
    found = list(hub.groups(SHA, peers))
    fetching = [one.identity for group in found for one in group if not one.complete]
    assert sorted(fetching) == sorted(one.identity for one in peers if not one.complete)
    assert all(
        len(group) <= hub._TOGETHER + hub._COMPLETE and sum(one.complete for one in group) == 12 for group in found
    )
    images = [Shared(SHA, "qcow2", 1 << 30, group) for group in found[:4]]
    assert len(messages.peers(images)) < messages.LARGEST_BEAT


# the blocks

NAMES = st.lists(st.sampled_from([f"node-{number}" for number in range(9)]), min_size=1, unique=True)


@given(NAMES, st.integers(0, 1000))
def test_a_node_that_leaves_gives_only_its_own_blocks_to_others(nodes: list[str], block: int) -> None:
    before = image_blocks.owner(SHA, block, nodes)
    assert before == image_blocks.owner(SHA, block, reversed(nodes)) and before in nodes
    for gone in set(nodes) - {before}:
        assert image_blocks.owner(SHA, block, [one for one in nodes if one != gone]) == before


def test_blocks_are_shared_out_evenly() -> None:
    nodes = [f"node-{number}" for number in range(3)]
    shares = [sum(image_blocks.owner(SHA, block, nodes) == one for block in range(3000)) for one in nodes]
    assert all(900 < one < 1100 for one in shares)


def test_a_node_that_nobody_reaches_owns_nothing() -> None:
    peers = [Peer(f"node-{number}", "192.0.2.1", PORT, False) for number in (1, 2, 3)]
    fetchers = image_blocks.fetchers
    assert fetchers("node-3", peers, (), {}) == {"node-1", "node-2", "node-3"}
    assert fetchers("node-3", peers, (), {"node-1": ["node-3"], "node-2": []}) == {"node-1", "node-2", "node-3"}
    assert fetchers("node-3", peers, (), {"node-1": ["node-3"], "node-2": ["node-3"]}) == {"node-1", "node-2"}
    assert fetchers("node-1", peers, {"node-3"}, {}) == {"node-1", "node-2"}, "what they see of it"
    assert fetchers("node-3", peers, {"node-1", "node-2"}, {}) == {"node-3"}


@given(st.sets(st.integers(0, 99)))
def test_a_set_of_blocks_as_text(found: set[int]) -> None:
    assert image_blocks.blocks(image_blocks.bitmap(found), 100) == found


@pytest.mark.parametrize("text", ["", "x", "-1", "0x1", "1_0", "f" * 400, f"{1 << 100:x}", "٣"])
def test_what_is_no_set_of_blocks(text: str) -> None:
    with pytest.raises(ValueError):
        image_blocks.blocks(text, 100)


@pytest.mark.parametrize("size", [1, image_blocks.SIZE - 1, image_blocks.SIZE, image_blocks.SIZE + 1, 1 << 30])
def test_blocks_cover_a_file(size: int) -> None:
    assert sum(image_blocks.length(size, one) for one in range(image_blocks.count(size))) == size
