"""The outbox of a node that has joined a testbed: updates of its agent, until the centre has applied them.

The journal writes them in the transaction that records them. What was only seen replaces what was seen before, so the
outbox of a node without a connection stays bounded. All functions use a connection of `store.write()`.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.model import NodeImageState, OperationState, Phase
from slicemgr.store import rows, sample_reports
from slicemgr.store import tables as t
from slicemgr.store.updates import (
    EventSeen,
    ImageGone,
    ImageOnNode,
    ImageSeen,
    NodeSampled,
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
)

KINDS: Mapping[str, type] = {
    "event": EventSeen,
    "image": ImageSeen,
    "image-gone": ImageGone,
    "image-on-node": ImageOnNode,
    "node-sample": NodeSampled,
    "operation-ended": OperationEnded,
    "operation-started": OperationStarted,
    "sliver": SliverSeen,
    "sliver-done": SliverDone,
    "sliver-gone": SliverGone,
    "sliver-sample": SliverSampled,
    "snapshot": SnapshotMade,
    "snapshot-gone": SnapshotGone,
    "step": StepSeen,
    "used": SliverUsed,
}
_NAMES = {kind: name for name, kind in KINDS.items()}  # other updates are not for the centre
_SAMPLES = ("sliver-sample", "node-sample")  # kinds, and beginnings of their keys
_MOST_EVENTS = 2000  # that wait; older ones are deleted
_LARGEST = 128 << 10  # characters of one update
_BATCH, _BATCH_SIZE = 200, 256 << 10  # updates in one report, and their characters

# Statements for each report are made once, because to make one takes longer than to execute it.
_M, _O = t.mirror.c, t.outbox.c
_KEYS: sa.BindParameter[Any] = sa.bindparam("keys", expanding=True)
_STATE = sa.select(_M.incarnation, _M.revision, _M.received, _M.acknowledged)
_WAITING = sa.select(_O.key, _O.body).where(_O.key.in_(_KEYS))
_DELETE_WAITING = t.outbox.delete().where(_O.key.in_(_KEYS))
_OLDEST = sa.select(_O.seq, _O.kind, _O.body).order_by(_O.seq).limit(_BATCH)
_DELETE_APPLIED = t.outbox.delete().where(_O.seq <= sa.bindparam("applied"))

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """See tables.mirror."""

    incarnation: int
    revision: str
    received: int
    acknowledged: int


def state(c: Connection) -> State:
    """The state of this mirror; a new one begins with the first call."""
    row = c.execute(_STATE).first()
    if row is None:
        c.execute(t.mirror.insert().values(id=1, incarnation=int(time.time() * 1000)))
        return state(c)
    return State(*row)


def add(c: Connection, updates: Iterable[Update]) -> None:
    """Queue updates for the centre. Call it before they are recorded: a sliver's last usage precedes its end."""
    waiting: dict[str, Json] = {}  # by key
    rest: list[Json] = []
    for update in _with_last_usage(c, updates):
        name = _NAMES.get(type(update))
        if name is None:
            continue
        key = _key(update)
        row: Json = {"kind": name, "key": key, "body": _body(update)}
        if key:
            row = waiting[key] = _merged(waiting.get(key), row)
            rest = [one for one in rest if one["key"] != key]
        rest.append(row)
    if not rest:
        return
    before = {row.key: row for row in c.execute(_WAITING, {"keys": list(waiting)})} if waiting else {}
    if before:
        c.execute(_DELETE_WAITING, {"keys": list(before)})
    earlier = {key: {"body": row.body} for key, row in before.items()}
    c.execute(t.outbox.insert(), [_merged(earlier.get(one["key"]), one) for one in rest])
    if any(one["kind"] == "event" for one in rest):
        _forget_events(c)
    if any(one["kind"] in _SAMPLES for one in rest):
        _forget_samples(c)


def _with_last_usage(c: Connection, updates: Iterable[Update]) -> Iterator[Update]:
    for update in updates:
        if isinstance(update, SliverGone):
            yield from sample_reports.last(c, update.sliver)
        yield update


def _key(update: Update) -> str:
    """What a later update replaces; "": nothing."""
    match update:
        case SliverSeen():
            return f"sliver {update.sliver}"
        case SliverUsed():
            return f"used {update.sliver}"
        case ImageSeen():
            return f"image {update.sha256}"
        case ImageOnNode():
            return f"image on node {update.sha256}"
        case SliverSampled():
            return f"sliver-sample {update.at:011} {update.sliver}"
        case NodeSampled():
            return f"node-sample {update.at:011} {update.resolution}"
        case StepSeen(state=OperationState.RUNNING):
            return f"step {update.operation} {update.sliver} {update.name}"
        case _:
            return ""


def _merged(before: Mapping[str, Any] | None, row: Json) -> Json:
    """The later update, with the values of the earlier one that it keeps. A step began when it was first seen."""
    if before is None:
        return row
    began = {"at": before["body"]["at"]} if row["kind"] == "step" else {}
    return {**row, "body": {**before["body"], **row["body"], **began}}


def _body(update: Update) -> Json:
    found = {one.name: _plain(getattr(update, one.name)) for one in dataclasses.fields(update)}
    body = {name: value for name, value in found.items() if value is not None}
    if len(json.dumps(body)) > _LARGEST:
        body.pop("result", None)
        body.pop("kernel_config", None)
    return body


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return rows.plain(value)
    return dict(value) if isinstance(value, Mapping) else value


def _forget_events(c: Connection) -> None:
    o = t.outbox.c
    newest = sa.select(o.seq).where(o.kind == "event").order_by(o.seq.desc()).offset(_MOST_EVENTS).limit(1)
    oldest = c.scalar(newest)
    if oldest is not None:
        c.execute(t.outbox.delete().where(o.kind == "event", o.seq <= oldest))


def _forget_samples(c: Connection) -> None:
    """Those that are older than a week."""
    o, oldest = t.outbox.c, int(time.time()) - sample_reports.KEPT
    for kind in _SAMPLES:
        c.execute(t.outbox.delete().where(o.key.between(f"{kind} ", f"{kind} {oldest:011}")))


def batch(c: Connection) -> list[tuple[int, str, Json]]:
    """The oldest updates, as many as one report has: number, kind and content."""
    found: list[tuple[int, str, Json]] = []
    size = 0
    for row in c.execute(_OLDEST):
        size += len(json.dumps(row.body))
        if found and size > _BATCH_SIZE:
            break
        found.append((row.seq, row.kind, row.body))
    return found


def acknowledge(c: Connection, incarnation: int, applied: int, *, again: bool = False) -> bool:
    """Delete what the centre has applied, and events, which it shows.

    False: instead the mirror became a new incarnation, and reports everything. That happens if the centre asks for it,
    or has more than was ever sent: then this database is an old copy.
    """
    now = state(c)
    if incarnation < now.incarnation:
        return True  # of an earlier life of this mirror
    last = rows.last_number(c, t.outbox) or 0
    if incarnation > now.incarnation or again or applied > last:
        c.execute(t.mirror.update().values(incarnation=incarnation + 1, acknowledged=0))
        _report_all(c)
        return False
    c.execute(_DELETE_APPLIED, {"applied": applied})
    c.execute(t.events.delete())  # those that are not in the outbox are at the centre
    c.execute(t.mirror.update(), {"acknowledged": max(applied, now.acknowledged)})
    return True


def _report_all(c: Connection) -> None:
    """Queue the state of all slivers, snapshots and images, and what was used within a week."""
    s, n = t.slivers.c, t.sliver_snapshots.c
    columns = (s.id, s.phase, s.error, s.host_key, s.acceleration, s.booted, s.keys_missing)
    made = sa.select(n.sliver, n.snapshot, n.size, n.detail, n.made_at).where(n.made_at.is_not(None))
    seen: Sequence[Update] = [
        SliverSeen(id_, Phase(phase), *rest) for id_, phase, *rest in c.execute(sa.select(*columns).order_by(s.serial))
    ]
    x = t.image_nodes.c
    held = c.execute(sa.select(t.image_nodes).order_by(x.image)).all()
    images = [
        ImageOnNode(
            *(row.image, row.node, NodeImageState(row.state), row.error, row.base_size),
            disk=NodeImageState(row.disk or NodeImageState.ABSENT),
            base=NodeImageState(row.base or NodeImageState.ABSENT),
            stream=row.stream,
        )
        for row in held
    ]
    add(c, [*seen, *(SnapshotMade(*row) for row in c.execute(made)), *images, *sample_reports.everything(c)])
