"""`slicemgr hub` and `slicemgr link` over a real broker and PostgreSQL: what a node reports arrives in the rows."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, Service, config_in, databases_on
from broker_server import HOST, MANAGEMENT, PORT, Broker
from centre_and_node import member, move
from postgres_server import Server

import slicemgr.store
from slicemgr import __version__, testbed_commands
from slicemgr.agent.journal import Journal
from slicemgr.certificates import requests
from slicemgr.certificates.private_files import write_private
from slicemgr.config import CENTRE, Config
from slicemgr.hub import broker_files, signer
from slicemgr.link import join as link
from slicemgr.model import OperationState, Phase
from slicemgr.policy import broker as policy
from slicemgr.service.nodes import joining, membership
from slicemgr.service.slices import slices
from slicemgr.service.views import nodes as node_views
from slicemgr.store import pending, tables

pytestmark = pytest.mark.long
WAIT = 180.0  # seconds; for a machine with much load
PLACE = f"{HOST}:{PORT}"
COMMAND = "from slicemgr.main import main; main()"


class Centre:
    """The service of a testbed with its broker."""

    def __init__(self, folder: Path, service: Service, broker: Broker) -> None:
        self.folder, self.service, self.broker = folder, service, broker
        self.settings = self.write_settings("centre", service.config)

    def write_settings(self, name: str, config: Config) -> Path:
        file = self.folder / f"{name}.toml"
        lines = [
            f'node = {{ state_dir = "{config.node.state_dir}", run_dir = "{config.node.run_dir}" }}',
            f'hub = {{ broker = "{PLACE}", management = "{HOST}:{MANAGEMENT}" }}',
            f"store.url = {json.dumps(config.store_url)}",
        ]
        file.write_text("\n".join(lines) + "\n")
        return file

    def join(self, config: Config, name: str) -> str:
        """Let a host join, as `slicemgr join` does it. Returns its identity."""
        store = self.service.store
        made, key = membership.add(store, {"name": name, "site": "tuebingen"}, ADMIN), requests.new_key()
        request = requests.new_request(key)
        joining.join(store, made.token, request, HOST)
        assert signer.sign(store, self.broker.authority) == 1
        found = joining.join(store, made.token, request, HOST)
        folder = config.membership_dir
        folder.mkdir(parents=True)
        centre = {"broker": PLACE, "node": name, "identity": found.identity}
        write_private(folder / link.KEY, requests.key_pem(key))
        write_private(folder / link.CERTIFICATE, found.certificate.encode())
        write_private(folder / link.AUTHORITY, self.broker.authority.certificate.encode())
        write_private(folder / CENTRE, json.dumps(centre).encode())
        return found.identity

    @contextlib.contextmanager
    def running(self, what: str, settings: Path, program: str = COMMAND) -> Iterator[subprocess.Popen[bytes]]:
        """`slicemgr WHAT`, in the network of the broker. program: the Python of the command."""
        words = [sys.executable, "-c", program, "--config", str(settings), what]
        with (self.folder / f"{what}.log").open("ab") as log, self.broker.inside():
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
            assert process.poll() is None, self.log()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=WAIT)
            finally:
                process.kill()
                process.wait()

    def node(self, name: str) -> dict[str, Any]:
        with self.service.store.read() as c:
            return node_views.nodes(c, self.service.config.network, name)[0]

    def sliver(self, sliver: str) -> tuple[str, ...]:
        """Its phase and host key, and the state of its first operation."""
        s, o, m = tables.slivers.c, tables.operations.c, tables.operation_slivers.c
        query = sa.select(s.phase, s.host_key, o.state).join(tables.operation_slivers, m.sliver == s.id)
        query = query.join(tables.operations, o.id == m.operation).where(s.id == sliver).order_by(o.created_at)
        with self.service.store.read() as c:
            return tuple(c.execute(query).one())

    def users(self) -> set[str]:
        return {one["name"] for one in self.broker.call("GET", "/users")[1]}

    def log(self) -> str:
        return "".join(f"{one.name}: {one.read_text()[-3000:]}" for one in self.folder.glob("*.log"))

    def eventually(self, check: Callable[[], object], what: str) -> None:
        end = time.monotonic() + WAIT
        while not check():
            assert time.monotonic() < end, f"{what}\n{self.log()}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Centre]:
    folder = tmp_path_factory.mktemp("centre")
    with databases_on(postgres), Service(folder / "service") as service:
        authority = signer.prepare(service.store, service.config.authority_dir)
        with Broker(authority) as broker:
            broker_files.write_client(authority, service.config.hub_dir, policy.HUB, broker.password)
            yield Centre(folder, service, broker)


@pytest.fixture
def host(tmp_path: Path) -> Config:
    """The settings of another machine."""
    return config_in(tmp_path)


def announce(config: Config) -> None:
    """What the agent of a host does at its start, in the database of a host that has joined."""
    testbed_commands.make_mirror(config)
    with slicemgr.store.open(config) as store, store.write() as c:
        pending.record(c, [pending.NodeSeen("node1", "192.0.2.77", {**FACTS, "cpus": 12})], "node1")


def test_what_a_node_reports_arrives(centre: Centre, host: Config) -> None:
    """Its life, address, version and capacity; also with another hub, and no more after its removal."""
    identity, settings = centre.join(host, "node7"), centre.write_settings("node7", host)
    announce(host)
    assert centre.node("node7")["state"] == "joined" and identity not in centre.users()
    with centre.running("link", settings):
        with centre.running("hub", centre.settings):
            centre.eventually(lambda: centre.node("node7")["state"] == "active", "reported")
            node = centre.node("node7")
            assert (node["address"], node["facts"]["cpus"]) == ("192.0.2.77", 12)
            assert node["version"] == __version__ and node["beat_at"]
            assert centre.node("node1")["address"] == "192.0.2.1", "the node of the centre with the same node.name"
            first = node["beat_at"]
            centre.eventually(lambda: centre.node("node7")["beat_at"] > first, "reports go on")
        before = centre.node("node7")["beat_at"]
        with centre.running("hub", centre.settings):
            centre.eventually(lambda: centre.node("node7")["beat_at"] > before, "the next hub stores them")
            membership.remove(centre.service.store, "node7", ADMIN)
            centre.eventually(lambda: identity not in centre.users(), "the right to connect ends")
    assert centre.service.count("links") == 0


def test_a_slice_on_a_node(centre: Centre, host: Config) -> None:
    """Its rows arrive in the node's database, and what the agent does there arrives at the centre."""
    centre.join(host, "node8")
    announce(host)
    settings, service = centre.write_settings("node8", host), centre.service
    operation = service.create("far")
    move(service.store, "far", "node8")
    key = "ssh-ed25519 " + "A" * 60
    with (
        centre.running("hub", centre.settings),
        centre.running("link", settings),
        slicemgr.store.open(host) as mirror,
        Journal(mirror, host.node.name, link=host.link_socket) as journal,
    ):

        def todo() -> list[pending.Operation]:
            with mirror.read() as c:
                return pending.pending_operations(c, host.node.name)

        centre.eventually(todo, "the operation arrives")
        with mirror.read() as c:
            [row] = pending.slivers(c, host.node.name)
        [one] = todo()
        assert one.id == operation and one.slivers == (row.sliver.id,) and row.sliver.slice_name == "far"
        journal.add(pending.OperationStarted(one.id), pending.SliverSeen(row.sliver.id, Phase.RUNNING, "", key))
        journal.add(pending.SliverDone(one.id, row.sliver.id, OperationState.DONE))
        journal.add(pending.OperationEnded(one.id, OperationState.DONE))
        centre.eventually(lambda: centre.sliver(row.sliver.id) == ("running", key, "done"), "the updates arrive")
        centre.eventually(lambda: not todo(), "what has ended leaves the mirror")
        slices.act(service.store, service.config, "far", "stop", ADMIN)
        centre.eventually(lambda: [one.kind for one in todo()] == ["stop"], "the next operation arrives")


def test_the_hub_reads_the_reports_of_more_nodes_than_a_connection_has_channels(centre: Centre) -> None:
    more = [f"node-more{number}" for number in range(2 * policy.limits()["max-channels"])]
    for identity in more:
        member(centre.service.store, identity, identity)

    def read() -> set[str]:
        found = centre.broker.call("GET", f"/queues/{policy.VHOST}?columns=name,consumers")[1]
        return {policy.sender(one["name"]) for one in found if one.get("consumers") and one["name"].startswith("from.")}

    with centre.running("hub", centre.settings):
        centre.eventually(lambda: set(more) <= read(), "all are read")
        with centre.service.store.write() as c:
            c.execute(tables.nodes.delete().where(tables.nodes.c.identity == more[0]))
        centre.eventually(lambda: more[0] not in read() | centre.users(), "it was removed")
        assert set(more[1:]) <= read(), "the others are still read"
