"""Operations and their steps as the JSON of the REST API. The number of queries does not grow with the rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import OperationState
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.views import paging
from slicemgr.service.views.formats import Json, Where, when
from slicemgr.service.views.paging import By, Page
from slicemgr.service.views.present import of_present_project
from slicemgr.store import tables as t
from slicemgr.store.operation_parts import ENDED

_ALL_STEPS = 20  # with more slivers than these, only the steps that are not done are shown


_M, _O, _P, _S = t.operation_slivers.c, t.operations.c, t.operation_parts.c, t.operation_steps.c
_IDS: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
# Made once: to make them takes longer than to execute them.
_COUNTS = (
    sa.select(_M.operation, _M.node, _M.state, sa.func.count())
    .where(_M.operation.in_(_IDS))
    .group_by(_M.operation, _M.node, _M.state)
)
_PARTS = (
    sa.select(t.operation_parts, t.nodes.c.silent_since)
    .outerjoin(t.nodes, t.nodes.c.name == _P.node)
    .where(_P.operation.in_(_IDS))
    .order_by(_P.node)
)
_ONE = sa.select(t.operations).where(_O.id == sa.bindparam("id"))
_VERSIONS = sa.select(_O.id, _O.version, _O.state).where(_O.id.in_(_IDS))
_STEPS = (
    sa.select(_S.operation, _S.sliver, _S.name, _S.state, _S.detail, _S.percent, _S.started_at, _S.finished_at)
    .where(_S.operation.in_(_IDS))
    .order_by(_S.started_at)
)


def operations(
    c: Connection,
    projects: Collection[str] | None = None,
    *,
    state: str = "",
    slice: str = "",
    limit: int = 50,
    where: Where = (),
    page: Page | None = None,
) -> list[Json]:
    """The newest operations first, with their steps: of `projects`, None: all. limit: applies without a page."""
    o = t.operations.c
    query = sa.select(t.operations).where(*where)
    if projects is not None:
        query = query.where(o.project.in_(projects), of_present_project(o.project, o.created_at))
    if state:
        query = query.where(o.state == state)
    if slice:
        query = query.where(o.slice_name == slice)
    return _operations(c, paging.rows(c, query, page or Page(limit), By(o.created_at, down=True), By(o.id)))


def operation(c: Connection, id: str, by: Principal | None = None) -> Json:
    """One operation. Refused(NOT_FOUND) if it does not exist, or `by` may not see it."""
    o = t.operations.c
    query = _ONE
    if by is not None and not by.admin:
        query = query.where(sa.or_(o.project == "", of_present_project(o.project, o.created_at)))
    row = c.execute(query, {"id": id}).first()
    if row is None:
        raise access.missing("operation", id)
    if by is not None:
        access.see_operation(by, row.project, id)
    return _operations(c, [row])[0]


def operation_versions(c: Connection, ids: Collection[str]) -> dict[str, tuple[int, str]]:
    """Version and state of the existing ones: a small query, because waiting requests repeat it."""
    return {row.id: (row.version, row.state) for row in c.execute(_VERSIONS, {"ids": list(ids)})}


def _operations(c: Connection, rows: Sequence[Row[*tuple[Any, ...]]]) -> list[Json]:
    ids = [row.id for row in rows]
    counts: dict[str, _Counts] = defaultdict(lambda: defaultdict(_Progress))
    for id_, node, state, count in c.execute(_COUNTS, {"ids": ids}):
        counts[id_][node].add(count if state in ENDED else 0, count)
    parts = _parts(c, ids, counts)
    asked = {row.id: row.created_at for row in rows}
    steps = _steps(c, asked, [id_ for id_ in ids if _whole(counts[id_]).total > _ALL_STEPS])
    return [_operation(row, steps[row.id], _whole(counts[row.id]), parts[row.id]) for row in rows]


@dataclass(slots=True)
class _Progress:
    """The number of slivers, and of those that are done or failed."""

    done: int = 0
    total: int = 0

    def add(self, done: int, total: int) -> None:
        self.done += done
        self.total += total


_Counts = dict[str, _Progress]  # by node


def _whole(counts: _Counts) -> _Progress:
    return _Progress(sum(one.done for one in counts.values()), sum(one.total for one in counts.values()))


def _parts(c: Connection, ids: Sequence[str], counts: Mapping[str, _Counts]) -> dict[str, list[Json]]:
    """The parts of each operation, by the name of the node."""
    parts: dict[str, list[Json]] = defaultdict(list)
    for row in c.execute(_PARTS, {"ids": ids}):
        parts[row.operation].append(
            {
                "node": row.node,
                "state": row.state,
                "started_at": when(row.started_at),
                "finished_at": when(row.finished_at),
                "error": row.error or None,
                "hint": row.hint or None,
                "silent_since": None if row.state in ENDED else when(row.silent_since),
                "progress": asdict(counts[row.operation][row.node]),
                "result": row.result,
            }
        )
    return parts


def _steps(c: Connection, asked: Mapping[str, datetime], large: Sequence[str]) -> dict[str, list[Json]]:
    """The steps of each operation, of the `large` ones only those that are not done. asked: the operations' creation
    times.
    """
    p, query = t.operation_steps.c, _STEPS
    if large:
        query = query.where(sa.or_(p.operation.not_in(large), p.state != OperationState.DONE))
    steps: dict[str, list[Json]] = defaultdict(list)
    for row in c.execute(query, {"ids": list(asked)}):
        step = {"sliver": row.sliver, "name": row.name, "state": row.state}
        took = None if row.finished_at is None else _seconds(row.started_at, row.finished_at)
        times = {"began": _seconds(asked[row.operation], row.started_at), "seconds": took}
        steps[row.operation].append({**step, "detail": row.detail, "percent": row.percent, **times})
    return steps


def _seconds(since: datetime, until: datetime) -> float:
    return round((until - since).total_seconds(), 6)


def _operation(row: Row[*tuple[Any, ...]], steps: list[Json], progress: _Progress, parts: list[Json]) -> Json:
    return {
        "id": row.id,
        "kind": row.kind,
        "state": row.state,
        "slice": row.slice_name or None,
        "project": row.project or None,
        "image": row.image_name or None,
        "user": row.user,
        "created_at": when(row.created_at),
        "started_at": when(row.started_at),
        "finished_at": when(row.finished_at),
        "error": row.error or None,
        "hint": row.hint or None,
        "version": row.version,
        "progress": asdict(progress),
        "parts": parts,
        "steps": steps,
        "result": row.result,
    }
