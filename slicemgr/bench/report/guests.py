"""The report of `bench guests`: kernels, starts, memory, operations and servers, beside Lupine's figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slicemgr.bench.experiments.guests import BASE, GUESTS, LOADS, OPERATIONS
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import not_measured, stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Metric, Plot, Series, Table, Value

MIB = 1 << 20
AIM_SIZE, AIM_IDLE, AIM_START, AIM_RATE = 4 * MIB, 64 * MIB, 0.25, 1.1
CODE_CACHE = 128 * MIB  # of QEMU's emulation; see drivers.libvirt.machine_xml
_PHASES = (("started", "domain runs"), ("console", "first byte of the kernel"), ("banner", "ssh banner"))
_OPERATION_NAMES = dict(zip(OPERATIONS, ("null call", "read", "fork+exec", "context switch"), strict=True))
# Lupine's own results on Firecracker and KVM: sections 4.2 to 4.6 of the paper.
_PAPER = (
    ("kernel, compressed", "4 MB; Firecracker's microVM: 15 MB"),
    ("boot", "23 ms; microVM: 56 ms"),
    ("least memory for a hello world", "21 MB; microVM: 29 MB"),
    ("throughput of Redis and nginx", "up to 1.33 × microVM"),
)


@dataclass(slots=True)
class Seen:
    """The measurements of a guest. rates: of each load per second; operations: nanoseconds of each."""

    phases: dict[str, list[float]] = field(default_factory=dict)
    working: list[float] = field(default_factory=list)
    operations: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    kernel_size: int = 0
    release: str = ""
    least: int | None = None


def seen(run: Run) -> dict[str, Seen]:
    """The measurements by guest, in the order of the parameters."""
    found = {str(one["name"]): Seen() for one in run.info["parameters"]["guests"]}
    for step in run.steps.values():
        data = step["data"]
        if "guest" not in data:
            continue
        one = found[data["guest"]]
        _extend(one.phases, data.get("phases", {}))
        _extend(one.operations, {name: [value] for name, value in data.get("operations", {}).items()})
        _extend(one.rates, {name: [value] for name, value in data.get("rates", {}).items()})
        one.missing |= data.get("missing", {})
        one.working += data.get("working", [])
        one.kernel_size = data.get("kernel_size", one.kernel_size)
        one.release = data.get("release", one.release)
        one.least = data.get("least", one.least)
    return {name: one for name, one in found.items() if one.phases}


def _extend(target: dict[str, list[float]], more: Mapping[str, Sequence[float]]) -> None:
    for name, values in more.items():
        target.setdefault(name, []).extend(values)


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if no guest has started yet."""
    found = seen(run)
    if not found:
        raise ValueError("no guest has started yet")
    emulated = run.info.get("node", {}).get("acceleration") == "emulation"
    return Content(
        title="Guests: what a kernel and a machine cost and give",
        outcome=_outcome(found, emulated),
        tables=[
            _sizes(found, emulated),
            _starts(found),
            *_operations(found),
            *_rates(found),
            _paper(),
            *_missing(found),
            *not_measured.tables(run),
        ],
        plots=_plots(found),
        aims=_aims(found, emulated),
        metrics=_metrics(found),
        data=[_row(name, one) for name, one in found.items()],
    )


def middle(values: Sequence[float]) -> float | None:
    return stats.percentile(values, 0.5) if values else None


def ratio(
    found: Mapping[str, Seen], name: str, values: Mapping[str, list[float]], what: str, base: str
) -> float | None:
    """The median of `what` in `values` divided by that of the guest `base`, in its values `name`; None without both."""
    other = getattr(found[base], name).get(what) if base in found else None
    own = values.get(what)
    return stats.percentile(own, 0.5) / stats.percentile(other, 0.5) if own and other else None


# --- tables -----------------------------------------------------------------------------------------------------------


def _sizes(found: Mapping[str, Seen], emulated: bool) -> Table:
    columns = [Column("guest"), Column("what it is"), Column("kernel"), Column("kernel, compressed", "MiB", 1)]
    columns += [Column("memory of the node, idle", "MiB", 1), Column("least memory to start", "MiB")]
    rows: list[Sequence[Value]] = []
    for name, one in found.items():
        size = one.kernel_size / MIB if one.kernel_size else None
        idle = middle(one.working)
        least = one.least // MIB if one.least else None
        about = GUESTS[name].about if name in GUESTS else ""
        rows.append([name, about, one.release, size, idle / MIB if idle else None, least])
    note = "Idle: the working set of the control group of the sliver, which for a machine includes QEMU."
    if emulated:
        note += f" In emulation it also includes up to {CODE_CACHE // MIB} MiB of translated code."
    return Table("Size and memory", columns, rows, note)


def _starts(found: Mapping[str, Seen]) -> Table:
    columns = [Column("guest"), Column("phase"), Column("median", "s", 3), Column("mean", "s", 3)]
    columns += [Column("low", "s", 3), Column("high", "s", 3), Column("of"), Column(f"ratio to {BASE}", "×", 2)]
    rows: list[Sequence[Value]] = []
    for name, one in found.items():
        for phase, title in _PHASES:
            values = one.phases.get(phase, [])
            if values:
                summary = stats.summary(values)
                beside = ratio(found, "phases", one.phases, phase, BASE)
                numbers = (summary.mean, summary.low, summary.high, summary.count)
                rows.append([name, title, stats.percentile(values, 0.5), *numbers, beside])
    note = (
        "Seconds since the request over REST, one guest at a time. Low and high: the 95 % confidence interval of the "
    )
    note += "mean by Student's t. The ratio is that of the medians."
    return Table("Start", columns, rows, note)


def _operations(found: Mapping[str, Seen]) -> list[Table]:
    able = {name: one for name, one in found.items() if one.operations}
    columns = [Column("operation"), *(Column(name, "µs", 2) for name in able)]
    rows: list[Sequence[Value]] = [
        [title, *((stats.percentile(one.operations[key], 0.5) / 1000) for one in able.values())]
        for key, title in _OPERATION_NAMES.items()
    ]
    note = "Four measurements of lmbench by slicemgr's own program, sliver-latency; the median of the repetitions."
    return [Table("Elementary operations", columns, rows, note)] if able else []


def _rates(found: Mapping[str, Seen]) -> list[Table]:
    columns = [Column("load"), Column("guest"), Column("median", "1/s"), Column("low", "1/s"), Column("high", "1/s")]
    columns += [Column("of"), Column(f"ratio to {BASE}", "×", 2)]
    rows: list[Sequence[Value]] = []
    for load in LOADS:
        for name, one in found.items():
            values = one.rates.get(load, [])
            if values:
                summary = stats.summary(values)
                ends = [None if end is None else round(end) for end in (summary.low, summary.high)]
                beside = ratio(found, "rates", one.rates, load, BASE)
                rows.append([load, name, round(stats.percentile(values, 0.5)), *ends, summary.count, beside])
    note = (
        "Server and load generator run in the guest, over its loopback. python: messages between two tasks over TCP; "
    )
    note += "redis: redis-benchmark, the mean of GET and SET; nginx: wrk, a page of 612 bytes; 8 connections."
    return [Table("Throughput", columns, rows, note)] if rows else []


def _paper() -> Table:
    note = "Kuo, Williams, Koller, Mohan: A Linux in Unikernel Clothing. EuroSys 2020. Their monitor is Firecracker on "
    note += (
        "KVM; their kernel is Linux 4.0, with KML for the throughput. KML is not part of Linux: thin-unprotected, "
        "which leaves out what protects entries to the kernel, is as near as it comes."
    )
    return Table("What Lupine reports", [Column("what"), Column("lupine")], [list(one) for one in _PAPER], note)


def _missing(found: Mapping[str, Seen]) -> list[Table]:
    rows = [[name, load, why] for name, one in found.items() for load, why in one.missing.items()]
    return [Table("Loads without a program", [Column("guest"), Column("load"), Column("why")], rows)] if rows else []


# --- plots ------------------------------------------------------------------------------------------------------------


def _plots(found: Mapping[str, Seen]) -> list[Plot]:
    names = list(found)
    starts = [
        Series(title, (), [middle(one.phases.get(phase, [])) for one in found.values()]) for phase, title in _PHASES
    ]
    plots = [
        Plot(
            name="start",
            title="Time from the request",
            x=Axis("guest"),
            left=Axis("median", "s", log=True),
            series=starts,
            groups=names,
        )
    ]
    able = [load for load in LOADS if any(one.rates.get(load) for one in found.values())]
    if able and BASE in found:
        series = [
            Series(name, (), [ratio(found, "rates", one.rates, load, BASE) for load in able])
            for name, one in found.items()
        ]
        left = Axis(f"ratio to {BASE}", "×", 0)
        plots.append(Plot(name="throughput", title="Throughput", x=Axis("load"), left=left, series=series, groups=able))
    return plots


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(found: Mapping[str, Seen], emulated: bool) -> list[str]:
    said = []
    if emulated:
        said.append("Virtual machines are emulated on this node: compare guests by their ratios.")
    for name, one in found.items():
        text = (
            f"{name}: half of {len(one.phases['banner'])} answered by ssh within {middle(one.phases['banner']):.3g} s"
        )
        beside = ratio(found, "phases", one.phases, "banner", BASE)
        text += f", {beside:.2f} × {BASE}" if beside and name != BASE else ""
        idle = middle(one.working)
        text += f"; idle it uses {idle / MIB:.0f} MiB" if idle else ""
        text += f", and it starts with {one.least // MIB} MiB" if one.least else ""
        said.append(f"{text}.")
    return said


def _aims(found: Mapping[str, Seen], emulated: bool) -> list[Aim]:
    """The aims, which concern the guest `thin`."""
    one = found.get("thin")
    if one is None:
        return []
    size, idle = one.kernel_size or None, middle(one.working)
    allowed = AIM_IDLE + (CODE_CACHE if emulated else 0)
    beside = ratio(found, "phases", one.phases, "banner", BASE)
    cache = " and 128 MiB of translated code" if emulated else ""
    aims = [
        _aim("the thin kernel has at most 4 MiB, compressed", size, AIM_SIZE, MIB, "MiB"),
        _aim(f"from the request to ssh: at most ¼ of {BASE}", beside, AIM_START, 1, "×"),
        _aim(f"idle, it uses at most 64 MiB{cache} of the node", idle, allowed, MIB, "MiB"),
    ]
    for load in LOADS:
        rate = ratio(found, "rates", one.rates, load, BASE)
        reached = None if rate is None else rate >= AIM_RATE
        measured = "not measured" if rate is None else f"{rate:.3g} ×"
        aims.append(Aim(f"{load}: at least 1.1 × Debian's kernel ({BASE})", reached, measured))
    return aims


def _aim(text: str, value: float | None, most: float, unit: float, name: str) -> Aim:
    if value is None:
        return Aim(text, None, "not measured")
    return Aim(text, value <= most, f"{value / unit:.3g} {name}")


def _metrics(found: Mapping[str, Seen]) -> list[Metric]:
    metrics = []
    for name, one in found.items():
        metrics.append(Metric(f"{name}: request to ssh banner", "s", one.phases["banner"]))
        metrics.append(Metric(f"{name}: memory, idle", "MiB", [value / MIB for value in one.working]))
        for operation, values in one.operations.items():
            metrics.append(Metric(f"{name}: {_OPERATION_NAMES[operation]}", "µs", [value / 1000 for value in values]))
        metrics += [Metric(f"{name}: {load}", "1/s", values, "more") for load, values in one.rates.items()]
    return [one for one in metrics if one.values]


def _row(name: str, one: Seen) -> dict[str, Any]:
    row: dict[str, Any] = {"guest": name, "release": one.release, "kernel_size": one.kernel_size, "least": one.least}
    row["working"] = middle(one.working)
    row |= {phase: middle(values) for phase, values in one.phases.items()}
    row |= {operation: middle(values) for operation, values in one.operations.items()}
    return row | {load: middle(values) for load, values in one.rates.items()}
