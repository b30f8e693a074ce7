"""Snapshots as the JSON of the REST API, in two queries."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.service.views.formats import Json, when
from slicemgr.store import tables as t


def of_slice(c: Connection, slice_id: str, name: str | None = None) -> list[Json]:
    """The snapshots of a slice, the newest first, or the one with this name."""
    n, d, s, l = t.snapshots.c, t.sliver_snapshots.c, t.slivers.c, t.slices.c
    heads = sa.select(t.snapshots, l.name.label("slice_name"), l.project).join(t.slices, l.id == n.slice)
    heads = heads.where(n.slice == slice_id).order_by(n.created_at.desc(), n.id)
    if name is not None:
        heads = heads.where(n.name == name)
    parts = sa.select(d.snapshot, d.made_at, d.size, d.detail, s.idx).join(t.slivers, s.id == d.sliver)
    parts = parts.where(s.slice == slice_id).order_by(s.idx)
    found: dict[str, list[Row[*tuple[Any, ...]]]] = defaultdict(list)
    for row in c.execute(parts):
        found[row.snapshot].append(row)
    return [_snapshot(head, found[head.id]) for head in c.execute(heads)]


def _snapshot(head: Row[*tuple[Any, ...]], parts: list[Row[*tuple[Any, ...]]]) -> Json:
    made = [one.made_at for one in parts if one.made_at is not None]
    ready = len(made) == len(parts)
    return {
        "name": head.name,
        "slice": head.slice_name,
        "project": head.project,
        "state": "ready" if ready else "making",
        "user": head.user,
        "created_at": when(head.created_at),
        "made_at": when(max(made)) if ready and made else None,
        "size": sum(one.size for one in parts) if ready else None,
        "slivers": [
            {
                "index": one.idx,
                "made_at": when(one.made_at),
                "size": None if one.made_at is None else one.size,
                "detail": one.detail or None,
            }
            for one in parts
        ],
    }
