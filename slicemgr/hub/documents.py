"""Read the rows of one node as the document that its mirror shall have. See policy.mirror."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import OperationState
from slicemgr.policy import mirror
from slicemgr.policy.mirror import Document, Row
from slicemgr.store import rows
from slicemgr.store import tables as t

_PENDING = (OperationState.QUEUED, OperationState.RUNNING)
Chosen = Mapping[str, sa.ColumnElement[bool]]


def document(c: Connection, node: str) -> Document:
    """All rows of a node, from one snapshot of the database."""
    chosen = _chosen(node)
    return {one.table: _read(c, one, chosen[one.table]) for one in mirror.TABLES}


def busy(c: Connection) -> set[str]:
    """The nodes with operations that have not ended."""
    p = t.operation_parts.c
    return set(c.scalars(sa.select(p.node).where(p.state.in_(_PENDING)).distinct()))


def _chosen(node: str) -> Chosen:
    """By table: which rows the node has."""
    s, l, n, o, p, m = (
        *(t.slivers.c, t.slices.c, t.sliver_snapshots.c),
        *(t.operations.c, t.operation_parts.c, t.operation_slivers.c),
    )
    mine = sa.select(s.slice).where(s.node == node)
    slivers = sa.select(s.id).where(s.node == node)
    part = sa.and_(p.node == node, p.state.in_(_PENDING))
    pending = o.id.in_(sa.select(p.operation).where(part))

    def of_slices(column: sa.Column[Any]) -> sa.Select[Any]:
        return sa.select(column).where(l.id.in_(mine))

    images = sa.or_(t.images.c.sha256.in_(of_slices(l.image)), t.images.c.sha256.in_(sa.select(o.image).where(pending)))
    return {
        "users": t.users.c.name.in_(of_slices(l.owner)),
        "projects": t.projects.c.name.in_(of_slices(l.project)),
        "images": images,
        "slices": l.id.in_(mine),
        "slivers": s.node == node,
        "snapshots": t.snapshots.c.id.in_(sa.select(n.snapshot).where(n.sliver.in_(slivers))),
        "sliver_snapshots": n.sliver.in_(slivers),
        "operations": pending,
        "operation_parts": part,
        "operation_slivers": sa.and_(m.node == node, m.operation.in_(sa.select(p.operation).where(part))),
    }


def _read(c: Connection, one: mirror.Mirrored, condition: sa.ColumnElement[bool]) -> list[Row]:
    table = t.metadata.tables[one.table]
    query = sa.select(*(table.c[name] for name in one.columns)).where(condition)
    return list(_plain(one.columns, c.execute(query)))


def _plain(names: tuple[str, ...], found: Iterable[Any]) -> Iterable[dict[str, Any]]:
    for row in found:
        yield {name: rows.plain(value) for name, value in zip(names, row, strict=True)}
