"""Resource use of slices and nodes: series in columns, totals, the current top, and accounts by month.

A series has rates where the store has increments: `cpu` in cores, `net_*` and `io_*` in bytes (packets, operations) a
second, over the span that ends at `at`. Sizes are bytes. None: unknown, or the sliver did not run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config, RecordConfig, parse_duration
from slicemgr.errors import Code, Refused, invalid
from slicemgr.figures import COUNTED, HOURS, MINUTES, RAW
from slicemgr.model import Phase
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.views import paging, remote_samples
from slicemgr.service.views.formats import when
from slicemgr.service.views.paging import By, Page
from slicemgr.service.views.remote_samples import Others
from slicemgr.store import samples
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

Json = dict[str, Any]
Rows = Sequence[Row[*tuple[Any, ...]]]

NAMES = {"raw": RAW, "5m": MINUTES, "1h": HOURS}
DEPRECATED = {"memory": "charged", "memory_peak": "charged_peak"}  # former names of columns of slivers
GAUGES = ("memory", "working", "guest", "swap", "memory_peak", "disk", "referenced", "pids", "connections")
RATES = ("cpu", *COUNTED)
OF_SLIVERS = (*GAUGES, *RATES, "cpu_peak", "charged", "charged_peak")
OF_NODES = (
    *("memory", "memory_total", "swap", "swap_total", "memory_peak", "disk", "disk_total", "pids", "connections"),
    *RATES,
    *("cpu_peak", "load", "lxc", "kvm", "sample_seconds", "sample_cpu"),
)
_LIMITS = ("memory", "memory_guarantee", "disk", "cpu")
_AUTO = 720  # points up to which the finer resolution is chosen
_MOST = 250_000  # values of one column in an answer, at most
_OLDEST_SAMPLE = 4  # intervals after which a sample is no longer current


@dataclass(frozen=True, slots=True)
class TimeRange:
    """since < at <= until, in seconds since 1970; resolution as in the store."""

    since: int
    until: int
    resolution: int

    @property
    def span(self) -> tuple[int, int, int]:
        return self.resolution, self.since, self.until

    def head(self, record: RecordConfig) -> Json:
        name = next(name for name, value in NAMES.items() if value == self.resolution)
        seconds = self.resolution or record.interval.total_seconds()
        return {"resolution": name, "seconds": seconds, "since": _rfc3339(self.since), "until": _rfc3339(self.until)}


def time_range(
    record: RecordConfig, since: str | None, until: str | None, resolution: str | None, now: datetime | None = None
) -> TimeRange:
    """The requested time range. Times are RFC 3339 or an age (`1h`); the default is the last hour, and the resolution
    that suits the range. Refused(INVALID).
    """
    present = now or utcnow()
    begin = _moment("since", since or "1h", present)
    end = min(_moment("until", until, present) if until else present, present)
    if begin >= end:
        raise invalid("since", "is not before `until`", "such as since=2d&until=1d")
    if resolution not in (None, "", "auto", *NAMES):
        raise invalid("resolution", f"{resolution!r} is unknown"[:80], f"auto, {', '.join(NAMES)}")
    first, last = int(begin.timestamp()), int(end.timestamp())
    return TimeRange(first, last, NAMES.get(resolution or "", _finest(record, first, last, int(present.timestamp()))))


def _finest(record: RecordConfig, since: int, until: int, now: int) -> int:
    kept = ((RAW, record.interval, record.keep), (MINUTES, None, record.keep_5m))
    for resolution, interval, keep in kept:
        step = interval.total_seconds() if interval else resolution
        if (until - since) / step <= _AUTO * (3 if resolution else 1) and since >= now - keep.total_seconds():
            return resolution
    return HOURS


def _moment(field: str, text: str, now: datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - parse_duration(text, field)
        except (Refused, OverflowError):
            raise invalid(field, f"{text[:40]!r} is not a time", "such as 2h, 7d or 2026-11-21T12:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def chosen(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """The columns in a comma-separated list; None: all. Refused(INVALID)."""
    names = tuple(dict.fromkeys(one.strip() for one in (text or "").split(",") if one.strip()))
    for unknown in (one for one in names if one not in known):
        raise invalid("columns", f"{unknown[:40]!r} is unknown", f"the columns are {', '.join(known)}")
    return names or tuple(known)


# --- series -----------------------------------------------------------------------------------------------------------


def of_slice(
    c: Connection,
    config: Config,
    id: str,
    wanted: TimeRange,
    columns: Sequence[str] = OF_SLIVERS,
    *,
    total: bool = False,
    others: Others = MappingProxyType({}),
) -> Json:
    """The series of each sliver of a slice, or with `total` their sum. id: the slice's; see `slices.find`.

    others: the samples of other hosts.
    """
    l, s = t.slices.c, t.slivers.c
    head = c.execute(sa.select(l.name, l.project).where(l.id == id)).one()
    selected = (s.serial, s.id, s.idx, *(s[name] for name in _LIMITS))
    members = c.execute(sa.select(*selected).where(s.slice == id).order_by(s.idx))
    slivers = list(members)
    away = samples.reported(c, [one.serial for one in slivers])
    complete = bool(others) and None not in others.values()
    if away and not complete:
        wanted = replace(wanted, resolution=HOURS)  # of what was reported; finer samples stay on the nodes
    points = (wanted.until - wanted.since) / (wanted.resolution or config.record.interval.total_seconds())
    if points * (1 if total else len(slivers)) > _MOST:
        hint = "request a shorter period, a coarser resolution, or the sum of all slivers"
        raise Refused(Code.INVALID, "the response would be too large", hint=hint, field="since")
    serials = [one.serial for one in slivers if not (complete and one.serial in away)]
    rows: Sequence[Any] = samples.of_slivers(c, serials, *wanted.span, together=total)
    if complete:
        interval = max(1, int(config.record.interval.total_seconds()))
        rows = remote_samples.joined(rows, others, interval, together=total)
    axis = sorted({row.at for row in rows})
    by_sliver: dict[int | None, dict[int, Any]] = defaultdict(dict)
    for row in rows:
        by_sliver[None if total else row.sliver][row.at] = row
    limits = {one.serial: {name: getattr(one, name) for name in _LIMITS} for one in slivers}
    heads: list[tuple[int | None, Json]] = [
        (one.serial, {"index": one.idx, "id": one.id, "limits": limits[one.serial]}) for one in slivers
    ]
    if total:
        summed = {name: sum(one[name] for one in limits.values()) for name in _LIMITS}
        heads = [(None, {"index": None, "id": None, "limits": summed})]
    parts = [
        {
            **about,
            "totals": totals(by_sliver[key].values()),
            "series": {name: [value(by_sliver[key].get(at), name) for at in axis] for name in columns},
        }
        for key, about in heads
    ]
    about = {"slice": head.name, "project": head.project, **wanted.head(config.record)}
    return {**about, "at": axis, "slivers": parts, **_missing(others)}


def _missing(others: Others) -> Json:
    """Which hosts have not answered, if any were asked."""
    return {"missing": sorted(node for node, found in others.items() if found is None)} if others else {}


def of_node(
    c: Connection,
    config: Config,
    name: str,
    wanted: TimeRange,
    columns: Sequence[str] = OF_NODES,
    *,
    others: Others = MappingProxyType({}),
) -> Json:
    """The series of a node. others: its samples, if it is another host. Refused(NOT_FOUND)."""
    if c.scalar(sa.select(t.nodes.c.name).where(t.nodes.c.name == name)) is None:
        raise Refused(Code.NOT_FOUND, f"there is no node {name[:80]!r}", hint="list them with `slicectl node list`")
    found = others.get(name)
    if found is None and wanted.resolution == RAW and samples.joined(c, name):
        wanted = replace(wanted, resolution=MINUTES)  # of what was reported; raw samples stay on the node
    rows: Sequence[Any] = samples.of_node(c, name, *wanted.span) if found is None else found.node
    series = {one: [value(row, one) for row in rows] for one in columns}
    answer = {"node": name, **wanted.head(config.record), "at": [row.at for row in rows]}
    return {**answer, "totals": totals(rows, ("memory", "disk")), "series": series, **_missing(others)}


def value(row: Any, name: str) -> float | None:
    """The value of a column: a rate if the store has an increment; None without a row."""
    if row is None:
        return None
    held = getattr(row, _column(row, name))
    if name not in RATES:
        return held if held is None or isinstance(held, int) else round(held, 4)
    seconds = getattr(row, "running", row.seconds)
    return round(held / seconds, 4) if seconds > 0 else None


def _column(row: Any, name: str) -> str:
    """A node's row has its own `memory`; for a sliver that is a former name."""
    return name if hasattr(row, name) else DEPRECATED[name]


def totals(rows: Iterable[Any], held: Sequence[str] = ("charged", "working", "disk")) -> Json:
    """Totals of rows: sums of counters, means of gauges, the peak of memory.

    Those of slivers include `memory_mean` and `memory_peak`, the former names of the charged memory.
    """
    rows = list(rows)
    memory = held[0]
    answer: Json = {
        "seconds": round(sum(row.seconds for row in rows), 1),
        "running_seconds": round(sum(getattr(row, "running", row.seconds) for row in rows), 1),
        "cpu_seconds": round(sum(row.cpu for row in rows), 3),
        **{name: sum(getattr(row, name) for row in rows) for name in COUNTED},
    }
    for name in held:
        known = [(getattr(row, name), row.seconds) for row in rows if getattr(row, name) is not None]
        weight = sum(seconds for _, seconds in known)
        answer[f"{name}_mean"] = round(sum(one * seconds for one, seconds in known) / weight) if weight else None
    peaks = (getattr(row, f"{memory}_peak") for row in rows)
    answer[f"{memory}_peak"] = max((one for one in peaks if one is not None), default=None)
    return {**answer, "memory_mean": answer[f"{memory}_mean"], "memory_peak": answer[f"{memory}_peak"]}


def flat(answer: Json) -> tuple[list[str], list[list[Any]]]:
    """Series as a table: a header, and a line for each time (and sliver)."""
    parts = answer["slivers"] if "slivers" in answer else [{"index": None, "series": answer["series"]}]
    columns = list(parts[0]["series"]) if parts else []
    lines = [
        [_rfc3339(at), part["index"], *(part["series"][name][place] for name in columns)]
        for place, at in enumerate(answer["at"])
        for part in parts
    ]
    return ["at", "sliver", *columns], lines


# --- now --------------------------------------------------------------------------------------------------------------


def current(config: Config, now: datetime) -> tuple[int, int]:
    """The times between which a sample is current, in seconds since 1970."""
    present = int(now.timestamp())
    return present - int(_OLDEST_SAMPLE * config.record.interval.total_seconds()), present


def top(
    c: Connection,
    config: Config,
    by: Principal,
    now: datetime | None = None,
    *,
    others: Others = MappingProxyType({}),
) -> Json:
    """The latest sample of every running sliver that `by` may see, and of the nodes.

    others: of other hosts. Of slivers on hosts that have not answered, it has what was reported last (`reported`):
    memory and disk.
    """
    newest = samples.newest(c, current(config, now or utcnow())[0])
    s, l, n = t.slivers.c, t.slices.c, t.nodes.c
    columns = (s.serial, s.idx, s.node, l.name, l.project, l.owner, l.type, *(s[name] for name in _LIMITS))
    used = (s.phase, s.usage_at, s.usage_charged, s.usage_working, s.usage_disk, s.guest_memory, n.identity)
    query = sa.select(*columns, *used).join(t.slices, l.id == s.slice).join(t.nodes, n.name == s.node)
    query = query.order_by(l.project, l.name, s.idx)
    projects = access.visible(by)
    if projects is not None:
        query = query.where(l.project.in_(projects))
    slivers = c.execute(query).all()
    rows = {row.sliver: row for node, last in newest.items() for row in samples.at(c, node, last.at)}
    known = {node: found for node, found in others.items() if found is not None}
    away = {row.sliver: row for found in known.values() for row in found.slivers}  # checked: of slivers on that node
    nodes: dict[str, Any] = {**newest, **{node: found.node[-1] for node, found in known.items() if found.node}}

    def latest(one: Any) -> Json | None:
        sampled = _sampled((rows if one.identity is None else away).get(one.serial))
        if sampled is not None or one.identity is None or one.node in known:
            return sampled
        return _reported(one)

    return {
        "nodes": [_node_now(node, row) for node, row in sorted(nodes.items())],
        "slivers": [
            {
                "slice": one.name,
                "index": one.idx,
                "project": one.project,
                "owner": one.owner,
                "type": one.type,
                "node": one.node,
                "limits": {name: getattr(one, name) for name in _LIMITS},
                **values,
            }
            for one in slivers
            if (values := latest(one)) is not None
        ],
        **_missing(others),
    }


def _sampled(row: Any) -> Json | None:
    if row is None or row.charged is None:
        return None
    return {"at": _rfc3339(row.at), "reported": False, **{name: value(row, name) for name in OF_SLIVERS}}


def _reported(one: Any) -> Json | None:
    if one.phase != Phase.RUNNING or one.usage_at is None or one.usage_charged is None:
        return None
    known = {"memory": one.usage_charged, "charged": one.usage_charged, "working": one.usage_working}
    more = {"disk": one.usage_disk, "guest": one.guest_memory}
    return {"at": _rfc3339(one.usage_at), "reported": True, **dict.fromkeys(OF_SLIVERS), **known, **more}


def _node_now(node: str, row: Any) -> Json:
    return {"node": node, "at": _rfc3339(row.at), **{name: value(row, name) for name in OF_NODES}}


# --- accounts ---------------------------------------------------------------------------------------------------------

ACCOUNTED = (
    *("sliver_hours", "cpu_hours", "memory_gib_hours", "disk_gib_hours"),
    *("net_in", "net_out", "io_read", "io_written"),
)


def accounts(
    c: Connection, by: Principal, project: str | None, month: str | None, since: str | None, page: Page | None = None
) -> list[Json]:
    """Resource use of projects by month: of one project (with a row of zeros for a `month` without use), or of all that
    `by` may see. month: `2026-11`, or since: from that month on. Refused.
    """
    for field, text in (("month", month), ("since", since)):
        if text and not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", text):
            raise invalid(field, f"{text[:40]!r} is not a month", "such as 2026-11")
    if project is not None:
        access.see_project(by, project)
        if c.scalar(sa.select(t.projects.c.name).where(t.projects.c.name == project)) is None:
            raise access.missing("project", project)
    places = [project] if project is not None else access.visible(by)
    months = (month, month) if month else (since or "", "9999")
    query = samples.accounts(None if places is None else list(places), months)
    rows = paging.rows(c, query, page, By(t.accounts.c.project), By(t.accounts.c.month))
    answer = [{"project": row.project, "month": row.month, **_amounts(row)} for row in rows]
    if project is not None and month and not answer:
        answer = [{"project": project, "month": month, **dict.fromkeys(ACCOUNTED, 0)}]
    return answer


def _amounts(row: Any) -> Json:
    amounts = {name: getattr(row, name) for name in ACCOUNTED}
    return {name: one if isinstance(one, int) else round(one, 4) for name, one in amounts.items()}


def _rfc3339(seconds: int) -> str:
    return when(datetime.fromtimestamp(seconds, UTC)) or ""
