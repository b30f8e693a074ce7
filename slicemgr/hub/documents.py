"""Read the rows of one node as the document that its mirror shall have. See policy.mirror."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.policy import mirror
from slicemgr.policy.mirror import Document, Row
from slicemgr.store import operation_parts, rows
from slicemgr.store import tables as t
from slicemgr.store.dialect import is_listed, listed


def document(c: Connection, node: str) -> Document:
    """All rows of a node, from one snapshot of the database."""
    found = {name: _read(name, c.execute(_of_node(name), {"node": node})) for name in _OF_NODE}
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
    found: dict[str, set[str]] = defaultdict(set)
    for identity, operation in c.execute(_BUSY):
        found[identity].add(operation)
    return found


def _named(c: Connection, name: str, keys: Collection[str]) -> list[Row]:
    """The rows with these keys. Other rows refer to them, so a row that is only its key need not be read."""
    one = mirror.BY_NAME[name]
    if one.columns == one.key:
        return [{one.key[0]: key} for key in sorted(keys)]
    return _read(name, c.execute(_among(name, c.dialect.name), {"keys": listed(sorted(keys))})) if keys else []


def _read(name: str, found: Iterable[Any]) -> list[Row]:
    names = mirror.BY_NAME[name].columns
    return [{column: rows.plain(value) for column, value in zip(names, row, strict=True)} for row in found]


# --- statements: made once, because to make one takes longer than to execute it ---------------------------------------

_P = t.operation_parts.c
_BUSY = (
    sa.select(t.nodes.c.identity, _P.operation)
    .join(t.operation_parts, _P.node == t.nodes.c.name)
    .where(_P.state.in_(operation_parts.UNENDED), t.nodes.c.identity.is_not(None))
)


def _conditions(node: sa.BindParameter[str]) -> Mapping[str, sa.ColumnElement[bool]]:
    """By table: which rows the node has."""
    s, n, o, m = t.slivers.c, t.sliver_snapshots.c, t.operations.c, t.operation_slivers.c
    mine = sa.select(s.id).where(s.node == node)
    part = operation_parts.of_node(node)
    pending = sa.select(_P.operation).where(part)
    return {
        "slivers": s.node == node,
        "spares": t.spares.c.sliver.in_(mine),
        "sliver_snapshots": n.sliver.in_(mine),
        "operations": o.id.in_(pending),
        "operation_parts": part,
        "operation_slivers": sa.and_(m.node == node, m.operation.in_(pending)),
    }


_OF_NODE = _conditions(sa.bindparam("node"))


@cache
def _of_node(name: str) -> sa.Select[Any]:
    return _columns(name).where(_OF_NODE[name])


@cache
def _among(name: str, dialect: str) -> sa.Select[Any]:
    key = t.metadata.tables[name].c[mirror.BY_NAME[name].key[0]]
    return _columns(name).where(is_listed(dialect, key, sa.bindparam("keys", type_=sa.Text)))


def _columns(name: str) -> sa.Select[Any]:
    table = t.metadata.tables[name]
    return sa.select(*(table.c[column] for column in mirror.BY_NAME[name].columns))
