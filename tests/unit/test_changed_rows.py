"""After which reports the hub compares the rows of a node, and what the node reads to apply a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from centre_and_node import LOCAL, NODE, World, move
from sqlalchemy.engine import Connection

from slicemgr.hub import mirrors
from slicemgr.link import mirror as received
from slicemgr.model import OperationState, Phase
from slicemgr.policy import messages, mirror
from slicemgr.store import observations, outbox, updates
from slicemgr.store.updates import Update

AMOUNTS = ("seconds", "running", "cpu", "charged", "disk", "net_in", "net_out", "io_read", "io_written")
HOUR = dict.fromkeys(AMOUNTS, 1)  # what a sliver used


class Created:
    """A slice of one sliver on the node, which has its rows."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.operation = world.service.create("exp")
        move(world.centre, "exp")
        world.settle()
        [self.sliver] = world.slivers(world.node)
        self.end = updates.OperationEnded(self.operation, OperationState.DONE)
        self.step = updates.StepSeen(self.operation, self.sliver, "root", OperationState.DONE)

    def report(self, *reported: Update) -> None:
        """Let the hub apply a report, and send what follows."""
        self.world.record(*reported)
        self.world.to_hub += self.world.link.due()
        while self.world.to_hub:
            self.world.deliver_to_hub()
        while self.world.to_node:  # that it was applied
            self.world.deliver_to_node()
        self.world.hub.step()

    def rows_after(self, update: Update) -> dict[str, Any]:
        """The rows of the node after an update was recorded at the centre."""
        with self.world.centre.write() as c:
            observations.record(c, [update], NODE)
        return self.world.wanted()


@pytest.fixture
def created(tmp_path: Path) -> Iterator[Created]:
    with World(tmp_path) as world:
        yield Created(world)


def test_which_updates_change_the_rows_of_a_node(created: Created) -> None:
    operation, sliver = created.operation, created.sliver
    own: dict[str, Update] = {
        "event": updates.EventSeen("agent", "repair", "exp"),
        "node-sample": updates.NodeSampled(300, 300, {}),
        "operation-started": updates.OperationStarted(operation),
        "sliver": updates.SliverSeen(sliver, Phase.RUNNING, host_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB"),
        "sliver-done": updates.SliverDone(operation, sliver, OperationState.DONE),
        "sliver-sample": updates.SliverSampled(sliver, 3600, HOUR),
        "step": created.step,
        "used": updates.SliverUsed(sliver, 1, 2, 3),
    }
    others: dict[str, Update] = {"operation-ended": created.end, "sliver-gone": updates.SliverGone(sliver)}
    assert {kind for kind in outbox.KINDS if not mirror.changes_rows([kind])} == own.keys()
    before = created.world.wanted()
    for kind, update in own.items():
        assert created.rows_after(update) == before, kind
    for kind, update in others.items():
        assert mirror.changes_rows(["step", kind])
        assert before != (before := created.rows_after(update)), kind


def test_the_hub_compares_the_rows_after_a_report_that_changes_them(
    created: Created, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, compare = [], mirrors.Mirrors._compare

    def note(self: mirrors.Mirrors, c: Connection, identity: str, node: mirrors._Node) -> None:
        compared.append(identity)
        compare(self, c, identity, node)

    monkeypatch.setattr(mirrors.Mirrors, "_compare", note)
    created.report(created.step)
    assert not compared
    created.report(created.end)
    assert len(compared) == 1


def test_a_change_reads_only_the_tables_that_it_is_about(created: Created) -> None:
    """A node has many rows, and a change is about few of them."""
    created.report(created.end)
    [rows] = [one for one in created.world.to_node if messages.kind(one) == messages.ROWS]
    seen: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(created.world.node.engine, "before_cursor_execute", note)
    assert received.receive(created.world.node, LOCAL, messages.parse_rows(rows))
    assert [one for one in seen if one.startswith("BEGIN")] == ["BEGIN IMMEDIATE"]
    read = {one.table for one in mirror.TABLES if any(f"FROM {one.table}" in text for text in seen)}
    assert read == {"operation_slivers", "operation_parts", "operations", "slivers"}, "the last one for the counters"
