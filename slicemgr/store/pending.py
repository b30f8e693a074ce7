"""The agent's reads: pending operations and the desired state. The agent writes with `observations.record`.

All functions use a connection of `store.read()` or `store.write()`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr import model
from slicemgr.model import Desired, ImageState, OperationState, Phase, SliverType
from slicemgr.store import operation_parts, snapshots
from slicemgr.store import tables as t
from slicemgr.store.observations import record
from slicemgr.store.updates import (
    BaseStreamMade,
    EventSeen,
    HostSeen,
    ImageGone,
    ImageOnNode,
    ImageSeen,
    Json,
    NodeSeen,
    OperationEnded,
    OperationStarted,
    SliverDone,
    SliverGone,
    SliverSeen,
    SnapshotGone,
    SnapshotMade,
    StepSeen,
    UnclaimedSliver,
    Update,
)

__all__ = [
    "SLIVER_OPERATIONS",
    "BaseStreamMade",
    "EventSeen",
    "HostSeen",
    "ImageGone",
    "ImageOnNode",
    "ImageSeen",
    "NodeSeen",
    "Operation",
    "OperationEnded",
    "OperationStarted",
    "SliverDone",
    "SliverGone",
    "SliverRow",
    "SliverSeen",
    "SnapshotGone",
    "SnapshotMade",
    "StepSeen",
    "UnclaimedSliver",
    "Update",
    "elsewhere",
    "image",
    "images",
    "pending_ids",
    "pending_operations",
    "record",
    "slivers",
]

# The desired state of slivers after each operation (None: unchanged); the other kinds concern an image or the node.
SLIVER_OPERATIONS: dict[str, Desired | None] = {
    "create": Desired.RUNNING,
    "spare": Desired.RUNNING,
    "start": Desired.RUNNING,
    "stop": Desired.STOPPED,
    "restart": Desired.RUNNING,
    "pause": Desired.PAUSED,
    "resume": Desired.RUNNING,
    "resize": None,
    "keys": None,
    "snapshot": None,
    "snapshot-delete": None,
    "restore": None,
    "rebuild": None,
    "delete": Desired.ABSENT,
}
_LIMITS = tuple(field.name for field in fields(model.Limits))  # columns of the same names
# What a spare has instead of the columns of a slice.
_NO_SLICE: dict[str, sa.ColumnElement[Any]] = {
    **dict.fromkeys(("id", "user_data", "project"), sa.literal("")),
    "name": sa.literal(model.SPARE),
    "ssh_keys": sa.literal("[]"),
    "count": sa.literal(1),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A node's part of an operation, queued or running. slivers: all of the part, also those that are done."""

    id: str
    kind: str
    state: OperationState
    slice_id: str
    slice_name: str
    image: str  # sha256
    image_name: str
    user: str
    params: Json
    slivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SliverRow:
    """A sliver and its last observed state."""

    sliver: model.Sliver
    phase: Phase
    error: str


def pending_ids(c: Connection, node: str) -> set[str]:
    """The operations of which the node's part has not ended."""
    return set(c.scalars(_pending_ids(), {"node": node}))


def pending_operations(c: Connection, node: str, ids: Collection[str] | None = None) -> list[Operation]:
    """The operations of which the node's part has not ended, oldest first, with the state of the part and its slivers.

    ids: only those among these. Running ones are from an agent that died.
    """
    given = {"node": node, "ids": list(ids or ())}
    rows = c.execute(_pending_rows(ids is not None), given).all()
    if not rows:
        return []
    members: dict[str, list[str]] = defaultdict(list)
    for operation, sliver in c.execute(_pending_members(), {"node": node, "ids": [row[0] for row in rows]}):
        members[operation].append(sliver)
    found = []
    for id_, kind, state, *more in rows:
        values: list[Any] = [id_, kind, OperationState(state), *more, tuple(sorted(members[id_], key=_by_index))]
        found.append(Operation(*values))
    return found


# Statements are kept where making them takes longer than their execution: an agent reads them for each wake-up.


@cache
def _pending_ids() -> sa.Select[Any]:
    return sa.select(t.operation_parts.c.operation).where(operation_parts.of_node(sa.bindparam("node")))


@cache
def _pending_rows(some: bool) -> sa.Select[Any]:
    o, p = t.operations.c, t.operation_parts.c
    columns = (o.id, o.kind, p.state, o.slice_id, o.slice_name, o.image, o.image_name, o.user, o.params)
    query = (
        sa.select(*columns)
        .join(t.operation_parts, p.operation == o.id)
        .where(operation_parts.of_node(sa.bindparam("node")))
    )
    return (query.where(o.id.in_(_ids())) if some else query).order_by(o.created_at, o.id)


@cache
def _pending_members() -> sa.Select[Any]:
    s = t.operation_slivers.c
    return sa.select(s.operation, s.sliver).where(s.operation.in_(_ids()), s.node == sa.bindparam("node"))


def _ids() -> sa.BindParameter[Any]:
    return sa.bindparam("ids", expanding=True)


def _by_index(sliver: str) -> tuple[str, int]:
    tag, _, index = sliver.rpartition("-")
    return tag, int(index)


def joins_with_certificate(c: Connection, node: str) -> bool:
    """Whether the row of the node is of a host that joins the testbed with a certificate."""
    n = t.nodes.c
    return bool(c.scalar(sa.select(sa.exists().where(n.name == node, n.identity.is_not(None)))))


def elsewhere(c: Connection, node: str, ids: Collection[str]) -> set[str]:
    """Those of the slivers that exist on another node."""
    s = t.slivers.c
    return set(c.scalars(sa.select(s.id).where(s.id.in_(ids), s.node != node)))


def slivers(c: Connection, node: str, ids: Collection[str] | None = None) -> list[SliverRow]:
    """All slivers of the node, or those among `ids`, including those that should be absent: first those of slices, then
    the spares. At most four queries.
    """
    shall_have = snapshots.of_slivers(c, node, ids)
    rows = c.execute(_of_slices(ids is not None), {"node": node, "ids": list(ids or ())}).all()
    peers = _peers(c, node, {row[2] for row in rows if row[14] > 1})
    found = [_sliver_row(tuple(row), tuple(shall_have[row.id]), peers.get(row[2], ())) for row in rows]
    return found if ids is not None and len(found) == len(set(ids)) else found + _spares(c, node, ids)


def _spares(c: Connection, node: str, ids: Collection[str] | None) -> list[SliverRow]:
    """The spares of the node, or those among `ids`. The image of one that is to be deleted may not exist any more."""
    given = {"node": node, "ids": list(ids or ())}
    rows = [_sliver_row(tuple(row), (), ()) for row in c.execute(_of_spares(ids is not None), given)]
    return [replace(row, sliver=replace(row.sliver, tag=row.sliver.id.rpartition("-")[0], spare=True)) for row in rows]


@cache
def _of_slices(some: bool) -> sa.Select[Any]:
    sl = t.slices.c
    return _of(dict(sl), some).join(t.slices, sl.id == t.slivers.c.slice).join(*_image_of(sl.image))


@cache
def _of_spares(some: bool) -> sa.Select[Any]:
    p = t.spares.c
    query = _of(_NO_SLICE | dict(p), some).join(t.spares, p.sliver == t.slivers.c.id)
    return query.outerjoin(*_image_of(p.image))


def _image_of(sha256: sa.ColumnElement[str]) -> tuple[sa.Table, sa.ColumnElement[bool]]:
    return t.images, t.images.c.sha256 == sha256


def _of(owner: Mapping[str, sa.ColumnElement[Any]], some: bool) -> sa.Select[Any]:
    """The values that `_sliver_row` takes, in its order. owner: the columns of what the slivers belong to.

    The parameters are `node`, and if `some`, `ids`.
    """
    s, i = t.slivers.c, t.images.c
    facts = sa.func.coalesce(sa.cast(i.boot, sa.Text), "{}")
    query = sa.select(
        *(s.id, s.serial, owner["id"], owner["name"], s.idx, owner["type"], s.desired, owner["image"]),
        *(sa.func.coalesce(i.arch, ""), s.address, s.port_first, s.port_count, s.uid_first),
        sa.cast(owner["ssh_keys"], sa.Text),
        *(owner["count"], s.host_key, s.generation, s.phase, s.error),
        *(sa.func.coalesce(i.format, ""), sa.func.coalesce(i.virtual_size, 0), facts),
        *(owner["boot"], owner["user_data"], owner["project"], s.origin, s.inherited, s.epoch),
        *(owner["init"], owner["machine"], *(s[name] for name in _LIMITS)),
    )
    query = query.select_from(t.slivers).where(s.node == sa.bindparam("node")).order_by(s.serial)
    return query.where(s.id.in_(_ids())) if some else query


def _peers(c: Connection, node: str, slices: Collection[str]) -> dict[str, tuple[tuple[int, str], ...]]:
    """Index and address of the slivers of these slices on the node: addresses are private to it."""
    if not slices:
        return {}
    s = t.slivers.c
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    query = sa.select(s.slice, s.idx, s.address).where(s.node == node, s.slice.in_(slices))
    for slice_id, index, address in c.execute(query.order_by(s.slice, s.idx)):
        found[slice_id].append((index, address))
    return {slice_id: tuple(each) for slice_id, each in found.items()}


def _sliver_row(
    row: tuple[Any, ...], shall_have: tuple[model.SliverSnapshot, ...], peers: tuple[tuple[int, str], ...]
) -> SliverRow:
    sliver = model.Sliver(
        id=row[0],
        serial=row[1],
        tag=row[2],
        slice_name=row[3],
        index=row[4],
        type=SliverType(row[5]),
        desired=Desired(row[6]),
        image=row[7],
        arch=row[8],
        address=row[9],
        ports=model.PortBlock(row[10], row[11]),
        uid_first=row[12],
        limits=model.Limits(*row[30:]),
        ssh_keys=_keys(row[13]),
        siblings=row[14],
        host_key=row[15],
        generation=row[16],
        image_format=row[19],
        image_size=row[20],
        boot_facts=_boot_facts(row[21]),
        boot=model.Boot(row[22]),
        user_data=row[23],
        project=row[24],
        origin=row[25],
        inherited=row[26],
        epoch=row[27],
        init=model.Init(row[28]),
        machine=model.Machine(row[29]),
        snapshots=shall_have,
        peers=peers,
    )
    return SliverRow(sliver, Phase(row[17]), row[18])


@lru_cache(maxsize=256)
def _boot_facts(text: str) -> model.BootFacts:
    return model.BootFacts(**json.loads(text))


@lru_cache(maxsize=256)
def _keys(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def images(c: Connection, sha256: str | None = None) -> list[model.Image]:
    """All images, including those that are being imported or deleted; or the one with this sha256."""
    i = t.images.c
    columns = (i.sha256, i.name, i.format, i.virtual_size, i.file_size, i.arch, i.os, i.state, i.created_at, i.boot)
    stream = (i.stream_sha256, i.stream_size, i.stream_version)
    query = sa.select(*columns, i.systemd, i.base_size, *stream).order_by(i.name)
    return [
        model.Image(
            *row[:7],
            state=ImageState(row[7]),
            created_at=row[8],
            boot=model.BootFacts(**row[9]),
            systemd=row[10],
            base_size=row[11],
            stream=model.BaseStream(*row[12:]) if row[12] else None,
        )
        for row in c.execute(query if sha256 is None else query.where(i.sha256 == sha256)).all()
    ]


def images_without_config(c: Connection) -> list[model.Image]:
    """The images that are ready, and of which it is not known whether their kernel has a configuration.

    None on a node that has joined: the centre has these rows.
    """
    if c.scalar(sa.select(t.mirror.c.id)) is not None:
        return []
    known = set(c.scalars(sa.select(t.kernel_configs.c.image)))
    return [one for one in images(c) if one.state is ImageState.READY and one.sha256 not in known]


def image(c: Connection, sha256: str) -> model.Image | None:
    return next(iter(images(c, sha256)), None)
