"""What this node runs, for the review after a restore of the centre: the slivers of its database with their records."""

from __future__ import annotations

import json
from typing import Any

from slicemgr import sliver_record
from slicemgr.model import Desired, Phase
from slicemgr.policy.messages import LARGEST_UPDATES, MOST_SLIVERS, Inventory
from slicemgr.store import Store, pending
from slicemgr.store.pending import SliverRow

_RECORDS = LARGEST_UPDATES // 2  # bytes; the other half is for all that is not a record
_STATES = {Phase.RUNNING: "running", Phase.PAUSED: "paused"}


def take(store: Store, node: str) -> Inventory:
    """The slivers of slices that are not to be deleted. node: the name that this node has here.

    A sliver has no record where the message would become too large with it.
    """
    with store.read() as c:
        rows = [row for row in pending.slivers(c, node) if _counts(row)]
    found, left = [], _RECORDS
    for row in rows[:MOST_SLIVERS]:
        record = sliver_record.to_json(row.sliver)
        left -= len(json.dumps(record))
        found.append(_entry(row, record if left >= 0 else None))
    return Inventory(tuple(found))


def _counts(row: SliverRow) -> bool:
    return row.sliver.desired is not Desired.ABSENT and not row.sliver.spare


def _entry(row: SliverRow, record: dict[str, Any] | None) -> dict[str, Any]:
    one = row.sliver
    return {
        "sliver": one.id,
        "state": _STATES.get(row.phase, "stopped"),
        "desired": one.desired,
        "generation": one.generation,
        "epoch": one.epoch,
        "origin": one.origin,
        "inherited": one.inherited,
        "disk": one.limits.disk,
        "snapshots": [snapshot.id for snapshot in one.snapshots if snapshot.made],
        "record": record,
    }
