"""One node makes the stream of a base and sends it to the service; another node fetches and receives it.

Between them are the real service over HTTP and one btrfs with a pool for each; libguestfs is left out.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import cast

import demo
import pytest
import sqlalchemy as sa
from bare_service import ADMIN, Service
from exchanging import served
from tiny_sliver import in_box

from slicemgr import names
from slicemgr.agent.acceleration import Machines
from slicemgr.agent.image_source import Source
from slicemgr.agent.images import Importer
from slicemgr.agent.journal import Journal
from slicemgr.agent.node import Node
from slicemgr.agent.node_images import NodeImages
from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.certificates.member import AUTHORITY, KEY, Member
from slicemgr.certificates.private_files import write_private
from slicemgr.config import Config, ExchangeConfig, NodeConfig
from slicemgr.drivers.importer.disk_image import TreeFacts
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Failed
from slicemgr.hub import signer
from slicemgr.model import BootFacts
from slicemgr.policy.image_needs import Needs
from slicemgr.service.nodes import joining, membership
from slicemgr.service.views import images as image_views
from slicemgr.store import pending
from slicemgr.store import tables as t

SHA = "5e" * 32
PROGRAM = b"\x7fELF\x02\x01" + bytes(12) + b"\x3e" + bytes(45)
ONLY_BASE = Needs(disk=False)


class Records:
    """A journal that writes at once to the rows of the service, as the hub does."""

    def __init__(self, service: Service, node: str) -> None:
        self._service, self._node = service, node

    def add(self, *updates: pending.Update) -> None:
        self._service.record(*updates, node=self._node)


class Host:
    """A node that joined, with a pool of its own."""

    def __init__(
        self, service: Service, authority: Authority, pool: Path, folder: Path, name: str, url: str, *, streams: bool
    ) -> None:
        store, key, self.name = service.store, requests.new_key(), name
        token, request = membership.add(store, {"name": name}, ADMIN).token, requests.new_request(key)
        joining.join(store, token, request, "127.0.0.1")
        signer.sign(store, authority)
        identity = joining.join(store, token, request, "127.0.0.1").identity
        own = folder / name
        (own / "membership").mkdir(parents=True)
        write_private(own / "membership" / KEY, requests.key_pem(key))
        write_private(own / "membership" / AUTHORITY, authority.certificate.encode())
        (pool / "bases").mkdir(parents=True)
        (pool / "slivers").mkdir()
        node = NodeConfig(name=name, pool=pool, state_dir=own / "state", run_dir=own / "run")
        self.config, self.pool = Config(node=node, exchange=ExchangeConfig(streams=streams)), Pool(pool)
        self.config.images_dir.mkdir(parents=True)
        journal, stop = cast(Journal, Records(service, name)), threading.Event()
        source = Source(Member(own / "membership", url, identity), stop, 0.01)
        self.importer = Importer(self.config, self.pool, journal, cast(Machines, None), stop, source)
        self.images = NodeImages(Node.open(self.config, service.store, journal, stop), self.importer, source)

    @property
    def base(self) -> Path:
        return names.base_dir(self.config.node.pool, SHA)

    def left(self) -> set[str]:
        return {one.name for one in (*self.base.parent.iterdir(), *self.config.images_dir.iterdir())}


class World:
    """The importing node has the base, the other one a sliver of the image."""

    def __init__(self, stack: ExitStack, folder: Path, pool: Path, *, streams: bool = True) -> None:
        self.service = service = stack.enter_context(Service(folder / "service"))
        authority = signer.prepare(service.store, service.config.authority_dir)
        url = stack.enter_context(served(service.app))
        self.first, self.second = (
            Host(service, authority, pool / name, folder, name, url, streams=streams) for name in ("first", "second")
        )
        for host in (self.first, self.second):
            stack.callback(host.importer.delete_files, SHA)
        service.add_image(SHA, "lab", boot=asdict(BootFacts()))
        service.create("exp", image="lab")
        with service.store.write() as c:
            c.execute(t.images.update().where(t.images.c.sha256 == SHA).values(base_size=100_000))
            c.execute(t.slivers.update().values(node="second"))
            c.execute(t.operations.update().values(kind="image-import", image=SHA))
            c.execute(t.operation_parts.update().values(node="first"))
        self.first.pool.create_subvolume(self.first.base)
        (self.first.base / "bin").mkdir()
        (self.first.base / "bin" / "sh").write_bytes(PROGRAM)
        self.first.pool.set_readonly(self.first.base, True)
        self.first.importer.note(SHA, TreeFacts("x86_64", "Debian 12", 100_000))

    def give(self) -> str:
        """Send the base; the sha256 of the stream that the service has recorded."""
        self.first.importer._give_base(SHA, lambda step, percent: None)
        with self.service.store.read() as c:
            return str(c.scalar(sa.select(t.images.c.stream_sha256).where(t.images.c.sha256 == SHA)))

    def fetch(self) -> None:
        self.second.images.push(SHA, lambda step, percent: None, ONLY_BASE)

    def states(self) -> dict[str, tuple[str, str, str]]:
        with self.service.store.read() as c:
            found = image_views.on_nodes(c, SHA)
        return {one["node"]: (one["state"], one["disk"], one["base"]) for one in found}


@pytest.fixture(scope="module")
def pools() -> Iterator[Path]:
    with in_box(f"bases-{demo.CLONE}"):
        yield Path("/var/lib/slicemgr/pool")


@pytest.fixture
def world(pools: Path, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack, tmp_path, pools / tmp_path.name)


def test_a_base_goes_from_one_node_to_another(world: World) -> None:
    digest = world.give()
    file = world.first.config.images_dir / f"{SHA}.base"
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (world.service.config.uploads_dir / f"{SHA}.base").read_bytes() == file.read_bytes()
    world.fetch()
    base = world.second.base
    assert (base / "bin" / "sh").read_bytes() == PROGRAM
    with pytest.raises(OSError, match="Read-only"):
        (base / "new").touch()
    assert world.second.left() == {SHA, f"{SHA}.json", f"{SHA}.base"}
    assert world.states() == {"first": ("ready", "ready", "ready"), "second": ("ready", "", "ready")}
    with world.service.store.write() as c:
        c.execute(t.slivers.delete())
    world.second.images.drop(SHA)
    assert world.second.left() == set() and set(world.states()) == {"first"}


def test_a_changed_stream_is_not_used(world: World) -> None:
    """Its sha256 is compared before anything reads it. The node then asks for the disk image, which is not there."""
    world.give()
    file = world.service.config.uploads_dir / f"{SHA}.base"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(Failed):
        world.fetch()
    assert world.second.left() == {f"{SHA}.fetch"}, "the empty beginning of the disk image"
    assert world.states()["second"] == ("failed", "", "")
    file.write_bytes(content)
    world.fetch()
    assert world.states()["second"] == ("ready", "", "ready"), "the control"


@pytest.mark.parametrize("streams", [True, False])
def test_a_node_that_refuses_streams_asks_for_the_disk_image(pools: Path, tmp_path: Path, streams: bool) -> None:
    """The service has the stream, which is right, but not the disk image."""
    with ExitStack() as stack:
        world = World(stack, tmp_path, pools / tmp_path.name, streams=streams)
        assert world.give() != "", "it makes streams nevertheless"
        if streams:
            world.fetch()
            assert world.states()["second"] == ("ready", "", "ready"), "the control"
            return
        with pytest.raises(Failed, match="503"):
            world.fetch()
        assert world.states()["second"] == ("failed", "", "")
        assert world.second.left() == {f"{SHA}.fetch"}, "the beginning of the disk image, nothing of the stream"


def test_a_base_that_the_service_does_not_take_stays_unknown(world: World) -> None:
    with world.service.store.write() as c:
        c.execute(t.operation_parts.update().values(state="done"))
    assert world.give() == "" and world.first.left() == {SHA, f"{SHA}.json"}
    with world.service.store.write() as c:
        c.execute(t.operation_parts.update().values(state="running"))
    assert world.give() != "", "the control"
