"""Every kind of report in a batch: the agent's writer puts all received reports into one transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_service import config_in, fresh_database

import slicemgr.store
from slicemgr.model import ImageState, NodeImageState, OperationState, Phase
from slicemgr.store import incarnation, pending
from slicemgr.store.updates import BaseStreamMade, ImageOnNode, NodeSampled, SliverSampled, SliverUsed, utcnow

pytestmark = pytest.mark.usefixtures("both_stores")

UPDATES: list[pending.Update] = [
    pending.SliverSeen("a-0", Phase.RUNNING, "", "ssh-ed25519 AAAA"),
    pending.SliverGone("a-0"),
    pending.StepSeen("op", "a-0", "root", OperationState.RUNNING),
    pending.SliverDone("op", "a-0", OperationState.DONE),
    pending.OperationStarted("op"),
    pending.OperationEnded("op", OperationState.DONE),
    SliverUsed("a-0", 1_700_000_000, 1, 2, 3),
    SliverSampled("a-0", 3600, {"seconds": 1.0}),
    NodeSampled(300, 300, {"seconds": 1.0}),
    pending.ImageSeen("00", ImageState.READY),
    ImageOnNode("00", "node", NodeImageState.FAILED, "no room"),
    BaseStreamMade("00", "11", 1, 1),
    pending.ImageGone("00"),
    pending.NodeSeen("node", "192.0.2.1", {"cpus": 2}),
    pending.EventSeen("agent", "repair"),
    pending.SnapshotMade("a-0", "1", 7),
    pending.SnapshotGone("1"),
    pending.HostSeen("node", (pending.UnclaimedSliver("a-0", "stopped", None, ()),)),
]


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: type(update).__name__)
def test_two_of_a_kind_are_written(update: pending.Update, tmp_path: Path) -> None:
    config = config_in(tmp_path)
    fresh_database(config)
    with slicemgr.store.open(config) as store:
        with store.write() as connection:
            if isinstance(update, pending.HostSeen):
                incarnation.begin(connection, utcnow(), utcnow())
            pending.record(connection, [update, update], "node1")
        with store.read() as connection:
            assert pending.slivers(connection, "node") == []


def test_the_list_above_is_complete() -> None:
    assert {type(one) for one in UPDATES} == set(pending.Update.__args__)
