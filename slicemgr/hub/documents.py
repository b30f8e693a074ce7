"""Read the rows of one node as the document that its mirror shall have. See policy.mirror."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.policy import mirror
from slicemgr.policy.mirror import Document, Row
from slicemgr.store import operation_parts, rows
from slicemgr.store import tables as t
from slicemgr.store.dialect import among


def document(c: Connection, node: str) -> Document:
    """All rows of a node, from one snapshot of the database."""
    found = {name: _read(c, name, condition) for name, condition in _of_node(node).items()}
    # By name, since a condition on the rows of a node for each of these tables would take most of the time.
    found["slices"] = _named(c, "slices", {row["slice"] for row in found["slivers"]} - {None})
    snapshots = {row["snapshot"] for row in found["sliver_snapshots"]}
    images = {row["image"] for row in (*found["slices"], *found["spares"], *found["operations"])}
    found["users"] = _named(c, "users", {row["owner"] for row in found["slices"]})
    found["projects"] = _named(c, "projects", {row["project"] for row in found["slices"]})
    found["images"] = _named(c, "images", images)
    found["snapshots"] = _named(c, "snapshots", snapshots)
    return {one.table: found[one.table] for one in mirror.TABLES}


def busy(c: Connection) -> dict[str, set[str]]:
    """The operations that have not ended, of each node with a connection, by its identity."""
    p, n = t.operation_parts.c, t.nodes.c
    query = sa.select(n.identity, p.operation).join(t.operation_parts, p.node == n.name)
    found: dict[str, set[str]] = defaultdict(set)
    for identity, operation in c.execute(query.where(p.state.in_(operation_parts.UNENDED), n.identity.is_not(None))):
        found[identity].add(operation)
    return found


def _of_node(node: str) -> Mapping[str, sa.ColumnElement[bool]]:
    """By table: which rows the node has."""
    s, n, o, p, m = t.slivers.c, t.sliver_snapshots.c, t.operations.c, t.operation_parts.c, t.operation_slivers.c
    mine = sa.select(s.id).where(s.node == node)
    part = operation_parts.of_node(node)
    pending = sa.select(p.operation).where(part)
    return {
        "slivers": s.node == node,
        "spares": t.spares.c.sliver.in_(mine),
        "sliver_snapshots": n.sliver.in_(mine),
        "operations": o.id.in_(pending),
        "operation_parts": part,
        "operation_slivers": sa.and_(m.node == node, m.operation.in_(pending)),
    }


def _named(c: Connection, name: str, keys: Collection[str]) -> list[Row]:
    key = t.metadata.tables[name].c[mirror.BY_NAME[name].key[0]]
    return _read(c, name, among(c, key, sorted(keys))) if keys else []


def _read(c: Connection, name: str, condition: sa.ColumnElement[bool]) -> list[Row]:
    one, table = mirror.BY_NAME[name], t.metadata.tables[name]
    query = sa.select(*(table.c[column] for column in one.columns)).where(condition)
    return list(_plain(one.columns, c.execute(query)))


def _plain(names: tuple[str, ...], found: Iterable[Any]) -> Iterable[dict[str, Any]]:
    for row in found:
        yield {name: rows.plain(value) for name, value in zip(names, row, strict=True)}
