"""Samples in the store: inserted in batches, summed to 5 minutes and hours, and deleted after their retention.

A row's `at` is the end of its span. Counters are stored as increments, so sums of rows are right across restarts. Rows
of a coarser resolution are computed from those of the next finer one once their whole span is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import RecordConfig
from slicemgr.figures import COUNTED, HOURS, MINUTES, RAW, Known, Usage
from slicemgr.store import tables as t
from slicemgr.store.dialect import insert

_HOUR, _GIB = 3600, 1 << 30
_SPANS_AT_ONCE = 12  # summed up in one transaction
_LATE = 3 * MINUTES  # seconds; 5-minute rows of nodes are reported once they are over
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
_LONGEST = ("node", "resolution", "sliver", "at", "seconds", "running")  # of slivers together
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
) -> bool:
    """Write one sample: the node's row, its slivers' rows, the additions to the projects' accounts, and the usage.

    Whether it was written: a second sample within the same second is not. projects: by the slivers' serials.
    """
    n = t.node_samples.c
    there = (n.node == whole["node"], n.resolution == whole["resolution"], n.at == whole["at"])
    if c.scalar(sa.select(n.at).where(*there)) is not None:
        return False
    c.execute(t.node_samples.insert().values(whole))
    if parts:
        c.execute(t.samples.insert(), list(parts))
        _charge(c, parts, projects)
    if usage:
        _latest(c, usage, whole["at"])
    return True


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
    used: dict[str, Json] = {}
    for part in parts:
        row = used.setdefault(projects[part["sliver"]], dict.fromkeys(_ACCOUNTED, 0))
        for name, amount in _amounts(part).items():
            row[name] += amount
    _add(c, parts[0]["at"], used)


def charge(c: Connection, project: str, hour: Json, before: Mapping[str, Any] | None) -> None:
    """Charge a project with what a row of an hour has more than the row that it replaces."""
    old = dict.fromkeys(_ACCOUNTED, 0) if before is None else _amounts(before)
    more = {name: max(0, amount - old[name]) for name, amount in _amounts(hour).items()}
    _add(c, hour["at"] - 1, {project: more})


def _amounts(part: Mapping[str, Any]) -> Json:
    return {
        "sliver_hours": part["running"] / _HOUR,
        "cpu_hours": part["cpu"] / _HOUR,
        "memory_gib_hours": (part["charged"] or 0) / _GIB * part["running"] / _HOUR,
        "disk_gib_hours": (part["disk"] or 0) / _GIB * part["seconds"] / _HOUR,
        **{name: part[name] for name in ("net_in", "net_out", "io_read", "io_written")},
    }


def _add(c: Connection, at: int, used: Mapping[str, Json]) -> None:
    """Add amounts to the accounts of projects in the month of a time."""
    month = datetime.fromtimestamp(at, UTC).strftime("%Y-%m")
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
    query = sums(table, node, coarse, [k.node == node, k.resolution == fine, k.at > after, k.at <= until])
    c.execute(table.insert().from_select([column.name for column in query.selected_columns], query))


def sums(table: sa.Table, node: str, coarse: int, rows: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """The sums of rows of a node over spans of `coarse` seconds, as rows of the table."""
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
    return sa.select(*(value.label(name) for name, value in chosen.items())).where(*rows).group_by(*groups)


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
    for resolution, limit, future in _bounds(record, now):
        for table in _TABLES:
            mine = sa.and_(table.c.node == node, table.c.resolution == resolution)
            oldest = c.scalar(sa.select(sa.func.min(table.c.at)).where(mine))
            if oldest is not None and oldest <= limit:
                step = max(_HOUR, resolution)
                c.execute(table.delete().where(mine, table.c.at <= min(limit, oldest + step)))
            c.execute(table.delete().where(mine, table.c.at > future))


def outdated(c: Connection, record: RecordConfig, now: int, most: int) -> list[str]:
    """The hosts that joined for which `forget` has something to do, at most `most`: one query for all of them."""
    n = t.nodes.c
    found = []
    for resolution, limit, future in _bounds(record, now):
        for table in _TABLES:
            mine = sa.and_(table.c.node == n.name, table.c.resolution == resolution)
            found.append(sa.select(sa.func.min(table.c.at)).where(mine).scalar_subquery() <= limit)
            found.append(sa.select(sa.func.max(table.c.at)).where(mine).scalar_subquery() > future)
    query = sa.select(n.name).where(n.identity.is_not(None), sa.or_(*found))
    return list(c.scalars(query.order_by(n.name).limit(most)))


def _bounds(record: RecordConfig, now: int) -> list[tuple[int, int, int]]:
    """Of each resolution: rows are deleted up to the first time, and after the second."""
    return [
        (resolution, now - int(keep.total_seconds()), now + max(_HOUR, 2 * resolution))
        for resolution, keep in ((RAW, record.keep), (MINUTES, record.keep_5m), (HOURS, record.keep_1h))
    ]


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
) -> list[Any]:
    """The rows of some slivers, by time; the part that is not summed yet has the finer resolution.

    Slivers on hosts that joined have rows of hours only, also of the hour of `until`. together: one row for each time,
    the sum of the slivers.
    """
    away = reported(c, serials)
    here = [one for one in serials if one not in away]
    found = _of_slivers(c, here, _finer(resolution), (since, until), together=together)
    if away:
        found += _of_slivers(c, sorted(away), [HOURS], (since, -(-until // HOURS) * HOURS), together=together)
    return _added(found) if together and here and away else found


def reported(c: Connection, serials: Sequence[int]) -> set[int]:
    """Those of the slivers that are on hosts that joined."""
    s, n = t.slivers.c, t.nodes.c
    query = sa.select(s.serial).join(t.nodes, n.name == s.node).where(s.serial.in_(serials), n.identity.is_not(None))
    return set(c.scalars(query))


def _added(rows: Sequence[Any]) -> list[Any]:
    """The sums of rows with the same time."""
    found: dict[int, Json] = {}
    for row in rows:
        before = found.get(row.at)
        found[row.at] = dict(row._mapping) if before is None else _sum(before, row._mapping)
    return [SimpleNamespace(**found[at]) for at in sorted(found)]


def _sum(one: Json, other: Mapping[str, Any]) -> Json:
    def added(name: str, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return max(a, b) if name in _LONGEST else a + b

    return {name: added(name, value, other[name]) for name, value in one.items()}


def _of_slivers(
    c: Connection, serials: Sequence[int], levels: Sequence[int], times: tuple[int, int], *, together: bool
) -> list[Any]:
    """The node's own rows supply the times, so that each is one lookup in an index."""
    since, until = times
    n, s = t.node_samples.c, t.samples.c
    same = sa.and_(s.node == n.node, s.resolution == n.resolution, s.at == n.at)
    nodes = sa.select(t.slivers.c.node).where(t.slivers.c.serial.in_(serials))
    columns = [_merged(column) for column in t.samples.columns] if together else [t.samples]
    found: list[Row[*tuple[Any, ...]]] = []
    for level in levels:
        chosen = (n.node.in_(nodes), n.resolution == level, n.at > since, n.at <= until)
        query = sa.select(*columns).select_from(t.node_samples).join(t.samples, same)
        query = query.where(*chosen, s.sliver.in_(serials))
        found += c.execute(query.group_by(s.at).order_by(s.at) if together else query.order_by(s.at, s.sliver))
        if level:
            since = max(since, c.scalar(sa.select(sa.func.max(n.at)).where(*chosen)) or since)
    return found


def _merged(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """The sum over slivers at one time; for durations, the longest."""
    if column.name == "at":
        return column
    if column.name in _LONGEST:
        return sa.func.max(column).label(column.name)
    return sa.cast(sa.func.sum(column), column.type).label(column.name)


def _finer(resolution: int) -> list[int]:
    """The resolution and the finer ones, the coarsest first."""
    return [one for one in (HOURS, MINUTES, RAW) if one <= resolution]


def newest(c: Connection, not_before: int) -> dict[str, Row[*tuple[Any, ...]]]:
    """The last sample of each node, unless it is older than `not_before`; of a host that joined, its last 5 minutes."""
    n, joined = t.node_samples.c, t.nodes.c.identity.is_not(None)
    level = sa.case((joined, MINUTES), else_=RAW)
    last = (
        sa.select(n.node, n.resolution, sa.func.max(n.at).label("at"))
        .join(t.nodes, t.nodes.c.name == n.node)
        .where(n.resolution == level)
        .group_by(n.node, n.resolution)
        .subquery()
    )
    found = sa.and_(n.node == last.c.node, n.at == last.c.at, n.resolution == last.c.resolution)
    rows = c.execute(sa.select(t.node_samples).join(last, found))
    oldest = {RAW: not_before, MINUTES: not_before - _LATE}
    return {row.node: row for row in rows if row.at >= oldest[row.resolution]}


def joined(c: Connection, node: str) -> bool:
    """Whether a node is a host that joined, whose samples are reported."""
    return c.scalar(sa.select(t.nodes.c.identity).where(t.nodes.c.name == node)) is not None


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
