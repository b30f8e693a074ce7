"""The columns of samples."""

from __future__ import annotations

from slicemgr.cli.render.human import number, size, when
from slicemgr.cli.render.output import Column, Table, field


def _speed(value: object) -> str:
    """Bytes a second."""
    return f"{size(value)}/s" if isinstance(value, int | float) else "-"


def _share(value: object) -> str:
    """Microseconds a second."""
    return f"{value / 10_000:.1f} %" if isinstance(value, int | float) else "-"


def _waited(value: object) -> str:
    """Microseconds."""
    return f"{value / 1_000_000:.1f} s" if isinstance(value, int | float) else "-"


def _cores(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else "-"


def _hours(value: object) -> str:
    return f"{value:.2f} h" if isinstance(value, int | float) else "-"


def _gib_hours(value: object) -> str:
    return f"{value:.2f} GiB h" if isinstance(value, int | float) else "-"


def _seconds(value: object) -> str:
    return f"{value:.1f} s" if isinstance(value, int | float) else "-"


TOP = Table(
    (
        Column("sliver", lambda row: f"{row['slice']}/{row['index']}", whole=True),
        field("slice"),
        field("index"),
        field("project"),
        field("owner"),
        field("type"),
        field("node"),
        field("cpu", _cores),
        field("charged", size),
        field("memory", size),
        field("working", size),
        field("guest", size),
        field("swap", size),
        Column("memory_limit", lambda row: row["limits"]["memory"], size),
        field("disk", size),
        field("referenced", size),
        Column("disk_limit", lambda row: row["limits"]["disk"], size),
        field("net_in", _speed),
        field("net_out", _speed),
        field("net_in_packets", number),
        field("net_out_packets", number),
        field("io_read", _speed),
        field("io_written", _speed),
        field("io_reads", number),
        field("io_writes", number),
        field("reclaimed", _speed),
        field("reread", _speed),
        field("pressure", _share),
        field("pids"),
        field("connections"),
        field("at", when),
    ),
    ("sliver", "project", "type", "cpu", "working", "memory_limit", "disk", "net_in", "net_out", "pids"),
)
REPORTED = Table(TOP.columns, (*TOP.default, "at"))  # with slivers whose last usage is older than the last sample
USAGE = Table(
    (
        field("what", whole=True),
        field("running_seconds", _seconds),
        field("cpu_seconds", _seconds),
        field("charged_mean", size),
        field("charged_peak", size),
        field("working_mean", size),
        field("memory_mean", size),
        field("memory_peak", size),
        field("disk_mean", size),
        field("net_in", size),
        field("net_out", size),
        field("net_in_packets"),
        field("net_out_packets"),
        field("io_read", size),
        field("io_written", size),
        field("io_reads"),
        field("io_writes"),
        field("reclaimed", size),
        field("reread", size),
        field("pressure", _waited),
        field("seconds", _seconds),
        field("since"),
        field("until"),
        field("resolution"),
    ),
    ("what", "running_seconds", "cpu_seconds", "memory_mean", "memory_peak", "disk_mean", "net_in", "net_out"),
)
ACCOUNTS = Table(
    (
        field("project", whole=True),
        field("month", whole=True),
        field("sliver_hours", _hours),
        field("cpu_hours", _hours),
        field("memory_gib_hours", _gib_hours),
        field("disk_gib_hours", _gib_hours),
        field("net_in", size),
        field("net_out", size),
        field("io_read", size),
        field("io_written", size),
    ),
    ("project", "month", "sliver_hours", "cpu_hours", "memory_gib_hours", "disk_gib_hours", "net_in", "net_out"),
)
ANY_USAGE = Table(
    (*USAGE.columns, *(one for one in ACCOUNTS.columns if one.name not in {other.name for other in USAGE.columns})),
    USAGE.default,
)
