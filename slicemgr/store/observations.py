"""Write the agent's observations: a batch of updates is one transaction.

All functions use a connection of `store.write()`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import ImageState, NodeImageState
from slicemgr.store import allocations, incarnation, operation_parts, sample_reports, snapshots
from slicemgr.store import tables as t
from slicemgr.store.dialect import insert, insert_into
from slicemgr.store.updates import (
    BaseStreamMade,
    EventSeen,
    HostSeen,
    ImageGone,
    ImageOnNode,
    ImageSeen,
    NodeSampled,
    NodeSeen,
    OperationEnded,
    OperationStarted,
    SliverDone,
    SliverGone,
    SliverSampled,
    SliverSeen,
    SliverUsed,
    SnapshotGone,
    SnapshotMade,
    StepSeen,
    Update,
    utcnow,
)

# Made once: to make them takes longer than to execute them.
_TOUCH = t.operations.update().where(t.operations.c.id == sa.bindparam("op"))
_TOUCH = _TOUCH.values(version=t.operations.c.version + 1)
_KNOWN = sa.select(t.operations.c.id).where(t.operations.c.id.in_(sa.bindparam("ids", expanding=True)))
_DELETE_SLIVER = t.slivers.delete().where(t.slivers.c.id == sa.bindparam("b_id"))
_DELETE_EMPTY_SLICE = t.slices.delete().where(
    t.slices.c.id == sa.bindparam("b_id"), ~sa.exists().where(t.slivers.c.slice == t.slices.c.id)
)


def record(c: Connection, updates: Sequence[Update], node: str) -> None:
    """Write updates of the agent of `node`. Rows that no longer exist are skipped.

    Of several updates of one kind, the later one applies. What it reports about an operation concerns its own part.
    """
    by_type: dict[type, list[Any]] = defaultdict(list)
    for update in updates:
        by_type[type(update)].append(update)
    for kind, write in _writers(node).items():
        if by_type[kind]:
            write(c, by_type[kind])
    touched = {
        update.operation
        for update in updates
        if isinstance(update, StepSeen | SliverDone | OperationStarted | OperationEnded)
    }
    _many(c, _TOUCH, [{"op": operation} for operation in sorted(touched)])


def _many(c: Connection, statement: sa.UpdateBase, rows: list[dict[str, Any]]) -> None:
    if rows:
        c.execute(statement, rows)


def _kept(column: sa.Column[Any], name: str) -> sa.ColumnElement[Any]:
    """The given value, or the stored one if it is None."""
    return sa.func.coalesce(sa.bindparam(name, type_=column.type), column)


def _sliver_seen(c: Connection, updates: list[SliverSeen]) -> None:
    now = utcnow()
    _many(
        c,
        _see_sliver(),
        [
            {
                "b_id": u.sliver,
                "b_phase": u.phase,
                "b_error": u.error,
                "b_host_key": u.host_key,
                "b_acceleration": u.acceleration,
                "b_booted": u.booted,
                "b_keys_missing": u.keys_missing,
                "b_memory_started": u.memory_started,
                "b_now": now,
            }
            for u in updates
        ],
    )


@cache
def _see_sliver() -> sa.Update:
    s = t.slivers.c
    return (
        t.slivers.update()
        .where(s.id == sa.bindparam("b_id"))
        .values(
            phase=sa.bindparam("b_phase"),
            error=_kept(s.error, "b_error"),
            host_key=_kept(s.host_key, "b_host_key"),
            acceleration=_kept(s.acceleration, "b_acceleration"),
            booted=_kept(s.booted, "b_booted"),
            keys_missing=_kept(s.keys_missing, "b_keys_missing"),
            memory_started=_kept(s.memory_started, "b_memory_started"),
            updated_at=sa.bindparam("b_now"),
        )
    )


def _sliver_used(c: Connection, updates: list[SliverUsed]) -> None:
    for u in updates:
        s = t.slivers.c
        values: dict[str, Any] = {
            "usage_working": u.working,
            "usage_charged": u.charged,
            "usage_disk": u.disk,
            "guest_memory": u.guest,
            "usage_at": u.at,
        }
        if u.oom_kills is not None:
            more = s.oom_kills < u.oom_kills
            values["oom_kills"] = sa.case((more, u.oom_kills), else_=s.oom_kills)
            values["oom_at"] = sa.case((more, sa.bindparam("b_at", u.oom_at, s.oom_at.type)), else_=s.oom_at)
        c.execute(t.slivers.update().where(s.id == u.sliver).values(values))


def _sliver_gone(c: Connection, updates: list[SliverGone]) -> None:
    allocations.free_slivers(c, {u.sliver for u in updates})
    _many(c, _DELETE_SLIVER, [{"b_id": u.sliver} for u in updates])
    tags = {u.sliver.rpartition("-")[0] for u in updates}
    _many(c, _DELETE_EMPTY_SLICE, [{"b_id": tag} for tag in sorted(tags)])


def _known(c: Connection, operations: Iterable[str]) -> set[str]:
    return set(c.scalars(_KNOWN, {"ids": list(set(operations))}))


def _step_seen(c: Connection, updates: list[StepSeen]) -> None:
    known = _known(c, (u.operation for u in updates))
    rows = [
        {
            "operation": u.operation,
            "sliver": u.sliver,
            "name": u.name,
            "state": u.state,
            "detail": u.detail,
            "percent": u.percent,
            "started_at": u.at,
            "finished_at": u.at if u.state.ended else None,
        }
        for u in updates
        if u.operation in known
    ]
    _many(c, _see_step(c.dialect.name), rows)


@cache
def _see_step(dialect: str) -> sa.Insert:
    statement = insert_into(dialect, t.operation_steps)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["operation", "sliver", "name"],
        set_={"state": new.state, "detail": new.detail, "percent": new.percent, "finished_at": new.finished_at},
    )


def _image_seen(c: Connection, updates: list[ImageSeen]) -> None:
    for u in updates:
        facts = {"arch": u.arch, "os": u.os, "virtual_size": u.virtual_size, "boot": u.boot, "base_size": u.base_size}
        values = {name: value for name, value in facts.items() if value}
        if u.systemd is not None:
            values["systemd"] = u.systemd
        done = c.execute(t.images.update().where(t.images.c.sha256 == u.sha256).values(state=u.state, **values))
        if u.kernel_config is not None and done.rowcount:
            c.execute(t.kernel_configs.delete().where(t.kernel_configs.c.image == u.sha256))
            row = {"image": u.sha256, "config": u.kernel_config, "size": len(u.kernel_config)}
            c.execute(t.kernel_configs.insert().values(row))


def _image_gone(c: Connection, updates: list[ImageGone]) -> None:
    i = t.images.c
    used = sa.exists().where(t.slices.c.image == i.sha256)
    ids = [{"b_id": u.sha256} for u in updates]
    _many(c, t.images.delete().where(i.sha256 == sa.bindparam("b_id"), ~used), ids)
    _many(c, t.images.update().where(i.sha256 == sa.bindparam("b_id")).values(state=ImageState.MISSING), ids)
    _many(c, t.image_nodes.delete().where(t.image_nodes.c.image == sa.bindparam("b_id")), ids)


def _image_on_node(c: Connection, updates: list[ImageOnNode]) -> None:
    x = t.image_nodes.c
    for u in updates:
        row = {"state": u.state, "error": u.error, "base_size": u.base_size, "updated_at": utcnow(), **_files(u)}
        here = (x.image == u.sha256, x.node == u.node)
        if u.state is NodeImageState.ABSENT:
            c.execute(t.image_nodes.delete().where(*here))
        elif not c.execute(t.image_nodes.update().where(*here).values(row)).rowcount and _has_image(c, u):
            c.execute(t.image_nodes.insert().values(**row, image=u.sha256, node=u.node))


def _files(update: ImageOnNode) -> dict[str, Any]:
    """The states of the files. A node of an earlier version has the disk image and the base that it extracted."""
    disk, base = update.disk, update.base
    if disk is None or base is None:
        disk, base = update.state, update.state if update.base_size else NodeImageState.ABSENT
    held = {"disk": disk, "base": base}
    return {
        **{name: "" if state is NodeImageState.ABSENT else state for name, state in held.items()},
        "stream": update.stream,
    }


def _stream_made(c: Connection, updates: list[BaseStreamMade]) -> None:
    i = t.images.c
    for u in updates:
        row = {"stream_sha256": u.stream, "stream_size": u.size, "stream_version": u.version}
        c.execute(t.images.update().where(i.sha256 == u.sha256, i.stream_sha256 == "").values(row))


def _has_image(c: Connection, update: ImageOnNode) -> bool:
    """Whether there are rows of the image and of the node."""
    image, node = t.images.c.sha256 == update.sha256, t.nodes.c.name == update.node
    return bool(c.scalar(sa.select(sa.and_(sa.exists().where(image), sa.exists().where(node)))))


def _node_seen(c: Connection, updates: list[NodeSeen]) -> None:
    for u in updates:
        row = {"name": u.name, "address": u.address, "agent_seen_at": utcnow()}
        changes = row if u.facts is None else {**row, "facts": u.facts}
        statement = insert(c, t.nodes).values({"facts": {}, **changes})
        own = t.nodes.c.identity.is_(None)  # not the row of a host that joins with a certificate
        c.execute(statement.on_conflict_do_update(index_elements=["name"], set_=changes, where=own))
        if u.facts is not None:
            allocations.announce(c, {u.name: u.facts})


def _host_seen(c: Connection, updates: list[HostSeen]) -> None:
    """Only during a hold: a report that was queued before its end is of no use."""
    held = incarnation.held(c)
    if held is None:
        return
    for u in updates:
        decided = set(incarnation.released(c, u.node))
        ids = [one.sliver for one in u.unclaimed]  # one may have been adopted since the agent read the rows
        adopted = set(c.scalars(sa.select(t.slivers.c.id).where(t.slivers.c.id.in_(ids))))
        for table in (t.host_reports, t.unclaimed):
            c.execute(table.delete().where(table.c.node == u.node))
        found = {"lost": list(u.lost), "images": list(u.images), "changed": dict(u.changed)}
        c.execute(t.host_reports.insert().values(node=u.node, incarnation=held.number, at=utcnow(), found=found))
        rows = [
            {
                "node": u.node,
                "sliver": one.sliver,
                "state": one.state,
                "record": None if one.record is None else dict(one.record),
                "snapshots": list(one.snapshots),
                "released": one.sliver in decided,
                "detail": one.detail,
            }
            for one in u.unclaimed
            if one.sliver not in adopted
        ]
        _many(c, t.unclaimed.insert(), rows)


def _event_seen(c: Connection, updates: list[EventSeen]) -> None:
    rows = [
        {"at": u.at, "user": u.user, "project": u.project, "slice": u.slice, "action": u.action, "detail": u.detail}
        for u in updates
    ]
    _many(c, t.events.insert(), rows)


def _writers(node: str) -> dict[type, Callable[[Connection, list[Any]], None]]:
    """In this order: an operation ends after its steps, a slice is deleted after the updates of its slivers."""
    return {
        NodeSeen: _node_seen,
        HostSeen: _host_seen,
        ImageSeen: _image_seen,
        ImageGone: _image_gone,
        ImageOnNode: _image_on_node,
        BaseStreamMade: _stream_made,
        SliverSeen: _sliver_seen,
        SliverUsed: _sliver_used,
        NodeSampled: partial(sample_reports.record_nodes, node),
        SliverSampled: partial(sample_reports.record_slivers, node),
        OperationStarted: partial(operation_parts.started, node),
        StepSeen: _step_seen,
        SnapshotMade: snapshots.made,
        SnapshotGone: snapshots.gone,
        SliverDone: partial(operation_parts.sliver_done, node),
        SliverGone: _sliver_gone,
        OperationEnded: partial(operation_parts.ended, node),
        EventSeen: _event_seen,
    }
