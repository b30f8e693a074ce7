"""Rows as the REST API's JSON. The number of queries does not grow with the number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.model import Desired, ImageState, OperationState, Phase, SliceSpec
from slicemgr.policy import allocate, leases
from slicemgr.policy.access import Principal
from slicemgr.service import images, slices
from slicemgr.service.states import slice_state, sliver_state
from slicemgr.store import tables as t
from slicemgr.store.schema import DEFAULT_PROJECT

Json = dict[str, Any]
AnyRow = Row[*tuple[Any, ...]]

_ALL_STEPS = 20  # of an operation on more slivers, only steps that are not done are listed


def time_text(at: datetime | None) -> str | None:
    """RFC 3339, to the second."""
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


# slices


def slice_list(c: Connection, *, kind: str = "", image: str = "", state: str = "") -> list[Json]:
    """All slices, by name; filtered by what is given."""
    l, i = t.slices.c, t.images.c
    conditions = [l.kind == kind] if kind else []
    if image:
        conditions.append(sa.or_(i.name == image, l.image == image))
    found = _slices(c, conditions)
    return [one for one in found if one["state"] == state] if state else found


def slice_view(c: Connection, name: str) -> Json:
    """Refused(NOT_FOUND) if there is none of this name."""
    row = slices.find(c, name)
    return next(iter(_slices(c, [t.slices.c.id == row.id])))


def _slices(c: Connection, conditions: Sequence[sa.ColumnElement[bool]]) -> list[Json]:
    l, s, i, n = t.slices.c, t.slivers.c, t.images.c, t.nodes.c
    query = (
        sa.select(
            *(l.id, l.name, l.kind, l.project, l.owner, l.created_at, l.expires_at, l.lease_ended_at),
            *(i.name.label("image_name"), l.image, n.address.label("host")),
            *(s.idx, s.id.label("sliver"), s.node, s.desired, s.phase, s.address, s.fingerprint, s.error),
            *(s.port_first, s.port_count, s.cpu, s.cpu_shares, s.memory, s.memory_soft, s.disk, s.pids, s.io_weight),
            *(s.usage_memory, s.usage_disk),
        )
        .select_from(t.slices)
        .join(t.images, i.sha256 == l.image)
        .join(t.slivers, s.slice == l.id)
        .join(t.nodes, n.name == s.node)
        .where(*conditions)
        .order_by(l.name, l.id, s.idx)
    )
    return [_slice(list(rows)) for _, rows in groupby(c.execute(query), key=lambda row: row.id)]


def _slice(rows: Sequence[AnyRow]) -> Json:
    first = rows[0]
    slivers = [_sliver(row) for row in rows]
    return {
        "name": first.name,
        "type": first.kind,
        "project": first.project,
        "owner": first.owner,
        "state": slice_state([sliver["state"] for sliver in slivers]),
        "created_at": time_text(first.created_at),
        "expires_at": time_text(first.expires_at),
        "lease_ended_at": time_text(first.lease_ended_at),
        "image": first.image_name,
        "image_sha256": first.image,
        "slivers": slivers,
    }


def _sliver(row: AnyRow) -> Json:
    return {
        "index": row.idx,
        "id": row.sliver,
        "node": row.node,
        "state": sliver_state(Desired(row.desired), Phase(row.phase)),
        "address": row.address,
        "ssh": {"host": row.host, "port": row.port_first, "fingerprint": row.fingerprint or None},
        "ports": {"first": row.port_first, "last": row.port_first + row.port_count - 1},
        "limits": {
            "cpu": row.cpu,
            "cpu_shares": row.cpu_shares,
            "memory": row.memory,
            "memory_soft": row.memory_soft,
            "disk": row.disk,
            "pids": row.pids,
            "io_weight": row.io_weight,
        },
        "usage": {"memory": row.usage_memory, "disk": row.usage_disk},
        "error": row.error or None,
    }


def plan(c: Connection, config: Config, spec: SliceSpec, by: Principal, now: datetime) -> Json:
    """What `create` would make of the request, if nothing comes in between. Refused like `create`."""
    placed = slices.place(c, config, spec)
    host = c.scalar(sa.select(t.nodes.c.address).where(t.nodes.c.name == placed.node))
    limits = spec.limits
    slivers = [
        {
            "index": index,
            "id": None,
            "node": placed.node,
            "state": "planned",
            "address": grant.address,
            "ssh": {"host": host, "port": grant.ports.first, "fingerprint": None},
            "ports": {"first": grant.ports.first, "last": grant.ports.last},
            "limits": {name: getattr(limits, name) for name in limits.__slots__},
            "usage": {"memory": None, "disk": None},
            "error": None,
        }
        for index, grant in enumerate(placed.grants)
    ]
    return {
        "name": spec.name,
        "type": spec.kind.value,
        "project": DEFAULT_PROJECT,
        "owner": by.user,
        "state": "planned",
        "created_at": None,
        "expires_at": time_text(leases.grant(spec.lease, now, config.lease)),
        "lease_ended_at": None,
        "image": placed.image_name,
        "image_sha256": placed.image,
        "slivers": slivers,
    }


# operations


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """ "" means any."""

    state: str = ""
    slice: str = ""
    limit: int = 50


def operation_list(c: Connection, wanted: OperationFilter) -> list[Json]:
    """The newest operations first."""
    o = t.operations.c
    query = sa.select(t.operations).order_by(o.created_at.desc(), o.id).limit(wanted.limit)
    if wanted.state:
        query = query.where(o.state == wanted.state)
    if wanted.slice:
        query = query.where(o.slice_name == wanted.slice)
    return _operations(c, c.execute(query).all())


def operation_view(c: Connection, id_: str) -> Json:
    """Refused(NOT_FOUND) if there is none."""
    rows = c.execute(sa.select(t.operations).where(t.operations.c.id == id_)).all()
    if not rows:
        raise Refused(Code.NOT_FOUND, f"there is no operation {id_[:40]!r}", hint="`slicectl op list` shows some")
    return _operations(c, rows)[0]


def operation_version(c: Connection, id_: str) -> tuple[int, bool] | None:
    """Its version and whether it has ended; None if there is none. Cheap, for who waits."""
    o = t.operations.c
    row = c.execute(sa.select(o.version, o.state).where(o.id == id_)).first()
    return None if row is None else (row.version, OperationState(row.state).ended)


def _operations(c: Connection, rows: Sequence[AnyRow]) -> list[Json]:
    ids = [row.id for row in rows]
    progress = _progress(c, ids)
    steps = _steps(c, progress, ids)
    return [_operation(row, *progress.get(row.id, (0, 0)), steps.get(row.id, [])) for row in rows]


def _progress(c: Connection, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """How many slivers are dealt with, and how many there are, by operation."""
    m = t.operation_slivers.c
    ended = sa.func.count().filter(m.state.in_([OperationState.DONE, OperationState.FAILED]))
    query = sa.select(m.operation, ended, sa.func.count()).where(m.operation.in_(ids)).group_by(m.operation)
    return {operation: (done, total) for operation, done, total in c.execute(query)}


def _steps(c: Connection, progress: Mapping[str, tuple[int, int]], ids: Sequence[str]) -> dict[str, list[Json]]:
    p = t.operation_steps.c
    large = [id_ for id_ in ids if progress.get(id_, (0, 0))[1] > _ALL_STEPS]
    columns = (p.operation, p.sliver, p.name, p.state, p.detail, p.percent, p.started_at, p.finished_at)
    query = sa.select(*columns).where(p.operation.in_(ids)).order_by(p.operation, p.started_at, p.sliver)
    if large:
        query = query.where(sa.or_(p.operation.not_in(large), p.state != OperationState.DONE))
    grouped: dict[str, list[Json]] = {}
    for operation, sliver, name, state, detail, percent, started, finished in c.execute(query):
        grouped.setdefault(operation, []).append(
            {
                "sliver": sliver,
                "name": name,
                "state": state,
                "detail": detail,
                "percent": percent,
                "started_at": _precise(started),
                "finished_at": _precise(finished),
            }
        )
    return grouped


def _precise(at: datetime | None) -> str | None:
    """RFC 3339 to the millisecond: steps are short."""
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _operation(row: AnyRow, done: int, total: int, steps: list[Json]) -> Json:
    return {
        "id": row.id,
        "kind": row.kind,
        "state": row.state,
        "slice": row.slice_name or None,
        "image": row.image_name or None,
        "user": row.user,
        "created_at": _precise(row.created_at),
        "started_at": _precise(row.started_at),
        "finished_at": _precise(row.finished_at),
        "error": row.error or None,
        "hint": row.hint or None,
        "version": row.version,
        "progress": {"done": total if row.state == OperationState.DONE else done, "total": total},
        "steps": steps,
        "result": row.result,
    }


# images, nodes, events


def image_list(c: Connection) -> list[Json]:
    return _images(c, [])


def image_view(c: Connection, wanted: str) -> Json:
    """By name, sha256 or its beginning. Refused(NOT_FOUND) or (CONFLICT)."""
    return _images(c, [t.images.c.sha256 == images.find(c, wanted).sha256])[0]


def _images(c: Connection, conditions: Iterable[sa.ColumnElement[bool]]) -> list[Json]:
    i = t.images.c
    used = sa.select(sa.func.count()).where(t.slices.c.image == i.sha256).scalar_subquery().label("used_by")
    query = sa.select(t.images, used).where(*conditions).order_by(i.name)
    return [
        {
            "name": row.name,
            "sha256": row.sha256,
            "format": row.format,
            "virtual_size": row.virtual_size,
            "file_size": row.file_size,
            "arch": row.arch,
            "os": row.os,
            "state": ImageState(row.state).value,
            "created_at": time_text(row.created_at),
            "used_by": row.used_by,
        }
        for row in c.execute(query)
    ]


def node_list(c: Connection, config: Config, name: str | None = None) -> list[Json]:
    """All nodes, or the one called `name`. Refused(NOT_FOUND) if there is none of this name."""
    n, s = t.nodes.c, t.slivers.c
    sums = [sa.func.coalesce(sa.func.sum(column), 0) for column in (s.memory, s.disk, s.port_count)]
    usage = sa.select(s.node, sa.func.count(), *sums).group_by(s.node)
    used = {row[0]: tuple(row[1:]) for row in c.execute(usage)}
    query = sa.select(n.name, n.address, n.agent_seen_at, n.facts).order_by(n.name)
    rows = c.execute(query if name is None else query.where(n.name == name)).all()
    if name is not None and not rows:
        raise Refused(Code.NOT_FOUND, f"there is no node {name[:80]!r}", hint="`slicectl node list` shows them")
    return [_node(row, config, used.get(row.name, (0, 0, 0, 0))) for row in rows]


def _node(row: AnyRow, config: Config, used: tuple[Any, ...]) -> Json:
    network, limits = config.network, config.limits
    slivers, memory, disk, ports = (int(number) for number in used)
    return {
        "name": row.name,
        "address": row.address,
        "agent_seen_at": time_text(row.agent_seen_at),
        "facts": row.facts,
        "capacity": {
            "memory": int(row.facts.get("memory", 0) * limits.memory_overcommit),
            "disk": int(row.facts.get("disk_total", 0) * limits.disk_overcommit),
            "cpus": row.facts.get("cpus", 0),
            "addresses": len(allocate.address_pool(network)),
            "ports": network.ports_last - network.ports_first + 1,
        },
        "used": {
            "slivers": slivers,
            "memory_limits": memory,
            "disk_limits": disk,
            "ports": ports,
            "addresses": slivers,
        },
    }


def event_list(c: Connection, slice: str, limit: int) -> list[Json]:
    """The newest events first."""
    e = t.events.c
    query = sa.select(t.events).order_by(e.id.desc()).limit(limit)
    if slice:
        query = query.where(e.slice == slice)
    return [
        {
            "id": row.id,
            "at": time_text(row.at),
            "user": row.user,
            "action": row.action,
            "slice": row.slice or None,
            "detail": row.detail,
        }
        for row in c.execute(query)
    ]
