"""What a node may say that it and its slivers used: no more than it has, and not for other times than the last week."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.figures import HOURS, MINUTES
from slicemgr.store import sample_reports
from slicemgr.store import tables as t
from slicemgr.store.updates import NodeSampled, SliverSampled, utcnow

_OLDEST = sample_reports.KEPT + 86400  # seconds of the past that a report may be about
_AHEAD = 3600  # seconds by which the clock of a node may be ahead
_SLACK = 1.1  # measurements are not exact
_FASTEST = 50 << 30  # bytes or packets in a second, of any link or disk
_MOST = 1 << 53
_MANY = 1 << 31  # processes, connections, slivers
_MEMORY = ("memory", "memory_peak", "memory_total", "charged", "charged_peak", "working", "guest")
_DISK = ("disk", "disk_total", "referenced")
_COUNTS = ("pids", "connections", "lxc", "kvm")

Values = dict[str, Any]
Sum = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of a node, as its facts have it; memory and disk in bytes."""

    cpus: int
    memory: int
    disk: int


def reader(table: sa.Table) -> Callable[[Any], Values]:
    """Reads the values of a row from JSON. ValueError or TypeError."""
    columns = [one for one in table.columns if not one.primary_key]

    def read(value: Any) -> Values:
        if not isinstance(value, dict):
            raise TypeError
        return {one.name: _number(one, value.get(one.name)) for one in columns}

    return read


def _number(column: sa.Column[Any], value: Any) -> float | None:
    if value is None:
        return None if column.nullable else 0
    real = isinstance(column.type, sa.Float)
    if type(value) is not int and not (real and type(value) is float):
        raise ValueError
    if not math.isfinite(value) or value < 0:
        raise ValueError
    return float(min(value, _MOST)) if real else min(value, _MOST)


def resolution(value: Any) -> int:
    if value not in (MINUTES, HOURS) or type(value) is not int:
        raise ValueError
    return int(value)


def of_node(update: NodeSampled, most: Capacity) -> NodeSampled | None:
    if not _is_recent(update.at, update.resolution):
        return None
    return replace(update, values=_clamped(dict(update.values), update.resolution, most))


def of_sliver(update: SliverSampled, created: datetime, most: Capacity) -> SliverSampled | None:
    """created: of its slice."""
    if not _is_recent(update.at, HOURS) or update.at <= created.timestamp() - _AHEAD:
        return None
    return replace(update, values=_clamped(dict(update.values), HOURS, most))


def _is_recent(at: int, span: int) -> bool:
    now = utcnow().timestamp()
    return at % span == 0 and now - _OLDEST <= at <= now + span + _AHEAD


def _clamped(values: Values, span: int, most: Capacity) -> Values:
    """The values, each within what is possible."""
    values["seconds"] = seconds = min(values["seconds"], span)
    running = min(values.get("running", seconds), seconds)
    if "running" in values:
        values["running"] = running
    limits: Values = {
        **dict.fromkeys(_MEMORY, most.memory),
        **dict.fromkeys(_DISK, most.disk),
        **dict.fromkeys(_COUNTS, _MANY),
        "cpu": most.cpus * running,
        "cpu_peak": most.cpus,
        "pressure": 1_000_000 * max(1, int(seconds)),
        "load": _MANY,
        "sample_seconds": span,
        "sample_cpu": span,
    }
    for name, value in values.items():
        if value is None or name in ("seconds", "running"):
            continue
        limit = limits.get(name, _FASTEST * max(1, int(seconds)))
        values[name] = min(value, limit)
    return values


def affordable(
    c: Connection, node: str, found: Sequence[SliverSampled], serials: Mapping[str, int], most: Capacity
) -> list[SliverSampled]:
    """The reports that do not make all slivers of a node together use more than it has in an hour."""
    keys = [(one.at, serials[one.sliver]) for one in found]
    before = sample_reports.stored(c, node, keys)
    sums = _sums(c, node, {at for at, _ in keys})
    limits = [limit * HOURS * _SLACK for limit in (most.cpus, most.memory, most.disk)]
    kept = []
    for key, one in zip(keys, found, strict=True):
        old = _used(before.get(key))
        total = tuple(a - b + n for a, b, n in zip(sums[key[0]], old, _used(one.values), strict=True))
        if any(
            value > limit and n > b for value, limit, n, b in zip(total, limits, _used(one.values), old, strict=True)
        ):
            continue
        sums[key[0]] = total[0], total[1], total[2]
        before[key] = one.values
        kept.append(one)
    return kept


def _used(values: Mapping[str, Any] | None) -> Sum:
    """Seconds of processors, byte seconds of memory and of disk."""
    if values is None:
        return 0.0, 0.0, 0.0
    memory = (values["charged"] or 0) * values["running"]
    return values["cpu"], memory, (values["disk"] or 0) * values["seconds"]


def _sums(c: Connection, node: str, times: set[int]) -> dict[int, Sum]:
    k = t.samples.c
    used = (k.cpu, k.charged * k.running, k.disk * k.seconds)
    sums = (sa.func.coalesce(sa.func.sum(one), 0) for one in used)
    query = sa.select(k.at, *sums).where(k.node == node, k.resolution == HOURS, k.at.in_(times)).group_by(k.at)
    found: dict[int, Sum] = defaultdict(lambda: (0.0, 0.0, 0.0))
    for row in c.execute(query):
        found[row[0]] = float(row[1]), float(row[2]), float(row[3])
    return found
