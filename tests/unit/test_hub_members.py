"""The hub admits nodes at the broker, however slow or incomplete its answers are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from bare_service import Service
from centre_and_node import member

from slicemgr.errors import Failed
from slicemgr.hub.management import Management
from slicemgr.hub.members import Members
from slicemgr.policy import broker
from slicemgr.policy.broker import Call
from slicemgr.store import tables as t

A, B, C = "node-a", "node-b", "node-c"


class Broker(Management):
    """In memory. broken: the number of requests after which none is answered."""

    def __init__(self) -> None:
        self.names: set[str] = {broker.HUB}
        self.declared: set[str] = set()
        self.calls: list[str] = []
        self.broken = 1000

    def _answer(self, what: str) -> None:
        self.broken -= 1
        if self.broken < 0:
            raise Failed("the management API of the broker does not answer")
        self.calls.append(what)

    def users(self) -> set[str]:
        self._answer("users")
        return set(self.names)

    def queues(self) -> set[str]:
        self._answer("queues")
        return set(self.declared)

    def apply(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self._answer(f"{call.method} {call.path}")
            if call.body is not None:
                self.names |= {one["name"] for one in call.body.get("users", ())}
                self.declared |= {one["name"] for one in call.body.get("queues", ())}
            else:
                self.names.discard(call.path.removeprefix("/users/"))

    def give(self, identity: str) -> None:
        """What an earlier hub gave to a node."""
        self.names.add(identity)
        self.declared |= {broker.orders(identity), broker.reports(identity)}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        for identity in (A, B, C):
            member(made.store, identity.removeprefix("node-"), identity)
        yield made


@pytest.fixture
def api() -> Broker:
    return Broker()


def test_nodes_that_have_everything_do_not_wait(service: Service, api: Broker) -> None:
    """Also those of which the last hub gave only a part get everything, in two requests for all."""
    api.give(A)
    api.names.add(B)
    made = Members(service.store, api)
    api.broken = 2
    with pytest.raises(Failed):
        made.compare()
    assert made.admitted == {A}
    api.broken = 1000
    made.compare()
    assert made.admitted == {A, B, C} and broker.reports(B) in api.declared
    assert api.calls == ["users", "queues", "POST /definitions", "POST /definitions"]
    made.compare()
    assert len(api.calls) == 4, "nothing to do"


def test_a_node_that_was_removed_is_expelled_once_its_queue_is_not_read(service: Service, api: Broker) -> None:
    made = Members(service.store, api)
    made.compare()
    made.listening = {A, B, C}
    with service.store.write() as c:
        c.execute(t.certificates.update().where(t.certificates.c.identity == A).values(revoked_at=sa.func.now()))
    for _ in range(2):
        made.compare()
        assert made.admitted == {B, C} and A in api.names, "its queue is still read"
    made.listening = {B, C}
    made.compare()
    assert api.names == {broker.HUB, B, C}


def test_a_failure_leaves_the_others_connected(service: Service, api: Broker) -> None:
    made = Members(service.store, api)
    made.compare()
    member(service.store, "d", "node-d")
    api.broken = 0
    with pytest.raises(Failed):
        made.compare()
    assert made.admitted == {A, B, C}
    api.broken = 1000
    made.compare()
    assert made.admitted == {A, B, C, "node-d"}


def test_users_of_unknown_nodes_and_those_that_the_broker_forgot(service: Service, api: Broker) -> None:
    now = [0.0]
    made = Members(service.store, api, lambda: now[0])
    made.compare()
    api.names |= {"node-x", "other"}
    api.names.discard(A)
    made.compare()
    assert "node-x" in api.names, "the users are listed again after a minute only"
    now[0] = 61.0
    made.compare()
    assert api.names == {broker.HUB, "other", A, B, C}
