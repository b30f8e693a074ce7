"""What a node may report: updates as the agent of a possibly hostile host sent them become ones that may be recorded.

A node changes the slivers and operations that it has, and nothing else. An update that it may not make is dropped.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.hub import usage
from slicemgr.model import BootFacts, Desired, ImageState, NodeImageState, OperationState, Phase
from slicemgr.policy import kernel_config
from slicemgr.store import operation_parts, out_of_memory, outbox, updates
from slicemgr.store import tables as t
from slicemgr.store.updates import Update, utcnow

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_STEP = re.compile(r"[a-z0-9][a-z0-9 _-]{0,59}")
HOST_KEY = re.compile(r"((ssh|ecdsa)-[a-z0-9-]{1,40} [A-Za-z0-9+/]{16,2000}={0,2}( [!-~]{0,200})?)?")
SHA256 = re.compile(r"[0-9a-f]{64}")
ARCH = re.compile(r"[a-z0-9_]{0,20}")
_PATH = re.compile(r"((/[A-Za-z0-9][A-Za-z0-9._+~-]{0,250}){1,3})?")  # of a kernel or an initrd in an image
_PROGRAM, _PROGRAMS = re.compile(r"[a-z0-9-]{1,40}"), 100  # a name in kernel.toml; how many there may be
_ROOT = re.compile(r"(root=[A-Za-z0-9=/._+@-]{1,300}( rootflags=subvol=[A-Za-z0-9@_.+/-]{1,300})?)?")
_LONGEST_TEXT = 4000  # characters
_LARGEST_RESULT = 128 << 10  # characters of JSON
_DEEPEST = 12
_LARGEST_NUMBER = 1 << 53
MOST_BYTES = 1 << 54
_OLDEST = timedelta(days=30)  # of a time that a node reports
_FURTHEST = 86400.0  # seconds by which a clock may be wrong and its times are corrected
_MOST_STEPS = 32  # of an operation, for each of its slivers
# Of events that agents report.
_ACTIONS = ("repair", out_of_memory.ACTION, updates.KEEP_DISK, updates.MEMORY_SHORT, updates.MEMORY_TAKEN)

Reader = Callable[[Any], Any]


def accepted(c: Connection, node: str, found: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Update]:
    """The updates of a node that may be recorded. found: kind and content of each. Logs what is dropped."""
    facts = c.scalar(_FACTS, {"node": node}) or {}
    ahead = timedelta(seconds=min(max(facts.get("clock_ahead", 0), -_FURTHEST), _FURTHEST))
    decoded = [_decoded(kind, content, ahead) for kind, content in found]
    wanted = [one for one in decoded if one is not None]
    known = _known(c, node, wanted, facts)
    allowed = [one for one in (_allowed(known, update) for update in wanted) if one is not None]
    allowed = _affordable(c, known, allowed)
    if len(allowed) < len(decoded):
        log.warning("%d of %d updates of node %s are dropped", len(decoded) - len(allowed), len(decoded), node)
    return allowed


# --- the form of an update ------------------------------------------------------------------------------------------


def _decoded(kind: str, content: Mapping[str, Any], ahead: timedelta = timedelta()) -> Update | None:
    """None for anything that is not an update for the centre. Fields that this version does not know are ignored."""
    readers = _READERS.get(kind)
    if readers is None:
        return None
    try:
        fields = {name: read(content[name]) for name, read in readers.items() if content.get(name) is not None}
        times = {name: _possible(one - ahead) for name, one in fields.items() if isinstance(one, datetime)}
        made: Update = outbox.KINDS[kind](**fields | times)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None
    return made


def _matching(pattern: re.Pattern[str]) -> Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError
        return value

    return read


def _text(value: Any) -> str:
    """Bounded and printable."""
    if not isinstance(value, str):
        raise TypeError
    return "".join(one if one.isprintable() else " " for one in value[:_LONGEST_TEXT])


def _number(most: int) -> Reader:
    def read(value: Any) -> int:
        if type(value) is not int or value < 0:
            raise ValueError
        return min(value, most)

    return read


def _time(value: Any) -> datetime:
    """By the clock of the node."""
    if not isinstance(value, str):
        raise TypeError
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError
    return found.astimezone(UTC)


def _possible(at: datetime) -> datetime:
    """Not in the future, and not long ago, whatever the clock of the node says."""
    now = utcnow()
    return min(max(at, now - _OLDEST), now)


def _ended(value: Any) -> OperationState:
    found = OperationState(value)
    if not found.ended:
        raise ValueError
    return found


def _imported(value: Any) -> ImageState:
    """An import ends with an image that is ready."""
    if value != ImageState.READY:
        raise ValueError
    return ImageState.READY


def boot(value: Any) -> dict[str, Any]:
    """The facts of an image for booting it, whose texts become paths in the image and arguments of its kernel."""
    found = BootFacts(**value)
    if any(type(one) is not bool for one in (found.bios, found.uefi, found.mmio)):
        raise TypeError
    for text, pattern in ((found.kernel, _PATH), (found.initrd, _PATH), (found.root, _ROOT)):
        _matching(pattern)(text)
    if not isinstance(value.get("programs", []), list) or len(found.programs) > _PROGRAMS:
        raise TypeError
    for name in found.programs:
        _matching(_PROGRAM)(name)
    return found.to_json()


def _kernel_config(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return kernel_config.shown(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _result(value: Any) -> Any:
    if not isinstance(value, dict) or len(json.dumps(value)) > _LARGEST_RESULT:
        raise ValueError
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        if not math.isfinite(value) or abs(value) > 1 << 60:
            raise ValueError
        return value
    if depth >= _DEEPEST:
        raise ValueError
    if isinstance(value, list):
        return [_plain(one, depth + 1) for one in value]
    return {_text(name): _plain(one, depth + 1) for name, one in value.items()}


_id, _bytes = _matching(_ID), _number(MOST_BYTES)
_READERS: Mapping[str, Mapping[str, Reader]] = {
    "event": {"user": _text, "action": _text, "slice": _text, "detail": _text, "project": _text, "at": _time},
    "image": {
        "sha256": _matching(SHA256),
        "state": _imported,
        "arch": _matching(ARCH),
        "os": lambda value: _text(value)[:100],
        "virtual_size": _bytes,
        "boot": boot,
        "base_size": _bytes,
        "systemd": _flag,
        "kernel_config": _kernel_config,
    },
    "image-gone": {"sha256": _matching(SHA256)},
    "image-on-node": {
        "sha256": _matching(SHA256),
        "node": _text,
        "state": NodeImageState,
        "error": lambda value: _text(value)[:300],
        "base_size": _bytes,
        "disk": NodeImageState,
        "base": NodeImageState,
        "stream": _flag,
    },
    "node-sample": {
        "resolution": usage.resolution,
        "at": _number(_LARGEST_NUMBER),
        "values": usage.reader(t.node_samples),
    },
    "operation-ended": {
        "operation": _id,
        "state": _ended,
        "error": _text,
        "hint": _text,
        "result": _result,
        "at": _time,
    },
    "operation-started": {"operation": _id, "at": _time},
    "sliver": {
        "sliver": _id,
        "phase": Phase,
        "error": _text,
        "host_key": _matching(HOST_KEY),
        "acceleration": _text,
        "booted": _text,
        "keys_missing": _text,
        "memory_started": _bytes,
    },
    "sliver-done": {"operation": _id, "sliver": _id, "state": _ended},
    "sliver-gone": {"sliver": _id},
    "sliver-sample": {"sliver": _id, "at": _number(_LARGEST_NUMBER), "values": usage.reader(t.samples)},
    "snapshot": {"sliver": _id, "snapshot": _id, "size": _bytes, "detail": _text, "at": _time},
    "snapshot-gone": {"snapshot": _id},
    "step": {
        "operation": _id,
        "sliver": lambda value: value if value == "" else _id(value),
        "name": _matching(_STEP),
        "state": OperationState,
        "detail": _text,
        "percent": _number(100),
        "at": _time,
    },
    "used": {
        "sliver": _id,
        "at": _number(_LARGEST_NUMBER),
        "oom_kills": _number(1 << 31),
        "oom_at": _time,
        **dict.fromkeys(("working", "charged", "disk", "guest"), _bytes),
    },
}


# --- what the node may change ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """The rows of one node. slivers: by id, with the time of their slice or spare. operations: that have not ended.

    images: the kinds of its operations on images that have not ended, each with the image.
    """

    node: str
    slivers: Mapping[str, Row[*tuple[Any, ...]]]
    operations: Mapping[str, _Operation]
    slices: frozenset[tuple[str, str]]  # project and name
    images: frozenset[tuple[str, str]]
    capacity: usage.Capacity


@dataclass(slots=True)
class _Operation:
    kind: str
    params: Mapping[str, Any]
    slivers: set[str] = field(default_factory=set)
    steps: int = 0


def _known(c: Connection, node: str, found: Sequence[Update], facts: Mapping[str, Any]) -> _Known:
    named = {one for update in found if isinstance(one := getattr(update, "sliver", None), str)}
    slices: Iterable[Any] = ()
    if any(isinstance(one, updates.EventSeen) for one in found):
        s, l = t.slivers.c, t.slices.c
        slices = c.execute(sa.select(l.project, l.name).where(l.id.in_(sa.select(s.slice).where(s.node == node))))
    return _Known(
        node,
        {row.id: row for row in c.execute(_SLIVERS, {"node": node, "ids": list(named)})} if named else {},
        _operations(c, node, found),
        frozenset((row.project, row.name) for row in slices),
        _images(c, node, found),
        usage.Capacity(*(_capacity(facts, name) for name in ("cpus", "memory", "disk_total"))),
    )


def _capacity(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    return int(value) if isinstance(value, int | float) and value > 0 else MOST_BYTES


def _operations(c: Connection, node: str, found: Sequence[Update]) -> dict[str, _Operation]:
    named = {one for update in found if isinstance(one := getattr(update, "operation", None), str)}
    rows = list(c.execute(_OPERATIONS, {"node": node, "ids": list(named)})) if named else []
    if any(isinstance(one, updates.SnapshotGone) for one in found):
        rows += c.execute(_PENDING.where(t.operations.c.kind == "snapshot"), {"node": node})
    operations = {row.id: _Operation(row.kind, row.params, steps=row.steps) for row in rows}
    if operations:
        for row in c.execute(_MEMBERS, {"node": node, "ids": list(operations)}):
            operations[row.operation].slivers.add(row.sliver)
    return operations


def _images(c: Connection, node: str, found: Sequence[Update]) -> frozenset[tuple[str, str]]:
    if not any(isinstance(one, updates.ImageSeen | updates.ImageGone) for one in found):
        return frozenset()
    o = t.operations.c
    pending = sa.select(o.kind, o.image).where(_pending(node), o.image != "")
    return frozenset((row.kind, row.image) for row in c.execute(pending))


def _pending(node: str | sa.BindParameter[str]) -> sa.ColumnElement[bool]:
    """Operations with a part on the node that has not ended."""
    parts = sa.select(t.operation_parts.c.operation).where(operation_parts.of_node(node))
    return t.operations.c.id.in_(parts)


# Statements for each report are made once, because to make one takes longer than to execute it.
_NODE: sa.BindParameter[str] = sa.bindparam("node")
_IDS: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
_FACTS = sa.select(t.nodes.c.facts).where(t.nodes.c.name == _NODE)
_SLIVERS = (
    sa.select(
        t.slivers.c.id,
        t.slivers.c.serial,
        t.slivers.c.desired,
        sa.func.coalesce(t.slices.c.created_at, t.spares.c.created_at).label("created_at"),
    )
    .outerjoin(t.slices, t.slices.c.id == t.slivers.c.slice)
    .outerjoin(t.spares, t.spares.c.sliver == t.slivers.c.id)
    .where(t.slivers.c.node == _NODE, t.slivers.c.id.in_(_IDS))
)
_STEPS = sa.select(sa.func.count()).where(t.operation_steps.c.operation == t.operations.c.id).scalar_subquery()
_PENDING = sa.select(t.operations.c.id, t.operations.c.kind, t.operations.c.params, _STEPS.label("steps")).where(
    _pending(_NODE)
)
_OPERATIONS = _PENDING.where(t.operations.c.id.in_(_IDS))
_MEMBERS = sa.select(t.operation_slivers.c.operation, t.operation_slivers.c.sliver).where(
    t.operation_slivers.c.node == _NODE, t.operation_slivers.c.operation.in_(_IDS)
)


def _allowed(known: _Known, update: Update) -> Update | None:
    """The update as it may be recorded, None if the node may not make it."""
    match update:
        case updates.SliverSeen() | updates.SnapshotMade():
            return update if update.sliver in known.slivers else None
        case updates.SliverUsed():
            return _clamped(known, update) if update.sliver in known.slivers else None
        case updates.SliverGone():
            row = known.slivers.get(update.sliver)
            return update if row is not None and row.desired == Desired.ABSENT else None
        case updates.SliverSampled():
            row = known.slivers.get(update.sliver)
            return None if row is None else usage.of_sliver(update, row.created_at, known.capacity)
        case updates.NodeSampled():
            return usage.of_node(update, known.capacity)
        case updates.StepSeen() | updates.SliverDone() | updates.OperationStarted() | updates.OperationEnded():
            return update if _concerns(known.operations.get(update.operation), update) else None
        case updates.SnapshotGone():
            ids = {one.params.get("snapshot") for one in known.operations.values() if one.kind == "snapshot"}
            return update if update.snapshot in ids else None
        case updates.EventSeen():
            return _event(known, update)
        case updates.ImageOnNode():
            return replace(update, node=known.node, base_size=min(update.base_size, known.capacity.disk))
        case updates.ImageSeen():  # the node that imports an image has its findings; other nodes have none
            return update if ("image-import", update.sha256) in known.images else None
        case updates.ImageGone():
            kinds = ("image-import", "image-delete")
            return update if any((kind, update.sha256) in known.images for kind in kinds) else None
        case _:
            return None


def _concerns(operation: _Operation | None, update: Update) -> bool:
    if operation is None:
        return False
    match update:
        case updates.StepSeen():
            operation.steps += 1
            within = operation.steps <= _MOST_STEPS * (len(operation.slivers) + 1) * 2
            return within and update.sliver in operation.slivers | {""}
        case updates.SliverDone():
            return update.sliver in operation.slivers
        case _:
            return True


def _clamped(known: _Known, used: updates.SliverUsed) -> updates.SliverUsed:
    """No more than the node has, and no time in the future."""

    def most(value: int | None, limit: int) -> int | None:
        return None if value is None else min(value, limit)

    return replace(
        used,
        at=min(used.at, int(utcnow().timestamp())),
        working=most(used.working, known.capacity.memory),
        charged=most(used.charged, known.capacity.memory),
        guest=most(used.guest, known.capacity.memory),
        disk=most(used.disk, known.capacity.disk),
        oom_kills=None if used.oom_at is None else used.oom_kills,
    )


def _affordable(c: Connection, known: _Known, found: list[Update]) -> list[Update]:
    hours = [one for one in found if isinstance(one, updates.SliverSampled)]
    if not hours:
        return found
    serials = {one.sliver: known.slivers[one.sliver].serial for one in hours}
    kept = usage.affordable(c, known.node, hours, serials, known.capacity)
    return [*(one for one in found if not isinstance(one, updates.SliverSampled)), *kept]


def _event(known: _Known, event: updates.EventSeen) -> updates.EventSeen | None:
    """Events of agents are the agents': users and other slices appear in none."""
    if event.action not in _ACTIONS:
        return None
    own = (event.project, event.slice) in known.slices
    return replace(
        event,
        user="agent",
        slice=event.slice if own else "",
        project=event.project if own else "",
        detail=f"{known.node}: {event.detail}"[:_LONGEST_TEXT],
    )
