"""The rows of many nodes: comparisons do not keep the hub from its other work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from bare_service import Service
from centre_and_node import member
from sqlalchemy.engine import Connection

from slicemgr.hub import mirrors, process
from slicemgr.hub.mirrors import Mirrors
from slicemgr.policy import messages
from slicemgr.policy.messages import Beat
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

NODES = [f"node-{number}" for number in range(6)]


class Hub:
    """now: seconds; each message takes `slow` of them. sent: to whom messages went."""

    def __init__(self, service: Service) -> None:
        self.now, self.slow, self.store = 1000.0, 0.0, service.store
        self.sent: list[str] = []
        self.service = service
        self.revisions: dict[str, tuple[str, int]] = dict.fromkeys(NODES, ("", 0))
        self.mirrors = Mirrors(service.store, self.publish, lambda: self.now)

    def publish(self, identity: str, body: bytes) -> bool:
        self.now += self.slow
        self.sent.append(identity)
        found = messages.parse_rows(body)
        self.revisions[identity] = (found.after, found.number)
        return True

    def beats(self) -> None:
        for identity, (revision, received) in self.revisions.items():
            facts = ("0" * 16, 1, "1", "", 0.0, None)
            self.mirrors.heard(identity, Beat(*facts, mirror=1, revision=revision, received=received))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Service(tmp_path) as service:
        for identity in NODES:
            member(service.store, identity, identity)
        with service.store.write() as c:
            c.execute(t.nodes.update().values(agent_seen_at=utcnow()))
        yield Hub(service)


def test_reports_are_answered_between_the_comparisons_of_many_nodes(hub: Hub) -> None:
    hub.slow = mirrors._AT_ONCE * 0.6
    hub.beats()
    rounds = []
    while len(hub.sent) < len(NODES):
        before = len(hub.sent)
        hub.mirrors.step(woken=True)
        rounds.append(len(hub.sent) - before)
    assert rounds == [2, 2, 2]
    assert sorted(hub.sent) == NODES, "each has its turn"


def test_without_the_limit_all_are_compared_at_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(mirrors, "_AT_ONCE", 1e9)
    hub.slow = 0.12
    hub.beats()
    hub.mirrors.step(woken=True)
    assert sorted(hub.sent) == NODES


def work(hub: Hub) -> list[str]:
    """The nodes whose rows are compared until nothing is due."""
    compared: list[str] = []
    compare = hub.mirrors._compare

    def note(c: Connection, identity: str, node: mirrors._Node) -> None:
        compared.append(identity)
        compare(c, identity, node)

    with mock.patch.object(hub.mirrors, "_compare", note):
        for _ in range(5):
            hub.now += 1.0
            hub.mirrors.step(woken=True)
            hub.beats()
    return compared


def test_nodes_that_work_are_compared_when_their_operations_change(hub: Hub) -> None:
    """Comparing all of them each second would leave no time for reports where many create slivers."""
    hub.beats()
    work(hub)
    hub.service.create("exp", node=NODES[0])
    assert set(work(hub)) == {NODES[0]} and work(hub) == []
    hub.service.create("other", node=NODES[0])
    hub.service.create("more", node=NODES[1])
    assert set(work(hub)) == set(NODES[:2]) and work(hub) == []


def test_the_rows_of_a_node_that_returns_are_compared(hub: Hub) -> None:
    """However long comparisons take: its slivers may have been given to others."""
    hub.slow = 5.0
    hub.beats()
    while any(node.due for node in hub.mirrors._nodes.values()):
        work(hub)
    hub.slow = 0.0
    away = hub.revisions.pop(NODES[0])
    for _ in range(6):
        assert work(hub) == []
    hub.revisions[NODES[0]] = away
    hub.beats()
    assert set(work(hub)) == {NODES[0]}


def test_a_node_that_has_its_rows_is_not_compared_again(hub: Hub) -> None:
    """It was compared for the message that it answers."""
    hub.beats()
    assert sorted(work(hub)) == NODES


def test_what_changes_before_the_answer_is_sent_after_it(hub: Hub) -> None:
    hub.beats()
    hub.mirrors.step(woken=True)
    hub.service.create("exp", node=NODES[0])
    hub.mirrors.step(woken=True)
    assert hub.sent.count(NODES[0]) == 1
    hub.beats()
    hub.mirrors.step(woken=True)
    assert hub.sent.count(NODES[0]) == 2


def known_and_slow(hub: Hub) -> None:
    """Each node has its rows and is due without a cause, and one comparison takes all the time of a step."""
    hub.beats()
    work(hub)
    for node in hub.mirrors._nodes.values():
        node.due = True
    compare = hub.mirrors._compare

    def slow(c: Connection, identity: str, node: mirrors._Node) -> None:
        hub.sent.append(f"compared {identity}")
        hub.now += mirrors._AT_ONCE * 2
        compare(c, identity, node)

    hub.mirrors._compare = slow  # type: ignore[method-assign]
    hub.sent.clear()


def test_a_create_is_sent_before_comparisons_that_nobody_waits_for(hub: Hub) -> None:
    """Thousands of those are due after the start of the hub, and take minutes."""
    known_and_slow(hub)
    hub.mirrors.step(woken=True)
    hub.service.create("exp", node=NODES[-1])
    hub.mirrors.step(woken=True)
    assert hub.sent == [f"compared {NODES[0]}", f"compared {NODES[-1]}", NODES[-1]]


def test_others_are_compared_while_a_node_reports_without_end(hub: Hub) -> None:
    known_and_slow(hub)
    for _ in range(24):
        hub.mirrors.changed(NODES[0])
        hub.mirrors.step(woken=True)
    assert {one.removeprefix("compared ") for one in hub.sent} == set(NODES)


@pytest.mark.parametrize(("slow", "compared"), [(0.0, len(NODES)), (5.0, 0)])
def test_comparisons_without_a_cause_have_a_share_of_the_time(hub: Hub, slow: float, compared: int) -> None:
    """slow: seconds of a comparison; if they are long, a node waits longer than half a minute for the next one."""
    hub.slow = slow
    hub.beats()
    while any(node.due for node in hub.mirrors._nodes.values()):
        hub.mirrors.step(woken=True)
        hub.beats()
    for _ in range(2):
        hub.now += mirrors._EVERY / 2 + 1
        hub.beats()
    assert sum(node.due for node in hub.mirrors._nodes.values()) == compared


def test_a_node_that_refuses_its_rows_does_not_get_them_without_end(hub: Hub) -> None:
    """After a request of an admin; the first message is sent at once."""
    hub.beats()
    hub.mirrors.step(woken=True)
    with hub.store.write() as c:
        row = {"incarnation": "1", "sequence": 1, "version": "1", "beat_at": utcnow(), "mirror": 1}
        c.execute(t.links.insert().values(identity=NODES[0], resync_at=utcnow(), **row))
    sent = len(hub.sent)
    for _ in range(20):
        hub.revisions[NODES[0]] = ("", hub.revisions[NODES[0]][1])
        hub.beats()
        hub.mirrors.step(woken=True)
        hub.now += 0.25
    assert hub.sent[sent:] == [NODES[0]]
    hub.now += mirrors._WHOLE
    hub.mirrors.step(woken=True)
    assert hub.sent[sent:] == [NODES[0]] * 2


def test_the_hub_waits_for_answers_only(hub: Hub) -> None:
    assert not any(hub.mirrors.awaits(one) for one in NODES)
    hub.beats()
    hub.mirrors.step(woken=True)
    assert all(hub.mirrors.awaits(one) for one in NODES), "it has sent rows"
    hub.beats()
    assert not any(hub.mirrors.awaits(one) for one in NODES)


def test_an_answer_is_urgent_and_another_beat_is_not(hub: Hub) -> None:
    """Beats wait for others, but the next change of the rows of a node waits for its answer."""
    made: Any = process.Hub(hub.store, *([None] * 3), lambda: None)  # type: ignore[call-arg,arg-type]
    made._awaits = hub.mirrors.awaits
    beat = SimpleNamespace(body=messages.beat(Beat("0" * 16, 1, "1", "", 0.0, None)).encode())
    hub.beats()
    made._receive(NODES[0], beat)
    assert not made._urgent
    hub.mirrors.step(woken=True)
    made._receive(NODES[0], beat)
    assert made._urgent
