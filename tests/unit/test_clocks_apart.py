"""The clocks of a node and of the centre are an hour apart, or the centre's is set: what depends on times works on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from centre_and_node import IDENTITY, LOCAL, NODE, World
from cryptography import x509
from test_remote_samples import Sampled

from slicemgr.agent import questions
from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.hub.allowance import Allowance
from slicemgr.link import renewal
from slicemgr.link.join import CERTIFICATE
from slicemgr.model import OperationState, Phase
from slicemgr.policy.liveness import Liveness
from slicemgr.service.nodes import nodes
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import remote_samples
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import SliverUsed, Update, utcnow

HOUR = 3600
real = utcnow
both = pytest.mark.parametrize("ahead", [-HOUR, HOUR])


@contextmanager
def clock(ahead: int) -> Iterator[None]:
    """What runs inside has a clock that is so many seconds ahead."""
    seconds = time.time

    def moved() -> datetime:
        return real() + timedelta(seconds=ahead)

    users = [one for name, one in sys.modules.items() if name.startswith("slicemgr.")]
    with mock.patch.multiple(time, time=lambda: seconds() + ahead):
        patches = [mock.patch.object(one, "utcnow", moved) for one in users if getattr(one, "utcnow", None) is real]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()


class Apart(World):
    """The clock of the node is `ahead` seconds ahead."""

    ahead = 0

    def work(self) -> None:
        with clock(self.ahead):
            self.to_hub += list(self.link.due())
        self.hub.step(woken=True)

    def deliver_to_node(self, index: int = 0) -> None:
        with clock(self.ahead):
            super().deliver_to_node(index)

    def record(self, *updates: Update) -> None:
        with clock(self.ahead):
            super().record(*updates)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Apart]:
    with Apart(tmp_path) as made:
        made.settle(20.0)
        with made.centre.write() as c:
            c.execute(t.nodes.update().values(agent_seen_at=utcnow()))
        yield made


def shown(world: World) -> dict[str, Any]:
    with world.centre.read() as c:
        return node_views.nodes(c, world.service.config.network, NODE)[0]


def row(world: World) -> Any:
    with world.centre.read() as c:
        return c.execute(t.nodes.select().where(t.nodes.c.name == NODE)).one()


@both
def test_a_node_works_and_its_times_are_those_of_the_centre(world: Apart, ahead: int) -> None:
    world.ahead = ahead
    made = world.service.create("exp", node=NODE)
    world.settle(20.0)
    assert world.mirrored() == world.wanted()
    [sliver] = world.slivers(world.node)
    there = real() + timedelta(seconds=ahead)
    world.record(
        pending.NodeSeen(LOCAL, "192.0.2.7", {"cpus": 4}),
        pending.OperationStarted(made, there),
        pending.SliverSeen(sliver, Phase.RUNNING),
        SliverUsed(sliver, int(there.timestamp()), 5, 6, 7),
        pending.SliverDone(made, sliver, OperationState.DONE),
        pending.OperationEnded(made, OperationState.DONE, at=there),
    )
    world.settle(60.0)
    found = row(world)
    assert abs(real() - found.agent_seen_at) < timedelta(minutes=1), "by the clock of the centre"
    assert found.silent_since is None and shown(world)["liveness"] is Liveness.ALIVE
    with world.centre.read() as c:
        operation = c.execute(t.operations.select().where(t.operations.c.id == made)).one()
        used = c.scalar(sa.select(t.slivers.c.usage_at).where(t.slivers.c.id == sliver))
    assert operation.state == "done" and operation.started_at <= operation.finished_at <= real()
    assert used is not None and used <= time.time()
    assert world.slivers(world.centre) == {sliver: "running"}


@both
def test_no_lease_ends_on_a_node(world: Apart, ahead: int) -> None:
    world.ahead = ahead
    world.service.create("exp", node=NODE, lease="30m")
    world.settle(20.0)
    end = world.scalar(world.node, sa.select(t.slices.c.expires_at))
    assert end - real() > timedelta(days=365_000)


@both
def test_a_certificate_is_valid_by_both_clocks(tmp_path: Path, ahead: int) -> None:
    authority = Authority.create(tmp_path / "authority", real())
    key = requests.new_key()
    made = authority.node(IDENTITY, key.public_key(), real())
    server = authority.server(["192.0.2.1"], key.public_key(), real())
    by_node = real() + timedelta(seconds=ahead)
    for pem in (authority.certificate, made.certificate, server.certificate):
        found = x509.load_pem_x509_certificate(pem.encode())
        assert found.not_valid_before_utc < by_node < found.not_valid_after_utc
    (tmp_path / CERTIFICATE).write_text(made.certificate)
    assert not renewal.is_due(tmp_path, by_node)


@both
def test_samples_have_the_times_of_the_centre(tmp_path: Path, ahead: int) -> None:
    """Control: a question of an earlier version, without the time of the service."""
    with World(tmp_path) as world:
        sampled = Sampled(world)
        [asked] = sampled.asked()
        now = asked.question["until"]

        def answer(question: dict[str, Any]) -> list[int]:
            with world.node.read() as c:
                tables = questions.answer(c, LOCAL, question, now + ahead)
            return [one.at for one in remote_samples.checked(tables, asked).slivers]

        before = answer({**asked.question})
        assert before
        with world.node.write() as c:
            for table in (t.samples, t.node_samples):
                c.execute(table.update().values(at=table.c.at + ahead))
        assert answer({**asked.question, "now": now}) == before
        assert answer({**asked.question}) == [], "control"


@both
def test_the_clock_of_the_centre_is_set(world: Apart, ahead: int) -> None:
    """No node is silent because of that, and placement uses it after its next beat."""
    with clock(ahead):
        world.settle(40.0)
        assert row(world).silent_since is None
        world.record(pending.NodeSeen(LOCAL, "192.0.2.7", {"cpus": 4}))
        world.settle(40.0)
        with world.centre.read() as c:
            candidate = nodes.find(c, world.service.config, NODE).candidate
    assert candidate.silent is not None and abs(candidate.silent) < timedelta(minutes=1)


@both
def test_events_of_a_node_are_recorded_after_the_clock_was_set(ahead: int) -> None:
    allowance = Allowance(10)
    found: list[Update] = [pending.EventSeen("agent", "repair", detail="x")]
    assert len(allowance.of(NODE, found)) == 1
    with clock(ahead):
        assert len(allowance.of(NODE, found * 20)) == 9
