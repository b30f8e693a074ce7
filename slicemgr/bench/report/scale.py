"""The report of `bench scale`: the paper's figures 3 and 4, the costs of a sliver, the paper's numbers. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Mark, Metric, Plot, Series, Table

MIB, KIB = 1 << 20, 1 << 10
_EDGE = 50  # the number of first and of last creates that are compared
_LINES = 45  # rows of the table; data.csv has all
_FULL = 0.98  # share of the memory in use that counts as "all", as in the paper's figures
_SWAPS = 0.01  # share of the swap, beyond that at the start, from which the node counts as swapping

# From the paper's text on its figures 3 and 4: 4 GiB of memory, Linux 2.6.29, 0 to 200 slivers in steps of 5.
PAPER_GIB = 4
PAPER = {"lxc": (("all memory in use", 110),), "kvm": (("all memory in use", 30), ("swapping", 40))}
PAPER_SWAP = {"lxc": "mostly none up to 200", "kvm": "from 40 on, until it is full and no VM boots any more"}
FIGURE = {"lxc": 3, "kvm": 4}


@dataclass(frozen=True, slots=True)
class Point:
    """The node after one step of a repetition: shares in per cent, growth in bytes since its start, seconds."""

    turn: str
    n: int
    memory: float
    swap: float
    used: int
    disk: int
    creates: tuple[float, ...]
    load: float
    own_memory: float | None
    own_disk: float | None


def points(run: Run) -> list[Point]:
    """The points in the order of measurement. Memory and disk growth is relative to the first of the repetition."""
    found: list[Point] = []
    first: dict[str, dict[str, Any]] = {}
    for one in run.steps.values():
        data = one["data"]
        if "node" not in data:
            continue
        node, turn = data["node"], one["series"]
        start = first.setdefault(turn, node)
        used, swap = _used(node, "memory_available"), _used(node, "swap_free")
        found.append(
            Point(
                turn=turn,
                n=data["n"],
                memory=100 * used / node["memory_total"],
                swap=100 * swap / node["swap_total"] if node["swap_total"] else 0.0,
                used=used - _used(start, "memory_available") + swap - _used(start, "swap_free"),
                disk=node["disk_used"] - start["disk_used"],
                creates=tuple(create["banner"] for create in data["creates"]),
                load=node["load"],
                own_memory=data["own"].get("working", data["own"]["memory"]),
                own_disk=data["own"]["disk"],
            )
        )
    return found


def _used(node: dict[str, Any], free: str) -> int:
    total = {"memory_available": "memory_total", "swap_free": "swap_total"}[free]
    return int(node[total] - node[free])


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = points(run)
    if not found:
        raise ValueError("no step with a state of the node is finished yet")
    sliver_type = run.info["parameters"]["kind"]
    costs = _costs(found)
    deletes = [one["data"] for one in run.steps.values() if one["data"].get("seconds") and "slivers" in one["data"]]
    tables = [_steps_table(found), _cost_table(costs, found, deletes), _paper_table(sliver_type, run, found)]
    return Content(
        title=f"{sliver_type} slivers on one node: memory, swap, disk and time against their number",
        outcome=_outcome(run, sliver_type, found, costs),
        tables=tables,
        plots=[_figure(sliver_type, found), _times(sliver_type, found)],
        aims=_aims(run, sliver_type, found, costs),
        metrics=_metrics(found, costs, deletes),
        data=[_row(one) for one in found],
    )


# --- the cost of each -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a sliver, a value for each repetition.

    memory, disk: bytes of the node per sliver at the largest number of slivers. late: the median time of the last
    creates divided by that of the first. most: the largest number of slivers.
    """

    memory: list[float]
    disk: list[float]
    late: list[float]
    most: int


def _costs(found: Sequence[Point]) -> Costs:
    memory, disk, late = [], [], []
    for turn in dict.fromkeys(one.turn for one in found):
        own = [one for one in found if one.turn == turn]
        last = max(own, key=lambda one: one.n)
        if last.n:
            memory.append(last.used / last.n)
            disk.append(last.disk / last.n)
        creates = [seconds for one in own for seconds in one.creates]
        edge = min(_EDGE, len(creates) // 4)
        if edge:
            late.append(stats.percentile(creates[-edge:], 0.5) / stats.percentile(creates[:edge], 0.5))
    return Costs(memory, disk, late, max(one.n for one in found))


def _by_size(found: Sequence[Point]) -> dict[int, list[Point]]:
    sizes: dict[int, list[Point]] = defaultdict(list)
    for one in found:
        sizes[one.n].append(one)
    return dict(sorted(sizes.items()))


# --- tables -----------------------------------------------------------------------------------------------------------


def _steps_table(found: Sequence[Point]) -> Table:
    sizes = _by_size(found)
    every = -(-len(sizes) // _LINES)
    shown = [one for place, one in enumerate(sizes) if place % every == 0 or place == len(sizes) - 1]
    columns = [Column("slivers"), Column("memory in use", "%", 1), Column("swap in use", "%", 1)]
    columns += [Column("disk growth", "MiB", 1), Column("load", digits=1)]
    columns += [Column("create, median", "s", 3), Column("create, 95 %", "s", 3)]
    rows = []
    for n in shown:
        own = sizes[n]
        creates = [seconds for one in own for seconds in one.creates]
        means = [fmean([getattr(one, name) for one in own]) for name in ("memory", "swap", "disk", "load")]
        times = [stats.percentile(creates, share) if creates else None for share in (0.5, 0.95)]
        rows.append([n, means[0], means[1], means[2] / MIB, means[3], *times])
    note = "Create: from the request to ssh's banner through the sliver's own port on the node, for each sliver."
    note += f" Every {every}th step is shown; data.csv has all." if every > 1 else ""
    return Table("Node and creates by the number of slivers", columns, rows, note)


def _cost_table(costs: Costs, found: Sequence[Point], deletes: Sequence[dict[str, Any]]) -> Table:
    columns = [Column("what"), Column("mean"), Column("low"), Column("high"), Column("unit"), Column("of")]
    turns = len({one.turn for one in found})
    rows: list[list[str | float | None]] = []

    def add(name: str, values: Sequence[float], unit: str, scale: float = 1.0) -> None:
        if values:
            summary = stats.summary([one / scale for one in values])
            rows.append(
                [name, *(_short(one) for one in (summary.mean, summary.low, summary.high)), unit, summary.count]
            )

    add("memory of the node for each sliver", costs.memory, "MiB", MIB)
    add("disk of the pool for each sliver", costs.disk, "KiB", KIB)
    last = [one for one in found if one.n == costs.most]
    add("working set of a sliver's own group", [o.own_memory for o in last if o.own_memory is not None], "MiB", MIB)
    add("charged to a sliver's own group: disk", [o.own_disk for o in last if o.own_disk is not None], "KiB", KIB)
    line = stats.slope([one.n for one in found], [one.used / MIB for one in found])
    if line is not None:
        ends = [_short(one) for one in (line.value, line.low, line.high)]
        rows.append([f"memory, slope of the line through all points (r² {line.fit:.3f})", *ends, "MiB", len(found)])
    add("create, last to first", costs.late, "×")
    add("delete, each", [one["seconds"] / one["slivers"] for one in deletes if one["slivers"]], "s")
    add("delete, all", [one["seconds"] for one in deletes], "s")
    note = f"Low and high: the 95 % confidence interval by Student's t, of {turns} repetition{'s' * (turns > 1)}"
    note += "; one alone has none." if turns < 2 else "."
    return Table("What a sliver costs", columns, rows, note)


def _short(value: float | None) -> float | None:
    """Rounded to three significant digits, the precision of such a figure."""
    return None if value is None else float(f"{value:.3g}")


def _paper_table(sliver_type: str, run: Run, found: Sequence[Point]) -> Table:
    gib = _total(run, "memory_total") / (1 << 30)
    columns = [
        Column("what"),
        Column("the paper, 4 GiB"),
        Column(f"here, {gib:.3g} GiB"),
        Column("the paper for each GiB"),
    ]
    columns.append(Column("here for each GiB"))
    most = max(one.n for one in found)
    rows: list[list[str | float | None]] = []
    for name, paper in PAPER[sliver_type]:
        ours = knee(found, "swap" if name == "swapping" else "memory")
        here = str(ours) if ours is not None else f"not up to {most}"
        each = f"{ours / gib:.3g}" if ours is not None else f"more than {most / gib:.3g}"
        rows.append([f"{name} at this number of slivers", str(paper), here, f"{paper / PAPER_GIB:.3g}", each])
    swap = (
        f"{max(one.swap for one in found):.1f} % in use at most" if _total(run, "swap_total") else "this node has none"
    )
    rows.append(["swap", PAPER_SWAP[sliver_type], swap, None, None])
    figure = FIGURE[sliver_type]
    note = f"The numbers that the text of its section 7.1 gives for its figure {figure}; it gives no others."
    return Table("Compared with the paper", columns, rows, note)


def _total(run: Run, name: str) -> int:
    return int(next(one["data"]["node"][name] for one in run.steps.values() if "node" in one["data"]))


def knee(found: Sequence[Point], what: str) -> int | None:
    """The least number of slivers with all memory in use, or with more swap in use than at the start; None: none."""
    start = min(found, key=lambda one: one.n)
    for one in sorted(found, key=lambda one: one.n):
        if what == "memory" and one.memory >= 100 * _FULL:
            return one.n
        if what == "swap" and one.swap > start.swap + 100 * _SWAPS:
            return one.n
    return None


# --- plots ------------------------------------------------------------------------------------------------------------


def _curve(found: Sequence[Point], label: str, name: str, scale: float = 1.0, *, right: bool = False) -> Series:
    """The curve of the means of the repetitions, with confidence intervals if there are several."""
    summaries = {n: stats.summary([getattr(one, name) / scale for one in own]) for n, own in _by_size(found).items()}
    bands = any(one.low is not None for one in summaries.values())
    low = [one.low for one in summaries.values()] if bands else ()
    high = [one.high for one in summaries.values()] if bands else ()
    return Series(label, list(summaries), [one.mean for one in summaries.values()], low, high, right=right)


def _figure(sliver_type: str, found: Sequence[Point]) -> Plot:
    most = max(one.n for one in found)
    marks = [Mark(n, f"paper: {name}") for name, n in PAPER[sliver_type] if n <= most]
    return Plot(
        name="resources",
        title=f"Resource consumption on {sliver_type} (the paper's figure {FIGURE[sliver_type]})",
        x=Axis("number of slivers", least=0),
        left=Axis("memory in use", "%", 0, 100),
        right=Axis("growth of disk usage", "MiB", 0),
        series=[
            _curve(found, "memory", "memory"),
            _curve(found, "swap", "swap"),
            _curve(found, "disk", "disk", MIB, right=True),
        ],
        marks=marks,
        note="The paper's nodes had 4 GiB of memory; its numbers are drawn where they were measured there.",
    )


def _times(sliver_type: str, found: Sequence[Point]) -> Plot:
    sizes = {n: [s for one in own for s in one.creates] for n, own in _by_size(found).items()}
    sizes = {n: creates for n, creates in sizes.items() if creates}
    curves = [
        Series(label, list(sizes), [stats.percentile(one, share) for one in sizes.values()])
        for label, share in (("median", 0.5), ("95 % are faster", 0.95))
    ]
    return Plot(
        name="creates",
        title=f"Time of a create, {sliver_type}",
        x=Axis("number of slivers", least=0),
        left=Axis("request to ssh banner", "s", 0),
        series=curves,
        note="Of the slivers that each step added.",
    )


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(run: Run, sliver_type: str, found: Sequence[Point], costs: Costs) -> list[str]:
    last = max(found, key=lambda one: one.n)
    wanted = run.info["parameters"]["to"]
    said = [
        f"{costs.most} of {wanted} {sliver_type} slivers ran on the node"
        + (
            f", each with ssh's banner received through its own port at its creation{_checked(run)}."
            if costs.most
            else "."
        )
    ]
    stops = [f"{one['title']}: {one['stopped']}" for one in run.steps.values() if one.get("stopped")]
    if stops:
        said.append(f"It stopped before the node ran out of resources, at {stops[0]}.")
    if costs.most:
        said.append(
            f"With {last.n} of them {last.memory:.1f} % of the memory and {last.swap:.1f} % of the swap were in use "
            f"and the pool had grown by {last.disk / MIB:.1f} MiB: {fmean(costs.memory) / MIB:.2f} MiB of memory and "
            f"{fmean(costs.disk) / KIB:.0f} KiB of disk for each."
        )
    if costs.late:
        said.append(f"The last creates took {fmean(costs.late):.2f} × as long as the first.")
    if sliver_type == "kvm":
        at, why = _knee(run, found)
        said.append(f"The knee is at {at} machines: {why}." if at else "No knee was found: nothing ran out.")
    return said


def _knee(run: Run, found: Sequence[Point]) -> tuple[int | None, str]:
    """The number of machines from which the node lacks a resource, and the reason."""
    for what, why in (("swap", "from there on swap is in use"), ("memory", "there all memory is in use")):
        at = knee(found, what)
        if at is not None:
            return at, why
    if any(one.get("stopped") for one in run.steps.values()):
        return max(one.n for one in found), "the guard let no more begin, as the node had too little left"
    return None, ""


def _checked(run: Run) -> str:
    checks = [one["data"] for one in run.steps.values() if "reached" in one["data"]]
    if not checks:
        return ""
    least = min(checks, key=lambda one: one["reached"] - one["slivers"])
    return f", and {least['reached']} of {least['slivers']} again when all of them ran"


def _aims(run: Run, sliver_type: str, found: Sequence[Point], costs: Costs) -> list[Aim]:
    if sliver_type == "kvm":
        at, _ = _knee(run, found)
        checks = [one["data"] for one in run.steps.values() if "reached" in one["data"]]
        whole = all(one["reached"] == one["slivers"] for one in checks) if checks else None
        return [
            Aim("the knee of kvm is found", True if at else None, f"at {at}" if at else f"not up to {costs.most}"),
            Aim("nothing is broken beyond it", whole, f"{_checked(run).removeprefix(', and ') or 'not tested'}"),
        ]
    thousand = costs.most >= 1000
    checks = [one["data"] for one in run.steps.values() if "reached" in one["data"]]
    whole = all(one["reached"] == one["slivers"] for one in checks) if checks and thousand else None
    short = f"this run had {costs.most} slivers{_checked(run)}"
    late = fmean(costs.late) if costs.late else None
    # The memory of few slivers is less than the noise of the node's memory.
    light = f"this run had {costs.most} slivers" if costs.most < _EDGE else ""
    return [
        Aim("1000 lxc slivers on one node, each reached by ssh through its own port", whole, short),
        Aim(
            "a create at 1000 takes at most 1.5 × as long as one at 50",
            late <= 1.5 if thousand and late is not None else None,
            "-" if late is None else f"{late:.2f} × at {costs.most}",
        ),
        _limit("at most 6 MiB of memory for each sliver", costs.memory, 6 * MIB, MIB, "MiB", light),
        _limit("at most 300 KiB of disk for each sliver", costs.disk, 300 * KIB, KIB, "KiB"),
    ]


def _limit(text: str, values: Sequence[float], most: float, scale: float, unit: str, few: str = "") -> Aim:
    if not values:
        return Aim(text, None, "no sliver ran")
    measured = f"{fmean(values) / scale:.3g} {unit}"
    return Aim(text, None if few else fmean(values) <= most, f"{measured}; {few}" if few else measured)


def _metrics(found: Sequence[Point], costs: Costs, deletes: Sequence[dict[str, Any]]) -> list[Metric]:
    creates = [seconds for one in found for seconds in one.creates]
    each = [one["seconds"] / one["slivers"] for one in deletes if one["slivers"]]
    known = [
        Metric("create, request to ssh banner", "s", creates),
        Metric("memory for each sliver", "MiB", [one / MIB for one in costs.memory]),
        Metric("disk for each sliver", "KiB", [one / KIB for one in costs.disk]),
        Metric("create, last to first", "×", costs.late),
        Metric("delete, each", "s", each),
        Metric("slivers that ran", "", [float(costs.most)], better="more"),
    ]
    return [one for one in known if one.values]


def _row(one: Point) -> dict[str, Any]:
    """A row of data.csv: sizes in bytes, times in seconds."""
    known = bool(one.creates)
    return {
        "repetition": one.turn,
        "slivers": one.n,
        "memory_percent": round(one.memory, 3),
        "swap_percent": round(one.swap, 3),
        "memory_growth": one.used,
        "disk_growth": one.disk,
        "load": one.load,
        "create_p50": stats.percentile(one.creates, 0.5) if known else None,
        "create_p95": stats.percentile(one.creates, 0.95) if known else None,
        "own_memory": one.own_memory,
        "own_disk": one.own_disk,
    }
