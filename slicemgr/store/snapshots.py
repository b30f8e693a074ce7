"""Snapshots for the agent: the desired ones of a sliver, and updates of their state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import SliverSnapshot
from slicemgr.store import tables as t
from slicemgr.store.updates import SnapshotGone, SnapshotMade


def of_slivers(c: Connection, node: str, ids: Collection[str] | None) -> dict[str, list[SliverSnapshot]]:
    """By sliver: of all the node's slivers, or of those among `ids`."""
    found: dict[str, list[SliverSnapshot]] = defaultdict(list)
    for row in c.execute(_of_slivers(ids is not None), {"node": node, "ids": list(ids or ())}):
        found[row.sliver].append(SliverSnapshot(row.snapshot, row.made_at is not None, row.size))
    return found


@cache
def _of_slivers(some: bool) -> sa.Select[Any]:
    """Kept, because making it takes longer than its execution."""
    n, s = t.sliver_snapshots.c, t.slivers.c
    query = sa.select(n.sliver, n.snapshot, n.made_at, n.size).join(t.slivers, s.id == n.sliver)
    query = query.where(s.node == sa.bindparam("node")).order_by(n.snapshot)
    return query.where(s.id.in_(sa.bindparam("ids", expanding=True))) if some else query


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
