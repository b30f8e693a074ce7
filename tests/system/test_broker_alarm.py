"""A whole testbed while its broker takes no messages: RabbitMQ, PostgreSQL, hub and links, with a real alarm.

Nobody becomes silent because of it, no process starts again, and what was requested meanwhile is done afterwards. The
control is a hub that knows of no alarm.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, Service, config_in, databases_on
from broker_server import Broker
from centre_and_node import move
from postgres_server import Server
from test_hub import COMMAND, Centre, announce

import slicemgr.store
from slicemgr.agent.journal import Journal
from slicemgr.config import Config
from slicemgr.hub import broker_files, signer
from slicemgr.ipc import broker_state
from slicemgr.model import OperationState, Phase
from slicemgr.policy import broker as policy
from slicemgr.policy import liveness
from slicemgr.service.nodes import membership
from slicemgr.service.slices import slices
from slicemgr.store import pending, tables

pytestmark = pytest.mark.long
LONG = liveness.SILENT + 15  # seconds of an alarm; a node whose silence counted would be silent
NOTICED = "so no node can report"  # in the log of a hub that has asked the broker
HEEDLESS = f"""
from slicemgr.hub.alarms import Alarms
from slicemgr.ipc.flow import Flow
Alarms.look = Flow._block = lambda *_: None
{COMMAND}
"""


@pytest.fixture
def centre(tmp_path: Path, postgres: Server) -> Iterator[Centre]:
    with databases_on(postgres), Service(tmp_path / "service") as service:
        authority = signer.prepare(service.store, service.config.authority_dir)
        with Broker(authority) as broker:
            broker_files.write_client(authority, service.config.hub_dir, policy.HUB, broker.password)
            yield Centre(tmp_path, service, broker)


class Hosts:
    """Two nodes, `busy` and `idle`, whose links run."""

    def __init__(self, centre: Centre) -> None:
        self.centre = centre
        self.busy, self.idle = (self._join(name) for name in ("busy", "idle"))

    def _join(self, name: str) -> Config:
        folder = self.centre.folder / name
        folder.mkdir()
        config = config_in(folder)
        self.centre.join(config, name)
        announce(config)
        return config

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in ("busy", "idle"):
                settings = self.centre.write_settings(name, getattr(self, name))
                stack.enter_context(self.centre.running("link", settings))
            self.centre.eventually(lambda: self.states() == {"active"}, "both have joined")
            yield

    def states(self) -> set[str]:
        return {self.centre.node(name)["state"] for name in ("busy", "idle")}

    def liveness(self) -> set[str]:
        return {self.centre.node(name)["liveness"] for name in ("busy", "idle")}

    def beats(self) -> list[str]:
        return [self.centre.node(name)["beat_at"] for name in ("busy", "idle")]

    def report_again(self) -> None:
        before = self.beats()
        self.centre.eventually(lambda: all(map(str.__lt__, before, self.beats())), "reports flow")


def create(centre: Centre) -> str:
    """A slice on the busy node. Returns its operation."""
    operation = centre.service.create("exp")
    move(centre.service.store, "exp", "busy")
    return operation


def stop(centre: Centre) -> str:
    slices.act(centre.service.store, centre.service.config, "exp", "stop", ADMIN)
    with centre.service.store.read() as c:
        query = sa.select(tables.operations.c.id).where(tables.operations.c.kind == "stop")
        return str(c.scalars(query).one())


def state_of(centre: Centre, operation: str) -> str:
    with centre.service.store.read() as c:
        query = sa.select(tables.operations.c.state).where(tables.operations.c.id == operation)
        return str(c.scalar(query))


def carry_out(centre: Centre, config: Config, operation: str) -> None:
    """What the agent of a node does with an operation, once it has arrived."""
    with (
        slicemgr.store.open(config) as mirror,
        Journal(mirror, config.node.name, link=config.link_socket) as journal,
    ):

        def todo() -> list[pending.Operation]:
            with mirror.read() as c:
                return [one for one in pending.pending_operations(c, config.node.name) if one.id == operation]

        centre.eventually(todo, "the operation arrives")
        [sliver] = todo()[0].slivers
        key = "ssh-ed25519 " + "A" * 60
        journal.add(pending.OperationStarted(operation), pending.SliverSeen(sliver, Phase.RUNNING, "", key))
        journal.add(pending.SliverDone(operation, sliver, OperationState.DONE))
        journal.add(pending.OperationEnded(operation, OperationState.DONE))
        centre.eventually(lambda: state_of(centre, operation) == "done", "it has ended")


@contextlib.contextmanager
def alarm(centre: Centre) -> Iterator[None]:
    """The broker has too little memory."""
    centre.broker.control("set_vm_memory_high_watermark", "0.0001")
    try:
        yield
    finally:
        centre.broker.control("set_vm_memory_high_watermark", "0.4")


def log_of(centre: Centre, what: str) -> str:
    return (centre.folder / f"{what}.log").read_text()


def events(centre: Centre) -> set[str]:
    with centre.service.store.read() as c:
        return set(c.scalars(sa.select(tables.events.c.action)))


def test_an_alarm_only_delays(centre: Centre) -> None:
    hosts = Hosts(centre)
    with centre.running("hub", centre.settings), hosts.running():
        carry_out(centre, hosts.busy, create(centre))
        joined = len(log_of(centre, "link"))
        with alarm(centre):
            centre.eventually(lambda: NOTICED in log_of(centre, "hub"), "the hub notices")
            centre.eventually(lambda: "reports wait" in log_of(centre, "link"), "a link notices")
            state = broker_state.read(centre.service.config.broker_file)
            assert state is not None and state.alarms == ("memory",)
            operation = stop(centre)
            end = time.monotonic() + LONG
            while time.monotonic() < end:
                assert hosts.liveness() == {"alive"}, centre.log()
                assert state_of(centre, operation) == "queued"
                time.sleep(1)
        carry_out(centre, hosts.busy, operation)
        hosts.report_again()
        assert hosts.liveness() == {"alive"}
    assert "starts again" not in log_of(centre, "hub"), centre.log()
    assert "connect" not in log_of(centre, "link")[joined:], centre.log()
    assert not {one for one in events(centre) if one.startswith(("node silent", "node lost", "node reports"))}


def test_a_hub_that_starts_during_an_alarm(centre: Centre) -> None:
    """It has orders to send at once. Neither it nor a link that ends then waits for answers of the broker."""
    hosts = Hosts(centre)
    with contextlib.ExitStack() as stack:
        with centre.running("hub", centre.settings):
            stack.enter_context(hosts.running())
            carry_out(centre, hosts.busy, create(centre))
        operation = stop(centre)
        with alarm(centre):
            with centre.running("hub", centre.settings):
                centre.eventually(lambda: NOTICED in log_of(centre, "hub"), "the hub notices")
                membership.drain(centre.service.store, "idle", ADMIN)
            with centre.running("hub", centre.settings):
                centre.eventually(lambda: log_of(centre, "hub").count(NOTICED) == 2, "so does the next")
        with centre.running("hub", centre.settings):
            carry_out(centre, hosts.busy, operation)
            hosts.report_again()
    assert "starts again" not in log_of(centre, "hub"), centre.log()


def test_a_hub_that_heeds_no_alarm(centre: Centre) -> None:
    """The control: nodes become silent, and with an order to send the hub ends and starts again."""
    hosts = Hosts(centre)
    with centre.running("hub", centre.settings, HEEDLESS), hosts.running():
        carry_out(centre, hosts.busy, create(centre))
        with alarm(centre):
            centre.eventually(lambda: "silent" in hosts.liveness(), "silent without a fault of its own")
            stop(centre)
            centre.eventually(lambda: "starts again" in log_of(centre, "hub"), "it waits for the broker in vain")
