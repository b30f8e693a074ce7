"""The parts of operations: what each node has to do for it. An operation ends with its last part."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import OperationState
from slicemgr.store import tables as t
from slicemgr.store.updates import OperationEnded, OperationStarted, SliverDone

ENDED = (OperationState.DONE, OperationState.FAILED)
UNENDED = (OperationState.QUEUED, OperationState.RUNNING)
_MOST_ERRORS = 5  # nodes whose errors the error of an operation has

_O, _P = t.operations.c, t.operation_parts.c


def add(c: Connection, operation: str, nodes: Collection[str], slivers: Sequence[tuple[str, str]]) -> None:
    """Insert a queued part for each of `nodes`. slivers: the id and the node of each."""
    queued = {"operation": operation, "state": OperationState.QUEUED}
    c.execute(t.operation_parts.insert(), [{**queued, "node": node} for node in nodes])
    if slivers:
        rows = [{**queued, "sliver": sliver, "node": node} for sliver, node in slivers]
        c.execute(t.operation_slivers.insert(), rows)


def of_node(node: str) -> sa.ColumnElement[bool]:
    """The parts of the node that have not ended, as a condition that an index serves."""
    return sa.and_(_P.node == node, _P.state.in_(UNENDED))


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
    ids = {u.operation for u in updates}
    mine = set(c.scalars(sa.select(_P.operation).where(_P.node == node, _P.operation.in_(ids), _P.state.not_in(ENDED))))
    rows = [{"b_id": u.operation, "b_at": u.at} for u in updates if u.operation in mine]
    if not rows:
        return
    id_: sa.BindParameter[str] = sa.bindparam("b_id")
    at = sa.bindparam("b_at", type_=_O.started_at.type)
    part = t.operation_parts.update().where(_P.operation == id_, _P.node == node)
    whole = t.operations.update().where(_O.id == id_, *(_O.state != one for one in ENDED))  # executemany has no IN
    for statement, columns in ((part, _P), (whole, _O)):
        since = sa.func.coalesce(columns.started_at, at)
        c.execute(statement.values(state=OperationState.RUNNING, started_at=since), rows)


def sliver_done(node: str, c: Connection, updates: list[SliverDone]) -> None:
    """Slivers of the node's parts have ended."""
    s = t.operation_slivers.c
    statement = (
        t.operation_slivers.update()
        .where(s.operation == sa.bindparam("b_operation"), s.sliver == sa.bindparam("b_sliver"), s.node == node)
        .values(state=sa.bindparam("b_state"))
    )
    c.execute(statement, [{"b_operation": u.operation, "b_sliver": u.sliver, "b_state": u.state} for u in updates])


def ended(node: str, c: Connection, updates: list[OperationEnded]) -> None:
    """The node's parts have ended. An operation of which no other part is left ends too."""
    for u in updates:
        values = {"state": u.state, "error": u.error, "hint": u.hint, "result": u.result, "finished_at": u.at}
        part = t.operation_parts.update().where(_P.operation == u.operation, _P.node == node, _P.state.not_in(ENDED))
        if c.execute(part.values(**values, started_at=sa.func.coalesce(_P.started_at, u.at))).rowcount:
            _end_with_last_part(c, u)


def _end_with_last_part(c: Connection, update: OperationEnded) -> None:
    parts = c.execute(sa.select(t.operation_parts).where(_P.operation == update.operation).order_by(_P.node)).all()
    if any(part.state not in ENDED for part in parts):
        return
    outcome = _outcome(parts)
    whole = t.operations.update().where(_O.id == update.operation, _O.state.not_in(ENDED))
    since = sa.func.coalesce(_O.started_at, update.at)
    if c.execute(whole.values(**outcome, started_at=since, finished_at=update.at)).rowcount:
        _log_end(c, update, outcome)


def _outcome(parts: Sequence[Row[*tuple[Any, ...]]]) -> dict[str, Any]:
    """State, error, hint and result of an operation with these parts. Several parts have a result each."""
    failed = [part for part in parts if part.state == OperationState.FAILED]
    if len(parts) == 1:
        return {name: getattr(parts[0], name) for name in ("state", "error", "hint", "result")}
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
