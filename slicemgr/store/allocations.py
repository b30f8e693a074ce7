"""What each node has, as it announced, and what its slivers have been allocated: kept as counters.

Every transaction that inserts, deletes or resizes slivers changes them with `take` and `free`. Spares are not counted,
because they give way to requests. All functions use a connection of `store.write()`, except `differences`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.store import tables as t
from slicemgr.store.dialect import insert_into

_A, _S = t.allocations.c, t.slivers.c
COUNTED = ("slivers", "memory", "memory_guarantee", "disk", "ports")
_COUNTERS = sa.select(_A.node, *(_A[name] for name in COUNTED))
Amounts = tuple[int, ...]  # in the order of COUNTED


def take(c: Connection, which: sa.ColumnElement[bool]) -> None:
    """Count these slivers. Call it after they are inserted, or changed after `free`."""
    _add(c, which, 1)


def take_slice(c: Connection, id: str) -> None:
    """The same for the slivers of a new slice, in less time."""
    c.execute(_of_slice(c.dialect.name), {"slice": id})


def free(c: Connection, which: sa.ColumnElement[bool]) -> None:
    """Count these slivers no more. Call it before they are deleted or changed."""
    _add(c, which, -1)


def free_slivers(c: Connection, ids: Collection[str]) -> None:
    """The same for the slivers with these ids, in less time."""
    c.execute(_of_slivers(c.dialect.name), {"ids": list(ids)})


def announce(c: Connection, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Note what nodes have, by their names. They get no sliver by these numbers alone, so they need not be true."""
    _write(c, {node: announced(one) for node, one in facts.items()})


def announced(facts: Mapping[str, Any]) -> dict[str, int | None]:
    """The columns with what a node has; None: not announced."""
    first, last = _size(facts, "ports_first"), _size(facts, "ports_last")
    ports = None if first is None or last is None or first > last else last - first + 1
    return {"memory_total": _size(facts, "memory"), "disk_total": _size(facts, "disk_total"), "ports_total": ports}


def differences(c: Connection) -> dict[str, tuple[Amounts, Amounts]]:
    """The nodes whose counters are not what their slivers were allocated: the counters and the sums."""
    sums = {node: tuple(int(one) for one in amounts) for node, *amounts in c.execute(_all_amounts())}
    counters = {node: tuple(counts) for node, *counts in c.execute(_COUNTERS)}
    none = (0,) * len(COUNTED)
    nodes = sorted(sums.keys() | counters.keys())
    pairs = {node: (counters.get(node, none), sums.get(node, none)) for node in nodes}
    return {node: pair for node, pair in pairs.items() if pair[0] != pair[1]}


def recount(c: Connection) -> list[str]:
    """Correct the counters; the nodes for which they were wrong."""
    found = differences(c)
    _write(c, {node: dict(zip(COUNTED, sums, strict=True)) for node, (_, sums) in found.items()})
    return list(found)


@cache
def _all_amounts() -> sa.Select[Any]:
    return _amounts(sa.true(), 1)


def _amounts(which: sa.ColumnElement[bool], times: int) -> sa.Select[Any]:
    """What these slivers were allocated, by node."""
    sums = (sa.func.count(), *(sa.func.sum(one) for one in (_S.memory, _S.memory_guarantee, _S.disk, _S.port_count)))
    query = sa.select(_S.node, *(one * times for one in sums)).where(which, _S.slice.is_not(None))
    return query.group_by(_S.node).order_by(_S.node)


@cache
def _of_slice(dialect: str) -> sa.Insert:
    """Kept, because making it takes longer than its execution."""
    return _addition(dialect, _S.slice == sa.bindparam("slice", type_=sa.Text), 1)


@cache
def _of_slivers(dialect: str) -> sa.Insert:
    return _addition(dialect, _S.id.in_(sa.bindparam("ids", expanding=True)), -1)


def _add(c: Connection, which: sa.ColumnElement[bool], times: int) -> None:
    c.execute(_addition(c.dialect.name, which, times))


def _addition(dialect: str, which: sa.ColumnElement[bool], times: int) -> sa.Insert:
    statement = insert_into(dialect, t.allocations).from_select(("node", *COUNTED), _amounts(which, times))
    more = {name: _A[name] + statement.excluded[name] for name in COUNTED}
    return statement.on_conflict_do_update(index_elements=["node"], set_=more)


def _write(c: Connection, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Insert or replace values of rows with the same columns, by their node: in three statements for any number."""
    if not rows:
        return
    known = set(c.scalars(sa.select(_A.node).where(_A.node.in_(list(rows)))))
    if new := [{"node": node, **row} for node, row in rows.items() if node not in known]:
        c.execute(t.allocations.insert(), new)
    if old := [
        {"b_node": node, **{f"b_{name}": value for name, value in row.items()}}
        for node, row in rows.items()
        if node in known
    ]:
        values: dict[str, Any] = {name: sa.bindparam(f"b_{name}") for name in next(iter(rows.values()))}
        c.execute(t.allocations.update().where(_A.node == sa.bindparam("b_node")).values(values), old)


def _size(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
