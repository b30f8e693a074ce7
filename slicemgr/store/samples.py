"""Samples in the store: inserted in batches, summed to 5 minutes and hours, and deleted after their retention.

A row's `at` is the end of its span. Counters are stored as increments, so sums of rows are right across restarts. Rows
of a coarser resolution are computed from those of the next finer one once their whole span is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import RecordConfig
from slicemgr.figures import COUNTED, HOURS, MINUTES, RAW, Known, Usage
from slicemgr.store import tables as t
from slicemgr.store.observations import insert

_HOUR, _GIB = 3600, 1 << 30
_SPANS_AT_ONCE = 12  # summed up in one transaction
_TABLES = (t.samples, t.node_samples)
_BY_SECONDS = ("memory_total", "swap_total", "disk", "disk_total", "referenced", "load", "sample_seconds", "sample_cpu")
_BY_RUNNING = ("memory", "charged", "working", "guest", "swap")
_MAXIMA = ("memory_peak", "charged_peak", "cpu_peak", "pids", "connections", "lxc", "kvm")
_ACCOUNTED = (
    "sliver_hours",
    "cpu_hours",
    "memory_gib_hours",
    "disk_gib_hours",
    "net_in",
    "net_out",
    "io_read",
    "io_written",
)
_SUMS = ("seconds", "running", "cpu", *COUNTED)

Json = dict[str, Any]


def slivers(c: Connection, node: str) -> list[Known]:
    """All slivers of the node."""
    s, l = t.slivers.c, t.slices.c
    n = t.sliver_snapshots.c
    held = sa.cast(sa.func.coalesce(sa.func.sum(n.size), 0), sa.BigInteger)  # a sum is a decimal in PostgreSQL
    kept = sa.select(held).where(n.sliver == s.id).scalar_subquery()
    columns = (s.serial, s.id, l.project, l.type, s.address, s.inherited, kept)
    query = sa.select(*columns).join(t.slices, l.id == s.slice).where(s.node == node).order_by(s.serial)
    return [Known(*row) for row in c.execute(query)]


def write(
    c: Connection, whole: Json, parts: Sequence[Json], projects: Mapping[int, str], usage: Sequence[Usage] = ()
) -> None:
    """Write one sample: the node's row, its slivers' rows, the additions to the projects' accounts, and the usage.

    A second sample within the same second is ignored. projects: by the slivers' serials.
    """
    n = t.node_samples.c
    there = (n.node == whole["node"], n.resolution == whole["resolution"], n.at == whole["at"])
    if c.scalar(sa.select(n.at).where(*there)) is not None:
        return
    c.execute(t.node_samples.insert().values(whole))
    if parts:
        c.execute(t.samples.insert(), list(parts))
        _charge(c, parts, projects)
    if usage:
        _latest(c, usage, whole["at"])


def _latest(c: Connection, usage: Sequence[Usage], at: int) -> None:
    s = t.slivers.c
    values = {
        "usage_working": sa.bindparam("b_working"),
        "usage_charged": sa.bindparam("b_charged"),
        "usage_disk": sa.bindparam("b_disk"),
        "guest_memory": sa.bindparam("b_guest"),
        "usage_at": at,
    }
    statement = t.slivers.update().where(s.serial == sa.bindparam("b_serial")).values(**values)
    c.execute(statement, [{f"b_{name}": value for name, value in one._asdict().items()} for one in usage])


def _charge(c: Connection, parts: Sequence[Json], projects: Mapping[int, str]) -> None:
    month = datetime.fromtimestamp(parts[0]["at"], UTC).strftime("%Y-%m")
    used: dict[str, Json] = {}
    for part in parts:
        amounts = {
            "sliver_hours": part["running"] / _HOUR,
            "cpu_hours": part["cpu"] / _HOUR,
            "memory_gib_hours": (part["charged"] or 0) / _GIB * part["running"] / _HOUR,
            "disk_gib_hours": (part["disk"] or 0) / _GIB * part["seconds"] / _HOUR,
            **{name: part[name] for name in ("net_in", "net_out", "io_read", "io_written")},
        }
        row = used.setdefault(projects[part["sliver"]], dict.fromkeys(amounts, 0))
        for name, amount in amounts.items():
            row[name] += amount
    statement = insert(c, t.accounts)
    a, new = t.accounts.c, statement.excluded
    added = {name: a[name] + new[name] for name in _ACCOUNTED}
    statement = statement.on_conflict_do_update(index_elements=["project", "month"], set_=added)
    c.execute(statement, [{"project": project, "month": month, **row} for project, row in sorted(used.items())])


# --- summing up, forgetting -------------------------------------------------------------------------------------------


def sum_up(c: Connection, node: str, now: int) -> bool:
    """Compute the next coarser rows, hours only from complete minutes; whether there is more to do."""
    return _sum_up(c, node, RAW, MINUTES, now) or _sum_up(c, node, MINUTES, HOURS, now)


def _sum_up(c: Connection, node: str, fine: int, coarse: int, now: int) -> bool:
    n = t.node_samples.c
    mine = sa.and_(n.node == node, n.resolution == fine)
    done: int = c.scalar(sa.select(sa.func.max(n.at)).where(n.node == node, n.resolution == coarse)) or 0
    following: int | None = c.scalar(sa.select(sa.func.min(n.at)).where(mine, n.at > done))
    if following is None:
        return False
    last = max(done, (following - 1) // coarse * coarse)  # skips the time without rows of a node that was off for long
    end = min(now // coarse * coarse, last + _SPANS_AT_ONCE * coarse)
    if end <= last:
        return False
    for table in _TABLES:
        _insert_sums(c, table, node, fine, coarse, last, end)
    return now // coarse * coarse > end


def _insert_sums(c: Connection, table: sa.Table, node: str, fine: int, coarse: int, after: int, until: int) -> None:
    """Insert rows for the spans that end within (after, until]."""
    k = table.c
    span = (k.at + (coarse - 1)) // coarse * coarse
    groups = [span] if table is t.node_samples else [span, k.sliver]
    chosen: dict[str, sa.ColumnElement[Any]] = {
        "node": sa.literal(node),
        "resolution": sa.literal(coarse, sa.Integer),
        "at": span,
    }
    for column in table.columns:
        if column.name not in chosen:
            chosen[column.name] = _summed(table, column)
    query = (
        sa.select(*(value.label(name) for name, value in chosen.items()))
        .where(k.node == node, k.resolution == fine, k.at > after, k.at <= until)
        .group_by(*groups)
    )
    c.execute(table.insert().from_select(list(chosen), query))


def _summed(table: sa.Table, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    name = column.name
    if name in _MAXIMA:
        return sa.func.max(column)
    if name in _SUMS:
        return sa.cast(sa.func.sum(column), column.type)
    if name not in (*_BY_SECONDS, *_BY_RUNNING):
        return column  # the columns to group by
    weight = table.c.running if name in _BY_RUNNING and "running" in table.c else table.c.seconds
    known = sa.func.sum(sa.case((column.is_not(None), weight)))
    mean = sa.func.coalesce(sa.func.sum(column * weight) / sa.func.nullif(known, 0), sa.func.avg(column))
    return sa.cast(sa.func.round(mean), column.type) if isinstance(column.type, sa.BigInteger) else mean


def forget(c: Connection, node: str, record: RecordConfig, now: int) -> None:
    """Delete rows older than `record` allows, an hour's worth in each call, and rows that a wrong clock put in the
    future.
    """
    for resolution, keep in ((RAW, record.keep), (MINUTES, record.keep_5m), (HOURS, record.keep_1h)):
        limit = now - int(keep.total_seconds())
        for table in _TABLES:
            mine = sa.and_(table.c.node == node, table.c.resolution == resolution)
            oldest = c.scalar(sa.select(sa.func.min(table.c.at)).where(mine))
            if oldest is not None and oldest <= limit:
                step = max(_HOUR, resolution)
                c.execute(table.delete().where(mine, table.c.at <= min(limit, oldest + step)))
            c.execute(table.delete().where(mine, table.c.at > now + max(_HOUR, 2 * resolution)))


# --- reading ----------------------------------------------------------------------------------------------------------


def of_node(c: Connection, node: str, resolution: int, since: int, until: int) -> list[Row[*tuple[Any, ...]]]:
    """A node's rows with since < at <= until; the part that is not summed yet has the finer resolution."""
    n = t.node_samples.c
    found: list[Row[*tuple[Any, ...]]] = []
    for level in _finer(resolution):
        mine = (n.node == node, n.resolution == level, n.at > since, n.at <= until)
        found += c.execute(sa.select(t.node_samples).where(*mine).order_by(n.at))
        since = max([since, *(row.at for row in found)])
    return found


def of_slivers(
    c: Connection, serials: Sequence[int], resolution: int, since: int, until: int, *, together: bool = False
) -> list[Row[*tuple[Any, ...]]]:
    """The rows of some slivers of one node, by time; the part that is not summed yet has the finer resolution.

    together: one row for each time, the sum of the slivers. The node's own rows supply the times, so that each is one
    lookup in an index.
    """
    n, s = t.node_samples.c, t.samples.c
    same = sa.and_(s.node == n.node, s.resolution == n.resolution, s.at == n.at)
    nodes = sa.select(t.slivers.c.node).where(t.slivers.c.serial.in_(serials))
    columns = [_merged(column) for column in t.samples.columns] if together else [t.samples]
    found: list[Row[*tuple[Any, ...]]] = []
    for level in _finer(resolution):
        times = (n.node.in_(nodes), n.resolution == level, n.at > since, n.at <= until)
        query = sa.select(*columns).select_from(t.node_samples).join(t.samples, same)
        query = query.where(*times, s.sliver.in_(serials))
        found += c.execute(query.group_by(s.at).order_by(s.at) if together else query.order_by(s.at, s.sliver))
        if level:
            since = max(since, c.scalar(sa.select(sa.func.max(n.at)).where(*times)) or since)
    return found


def _merged(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """The sum over slivers at one time; for durations, the longest."""
    if column.name == "at":
        return column
    if column.name in ("node", "resolution", "sliver", "seconds", "running"):
        return sa.func.max(column).label(column.name)
    return sa.cast(sa.func.sum(column), column.type).label(column.name)


def _finer(resolution: int) -> list[int]:
    """The resolution and the finer ones, the coarsest first."""
    return [one for one in (HOURS, MINUTES, RAW) if one <= resolution]


def newest(c: Connection, not_before: int) -> dict[str, Row[*tuple[Any, ...]]]:
    """The last sample of each node, unless it is older than `not_before`."""
    n = t.node_samples.c
    last = (
        sa.select(n.node, sa.func.max(n.at).label("at"))
        .where(n.resolution == RAW, n.node.in_(sa.select(t.nodes.c.name)))
        .group_by(n.node)
        .subquery()
    )
    found = sa.and_(n.node == last.c.node, n.at == last.c.at, n.resolution == RAW)
    rows = c.execute(sa.select(t.node_samples).join(last, found).where(n.at >= not_before))
    return {row.node: row for row in rows}


def at(c: Connection, node: str, moment: int, serials: Sequence[int] | None = None) -> list[Row[*tuple[Any, ...]]]:
    """The rows of one sample, of all slivers or of some."""
    s = t.samples.c
    query = sa.select(t.samples).where(s.node == node, s.resolution == RAW, s.at == moment)
    return list(c.execute(query if serials is None else query.where(s.sliver.in_(serials))))


def accounts(projects: Sequence[str] | None, months: tuple[str, str]) -> sa.Select[*tuple[Any, ...]]:
    """Accounts by project and month, from the first to the last month; projects None: all."""
    a = t.accounts.c
    query = sa.select(t.accounts).where(a.month.between(*months))
    return query if projects is None else query.where(a.project.in_(projects))
