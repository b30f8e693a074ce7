"""A Prometheus collector over the rows. Names and help texts of metrics are an interface and do not change.

Labels are node, type, state, kind, project, the reason of a refusal, and slice if `record.slice_metrics` is set: never
a user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.engine import Connection

from slicemgr import __version__
from slicemgr.config import Config
from slicemgr.model import Desired, OperationState, Phase, RequestState
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import slices as slice_views
from slicemgr.service.views.samples import value
from slicemgr.store import Store, samples
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_SOON = timedelta(days=1)
_HOUR, _GIB = 3600, 1 << 30

_MICROSECONDS = 1_000_000  # in a second
# Of the last sample of a node: metric, column, help.
_NODE = (
    ("memory_bytes", "memory", "Memory in use that cannot be reclaimed without swapping."),
    ("memory_total_bytes", "memory_total", "Total memory."),
    ("swap_bytes", "swap", "Swap in use."),
    ("swap_total_bytes", "swap_total", "Total swap."),
    ("disk_bytes", "disk", "Bytes of the pool in use."),
    ("disk_total_bytes", "disk_total", "Bytes of the pool."),
    ("cpu_cores", "cpu", "CPU cores in use, between the last two samples."),
    ("load1", "load", "Load average over a minute."),
    ("processes", "pids", "Processes and threads of the node and its containers."),
    ("connections", "connections", "Connections that the packet filter tracks."),
    ("network_receive_bytes_per_second", "net_in", "Network rate to all slivers, between the last two samples."),
    ("network_transmit_bytes_per_second", "net_out", "Network rate from all slivers, between the last two samples."),
    ("memory_reclaimed_bytes_per_second", "reclaimed", "Memory that the node took back from slivers, likewise."),
    ("memory_reread_bytes_per_second", "reread", "Memory that slivers read again after it was taken, likewise."),
    ("sample_timestamp_seconds", "at", "Time of the last sample, in seconds since 1970."),
    ("sample_duration_seconds", "sample_seconds", "Duration of the last sampling."),
    ("sample_cpu_seconds", "sample_cpu", "CPU time of the last sampling."),
)
# Of the accounts: metric, column, factor, help.
_PROJECT = (
    ("sliver_seconds", "sliver_hours", _HOUR, "Running time of all slivers."),
    ("cpu_seconds", "cpu_hours", _HOUR, "CPU time of slivers."),
    ("memory_byte_seconds", "memory_gib_hours", _GIB * _HOUR, "Memory of running slivers multiplied by time."),
    ("disk_byte_seconds", "disk_gib_hours", _GIB * _HOUR, "Disk usage of slivers multiplied by time."),
    ("network_receive_bytes", "net_in", 1, "Bytes received by slivers."),
    ("network_transmit_bytes", "net_out", 1, "Bytes sent by slivers."),
    ("io_read_bytes", "io_read", 1, "Bytes that slivers read from block devices."),
    ("io_written_bytes", "io_written", 1, "Bytes that slivers wrote to block devices."),
)
_REPORTED = ("charged", "working", "disk")  # of slivers on hosts that joined
_SLICE = (
    ("memory_bytes", "working", "Working set of the slivers of the slice."),  # deprecated: working_bytes
    (
        "working_bytes",
        "working",
        "Working set of the slivers of the slice: without page cache that was not used lately.",
    ),
    ("charged_bytes", "charged", "All memory that the slivers of the slice are charged with."),
    ("disk_bytes", "disk", "Disk usage of the slivers of the slice."),
    ("cpu_cores", "cpu", "CPU cores in use by the slice, between the last two samples."),
    ("network_receive_bytes_per_second", "net_in", "Network rate to the slice, between the last two samples."),
    ("network_transmit_bytes_per_second", "net_out", "Network rate from the slice, between the last two samples."),
)


class Testbed(Collector):
    """The values at the time of a scrape, from one state of the database."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config

    def collect(self) -> Iterable[Metric]:
        with self._store.read() as c:
            yield _gauge("info", "The version of slicemgr.", ("version",), {(__version__,): 1})
            yield from _counts(c)
            yield from self._nodes(c)
            yield from _projects(c)
            if self._config.record.slice_metrics:
                yield from _slices(c)

    def _nodes(self, c: Connection) -> Iterator[Metric]:
        nodes = node_views.nodes(c, self._config.network)
        rows = c.execute(sa.select(t.nodes)).all()
        contacts = {row.name: row.agent_seen_at.timestamp() for row in rows if row.agent_seen_at}
        yield _by_node(
            "agent_seen_timestamp_seconds", "Time of the last contact with the agent, in seconds since 1970.", contacts
        )
        for metric, place, key, text in (
            ("cpus", "capacity", "cpus", "Number of CPU cores."),
            ("ports", "capacity", "ports", "Total ports for slivers."),
            ("ports_used", "used", "ports", "Ports allocated to slivers."),
            ("memory_limits_bytes", "used", "memory_limits", "Sum of the memory limits of all slivers."),
            ("memory_guarantees_bytes", "used", "memory_guarantees", "Sum of the memory guarantees of all slivers."),
            ("disk_limits_bytes", "used", "disk_limits", "Sum of the disk limits of all slivers."),
        ):
            yield _by_node(metric, text, {one["name"]: one[place][key] for one in nodes})
        for metric, fact, text in (
            ("metadata_bytes", "metadata_used", "Bytes of the pool used by btrfs metadata."),
            ("metadata_free_bytes", "metadata_free", "Bytes of the pool available for btrfs metadata."),
        ):
            yield _by_node(metric, text, {row.name: row.facts.get(fact) for row in rows})
        newest = samples.newest(c, 0)
        for metric, column, text in _NODE:
            values = {node: sample.at if column == "at" else value(sample, column) for node, sample in newest.items()}
            yield _by_node(metric, text, values)
        waited = {node: value(sample, "pressure") for node, sample in newest.items()}
        shares = {node: None if one is None else one / _MICROSECONDS for node, one in waited.items()}
        yield _by_node("memory_pressure_ratio", "Part of the time in which a program waited for memory.", shares)


def _counts(c: Connection) -> Iterator[Metric]:
    s, l, o, r = t.slivers.c, t.slices.c, t.operations.c, t.requests.c
    states: Counter[tuple[str, ...]] = Counter()
    lost = set(c.scalars(sa.select(t.nodes.c.name).where(t.nodes.c.lost)))
    query = sa.select(s.node, l.type, s.desired, s.phase, sa.func.count()).join(t.slices, l.id == s.slice)
    for node, sliver_type, desired, phase, count in c.execute(query.group_by(s.node, l.type, s.desired, s.phase)):
        state = slice_views.sliver_state(Desired(desired), Phase(phase), lost=node in lost)
        states[node, sliver_type, state] += count
    yield _gauge("slivers", "Slivers by state.", ("node", "type", "state"), states)
    slices = {(row[0],): row[1] for row in c.execute(sa.select(l.type, sa.func.count()).group_by(l.type))}
    yield _gauge("slices", "Slices.", ("type",), slices)
    unended = o.state.in_([OperationState.QUEUED, OperationState.RUNNING])
    rows = c.execute(sa.select(o.kind, o.state, sa.func.count()).where(unended).group_by(o.kind, o.state))
    queued: dict[tuple[str, ...], float] = {(row[0], row[1]): row[2] for row in rows}
    yield _gauge("operations", "Operations that have not ended.", ("kind", "state"), queued)
    now = utcnow()
    failed = sa.and_(o.state == OperationState.FAILED, o.finished_at > now - _SOON)
    ending = sa.and_(l.expires_at <= now + _SOON, l.lease_ended_at.is_(None))
    waiting = r.state == RequestState.WAITING
    for name, text, table, condition in (
        ("operations_failed_last_day", "Operations that failed within 24 hours.", t.operations, failed),
        ("leases_ending_next_day", "Slices whose lease ends within 24 hours.", t.slices, ending),
        ("requests_waiting", "Waiting requests.", t.requests, waiting),
        ("projects", "Projects.", t.projects, sa.true()),
        ("users", "Enabled user accounts.", t.users, t.users.c.enabled),
    ):
        count = c.scalar(sa.select(sa.func.count()).select_from(table).where(condition))
        yield _gauge(name, text, (), {(): count or 0})


def _projects(c: Connection) -> Iterator[Metric]:
    a = t.accounts.c
    sums = [sa.func.sum(a[column]).label(column) for _, column, _, _ in _PROJECT]
    rows = c.execute(sa.select(a.project, *sums).group_by(a.project).order_by(a.project)).all()
    for metric, column, factor, text in _PROJECT:
        family = CounterMetricFamily(f"slicemgr_project_{metric}", text, labels=("project",))
        for row in rows:
            family.add_metric([row.project], float(getattr(row, column)) * factor)
        yield family


def _slices(c: Connection) -> Iterator[Metric]:
    s, l = t.slivers.c, t.slices.c
    owners = {
        row[0]: (row[1], row[2])
        for row in c.execute(sa.select(s.serial, l.project, l.name).join(t.slices, l.id == s.slice))
    }
    rows = [row for node, sample in samples.newest(c, 0).items() for row in samples.at(c, node, sample.at)]
    used = (s.usage_charged.label("charged"), s.usage_working.label("working"), s.usage_disk.label("disk"))
    query = sa.select(l.project, l.name, *used).join(t.slices, l.id == s.slice).join(t.nodes, t.nodes.c.name == s.node)
    reported = c.execute(query.where(t.nodes.c.identity.is_not(None), s.phase == Phase.RUNNING)).all()
    for metric, column, text in _SLICE:
        sums: dict[tuple[str, ...], float] = {}
        for row in rows:
            held = value(row, column)
            if row.sliver in owners and held is not None:
                sums[owners[row.sliver]] = sums.get(owners[row.sliver], 0.0) + held
        for row in reported if column in _REPORTED else ():
            held = getattr(row, column)
            if held is not None:
                sums[row.project, row.name] = sums.get((row.project, row.name), 0.0) + held
        yield _gauge(f"slice_{metric}", text, ("project", "slice"), sums)


def _by_node(metric: str, text: str, values: dict[str, Any]) -> Metric:
    return _gauge(f"node_{metric}", text, ("node",), {(node,): one for node, one in sorted(values.items())})


def _gauge(name: str, text: str, labels: Sequence[str], values: Any) -> Metric:
    """A gauge without the unknown (None) values."""
    family = GaugeMetricFamily(f"slicemgr_{name}", text, labels=labels)
    for key, one in values.items():
        if one is not None:
            family.add_metric(list(key), one)
    return family
