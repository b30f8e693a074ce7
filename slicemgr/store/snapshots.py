"""Snapshots for the agent: the desired ones of a sliver, and updates of their state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import SliverSnapshot
from slicemgr.store import tables as t
from slicemgr.store.updates import SnapshotGone, SnapshotMade


def of_slivers(c: Connection, node: str, ids: Collection[str] | None) -> dict[str, list[SliverSnapshot]]:
    """By sliver: of all the node's slivers, or of those among `ids`."""
    n, s = t.sliver_snapshots.c, t.slivers.c
    query = sa.select(n.sliver, n.snapshot, n.made_at, n.size).join(t.slivers, s.id == n.sliver).where(s.node == node)
    if ids is not None:
        query = query.where(s.id.in_(ids))
    found: dict[str, list[SliverSnapshot]] = defaultdict(list)
    for row in c.execute(query.order_by(n.snapshot)):
        found[row.sliver].append(SliverSnapshot(row.snapshot, row.made_at is not None, row.size))
    return found


def made(c: Connection, updates: Sequence[SnapshotMade]) -> None:
    n = t.sliver_snapshots.c
    statement = (
        t.sliver_snapshots.update()
        .where(n.snapshot == sa.bindparam("b_snapshot"), n.sliver == sa.bindparam("b_sliver"))
        .values(made_at=sa.bindparam("b_at"), size=sa.bindparam("b_size"), detail=sa.bindparam("b_detail"))
    )
    rows = [
        {"b_snapshot": u.snapshot, "b_sliver": u.sliver, "b_at": u.at, "b_size": u.size, "b_detail": u.detail}
        for u in updates
    ]
    c.execute(statement, rows)


def gone(c: Connection, updates: Sequence[SnapshotGone]) -> None:
    c.execute(t.snapshots.delete().where(t.snapshots.c.id.in_([u.snapshot for u in updates])))
