"""The rows of many nodes: comparisons do not keep the hub from its other work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_service import Service
from centre_and_node import member

from slicemgr.hub import mirrors
from slicemgr.hub.mirrors import Mirrors
from slicemgr.policy import messages
from slicemgr.policy.messages import Beat

NODES = [f"node-{number}" for number in range(6)]


class Hub:
    """now: seconds; each message takes `slow` of them. sent: to whom messages went."""

    def __init__(self, service: Service) -> None:
        self.now, self.slow = 1000.0, 0.0
        self.sent: list[str] = []
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


@pytest.mark.parametrize(("slow", "compared"), [(0.0, len(NODES)), (5.0, 0)])
def test_comparisons_without_a_cause_have_a_share_of_the_time(hub: Hub, slow: float, compared: int) -> None:
    """slow: seconds of a comparison; if they are long, a node waits longer than half a minute for the next one."""
    hub.slow = slow
    hub.beats()
    while any(node.due for node in hub.mirrors._nodes.values()):
        hub.mirrors.step(woken=True)
        hub.beats()
    hub.now += mirrors._EVERY + 1
    hub.beats()
    assert sum(node.due for node in hub.mirrors._nodes.values()) == compared
