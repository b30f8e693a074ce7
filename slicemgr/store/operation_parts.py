"""The parts of operations: what each node has to do for it. An operation ends with its last part."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import OperationState
from slicemgr.store import tables as t
from slicemgr.store.updates import OperationEnded, OperationStarted, SliverDone

ENDED = (OperationState.DONE, OperationState.FAILED)
UNENDED = (OperationState.QUEUED, OperationState.RUNNING)
_OUTCOME = ("state", "error", "hint", "result")
_MOST_ERRORS = 5  # nodes whose errors the error of an operation has

_O, _P = t.operations.c, t.operation_parts.c


def add(c: Connection, operation: str, nodes: Collection[str], slivers: Sequence[tuple[str, str]]) -> None:
    """Insert a queued part for each of `nodes`. slivers: the id and the node of each."""
    queued = {"operation": operation, "state": OperationState.QUEUED}
    c.execute(t.operation_parts.insert(), [{**queued, "node": node} for node in nodes])
    if slivers:
        rows = [{**queued, "sliver": sliver, "node": node} for sliver, node in slivers]
        c.execute(t.operation_slivers.insert(), rows)


def of_node(node: str | sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    """The parts of the node that have not ended, as a condition that an index serves."""
    return sa.and_(_P.node == node, _P.state.in_(UNENDED))


def busy(c: Connection) -> set[str]:
    """The nodes that have parts that have not ended."""
    return set(c.scalars(sa.select(_P.node).where(_P.state.in_(UNENDED)).distinct()))


def unended(c: Connection, node: str) -> bool:
    """Whether the node has parts that have not ended."""
    return bool(c.scalar(sa.select(sa.exists().where(of_node(node)))))


def fail_all(c: Connection, error: str, now: datetime) -> None:
    """End every part and every operation that has not ended."""
    failed = {"state": OperationState.FAILED, "error": error, "finished_at": now}
    c.execute(t.operation_parts.update().where(_P.state.not_in(ENDED)).values(**failed))
    c.execute(t.operations.update().where(_O.state.not_in(ENDED)).values(**failed, version=_O.version + 1))


def started(node: str, c: Connection, updates: list[OperationStarted]) -> None:
    """The node's parts of these operations are running."""
    mine = set(c.scalars(_unended_among(), {"node": node, "ids": [u.operation for u in updates]}))
    rows = [{"b_id": u.operation, "b_at": u.at, "b_node": node} for u in updates if u.operation in mine]
    if not rows:
        return
    c.execute(_start_part(), rows)
    c.execute(_start(t.operations, _O.id), [{"b_id": row["b_id"], "b_at": row["b_at"]} for row in rows])


@cache
def _unended_among() -> sa.Select[Any]:
    """Kept like all statements here that are executed for each operation: making one takes longer."""
    ids: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
    return sa.select(_P.operation).where(_P.node == sa.bindparam("node"), _P.operation.in_(ids), _P.state.not_in(ENDED))


@cache
def _start_part() -> sa.Update:
    return _start(t.operation_parts, _P.operation).where(_P.node == sa.bindparam("b_node"))


@cache
def _start(table: sa.Table, id_: sa.Column[str]) -> sa.Update:
    """Note that a row that has not ended runs."""
    columns = table.c
    since = sa.func.coalesce(columns.started_at, sa.bindparam("b_at", type_=_O.started_at.type))
    unended = (columns.state != one for one in ENDED)  # executemany has no IN
    query = table.update().where(id_ == sa.bindparam("b_id"), *unended)
    return query.values(state=OperationState.RUNNING, started_at=since)


def sliver_done(node: str, c: Connection, updates: list[SliverDone]) -> None:
    """Slivers of the node's parts have ended."""
    rows = [{"operation": u.operation, "sliver": u.sliver, "state": u.state, "node": node} for u in updates]
    c.execute(_end_sliver(), [{f"b_{name}": value for name, value in row.items()} for row in rows])


@cache
def _end_sliver() -> sa.Update:
    s = t.operation_slivers.c
    keys = (s.operation, s.sliver, s.node)
    return (
        t.operation_slivers.update()
        .where(*(key == sa.bindparam(f"b_{key.name}") for key in keys))
        .values(state=sa.bindparam("b_state"))
    )


def ended(node: str, c: Connection, updates: list[OperationEnded]) -> None:
    """The node's parts have ended. An operation of which no other part is left ends too."""
    for u in updates:
        outcome = {"state": u.state, "error": u.error, "hint": u.hint, "result": u.result}
        if c.execute(_end_part(), _values(u, outcome) | {"b_node": node}).rowcount:
            _end_with_last_part(c, u)


def _end_with_last_part(c: Connection, update: OperationEnded) -> None:
    parts = c.execute(_parts(), {"operation": update.operation}).all()
    if any(part.state not in ENDED for part in parts):
        return
    outcome = _outcome(parts)
    if c.execute(_end(t.operations, _O.id), _values(update, outcome)).rowcount:
        _log_end(c, update, outcome)


@cache
def _end_part() -> sa.Update:
    return _end(t.operation_parts, _P.operation).where(_P.node == sa.bindparam("b_node"))


@cache
def _end(table: sa.Table, id_: sa.Column[str]) -> sa.Update:
    """End a row that has not ended. Kept, because making it takes longer than its execution."""
    columns = table.c
    values = {name: sa.bindparam(f"b_{name}", type_=columns[name].type) for name in (*_OUTCOME, "finished_at")}
    since = sa.func.coalesce(columns.started_at, values["finished_at"])
    unended = (columns.state != one for one in ENDED)
    return table.update().where(id_ == sa.bindparam("b_id"), *unended).values(**values, started_at=since)


def _values(update: OperationEnded, outcome: Mapping[str, Any]) -> dict[str, Any]:
    given = {**outcome, "finished_at": update.at, "id": update.operation}
    return {f"b_{name}": value for name, value in given.items()}


@cache
def _parts() -> sa.Select[Any]:
    return sa.select(t.operation_parts).where(_P.operation == sa.bindparam("operation")).order_by(_P.node)


def _outcome(parts: Sequence[Row[*tuple[Any, ...]]]) -> dict[str, Any]:
    """State, error, hint and result of an operation with these parts. Several parts have a result each."""
    failed = [part for part in parts if part.state == OperationState.FAILED]
    if len(parts) == 1:
        return {name: getattr(parts[0], name) for name in _OUTCOME}
    if not failed:
        return {"state": OperationState.DONE, "error": "", "hint": "", "result": None}
    errors = "; ".join(f"{part.node}: {part.error}" for part in failed[:_MOST_ERRORS])
    more = "; and others" if len(failed) > _MOST_ERRORS else ""
    error = f"{len(failed)} of {len(parts)} nodes: {errors}{more}"
    return {"state": OperationState.FAILED, "error": error, "hint": failed[0].hint, "result": None}


def _log_end(c: Connection, end: OperationEnded, outcome: Mapping[str, Any]) -> None:
    """Record the failure of an operation as an event, so that the slice's history shows it."""
    if outcome["state"] != OperationState.FAILED:
        return
    row = c.execute(sa.select(_O.user, _O.slice_name, _O.image_name, _O.kind).where(_O.id == end.operation)).one()
    detail = outcome["error"] if row.slice_name or not row.image_name else f"{row.image_name}: {outcome['error']}"
    values = {"at": end.at, "user": row.user, "slice": row.slice_name, "action": f"{row.kind} failed"}
    c.execute(t.events.insert().values(**values, detail=detail))
