"""The report of `bench sysbench`: the results beside those of the paper "Create Simple Container". Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slicemgr.bench.experiments.sysbench import HOST, PLACES
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import not_measured, stats
from slicemgr.bench.report.content import Axis, Column, Content, Mark, Metric, Plot, Series, Table, Value

PAPER_RUNS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. better: "less", "more", or "" if the number is the requested duration.

    paper: the values of host, the paper's own container, LXC and Docker; None if the paper has no such row.
    """

    test: str
    key: str
    name: str
    unit: str
    better: str
    paper: tuple[float, float, float, float] | None


ROWS = (
    Row("cpu", "seconds", "CPU total time", "s", "", (10.0009, 10.0003, 10.0000, 10.0001)),
    Row("cpu", "events_per_second", "CPU events each second", "1/s", "more", None),
    Row("cpu", "events", "CPU total number of events", "", "more", None),
    Row("fileio", "written", "file I/O write", "MiB/s", "more", (191.35, 188.78, 62.844, 62.875)),
    Row("fileio", "read", "file I/O read", "MiB/s", "more", (287.02, 282.67, 94.312, 94.312)),
    Row(
        "memory", "operations", "memory access, total operations", "", "more", (89706804, 87056448, 99843978, 104857600)
    ),
    Row("memory", "mib_per_second", "memory access, throughput", "MiB/s", "more", (8759.64, 8321.72, 8136.85, 8227.50)),
    Row("threads", "seconds", "threads total time", "s", "", (20.0001, 20.0003, 3.6231, 3.8231)),
    Row("threads", "events", "threads total number of events", "", "more", (96749, 95274, 10000, 10000)),
)
# The keys of the rows that compare the speeds of two places, for the plot and the ratios.
_SPEEDS = ("events_per_second", "written", "read", "mib_per_second", "events")

Values = dict[tuple[str, str, str], list[float]]  # (place, test, key) → a value for each repetition


def values(run: Run) -> Values:
    found: Values = {}
    for one in run.steps.values():
        data = one["data"]
        if "test" in data:
            for row in ROWS:
                if row.test == data["test"] and row.key in data:
                    found.setdefault((data["place"], row.test, row.key), []).append(data[row.key])
    return found


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = values(run)
    if not found:
        raise ValueError("no test has ended yet")
    places = [place for place in PLACES if any(place == one for one, _, _ in found)]
    return Content(
        title="sysbench: processor, threads, memory and files",
        outcome=_outcome(run, found, places),
        tables=[
            _table(found, places),
            *_ratios(found, places),
            _paper(found, places),
            *not_measured.tables(run),
        ],
        plots=_plots(found, places),
        metrics=_metrics(found, places),
        data=[_row(one["data"]) for one in run.steps.values() if "test" in one["data"]],
    )


def _title(row: Row) -> str:
    return f"{row.name} ({row.unit})" if row.unit else row.name


def _plain(row: Row) -> str:
    """The name of a row in a list or below a bar."""
    for more in (" total number of events", " events each second", " access, throughput"):
        if row.name.endswith(more):
            return row.name.removesuffix(more)
    return row.name


def _known(found: Values) -> list[Row]:
    return [row for row in ROWS if any((test, key) == (row.test, row.key) for _, test, key in found)]


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.6g}"


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(found: Values, places: Sequence[str]) -> Table:
    """The table of the means, the deviations of the samples, and the confidence intervals of the means."""
    columns = [Column("what"), Column("place"), Column("mean"), Column("deviation"), Column("low"), Column("high")]
    columns += [Column("unit"), Column("runs")]
    rows: list[list[Value]] = []
    for row in _known(found):
        for place in places:
            one = found.get((place, row.test, row.key))
            if one:
                summary = stats.summary(one)
                numbers = (summary.mean, summary.deviation, summary.low, summary.high)
                rows.append([row.name, place, *(_short(value) for value in numbers), row.unit or None, summary.count])
    note = (
        "Low and high: the 95 % confidence interval of the mean by Student's t. File I/O: random reads and writes of "
    )
    note += "16 KiB by 16 threads, with fsync every 100 requests."
    return Table("Mean and deviation", columns, rows, note)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _ratios(found: Values, places: Sequence[str]) -> list[Table]:
    """The table that compares each place with the host."""
    if HOST not in places or len(places) < 2:
        return []
    rows: list[list[Value]] = []
    chances: list[float | None] = []
    for row in [one for one in _known(found) if one.better and one.key != "operations"]:
        for place in places:
            if place != HOST and {(place, row.test, row.key), (HOST, row.test, row.key)} <= set(found):
                one = stats.difference(found[HOST, row.test, row.key], found[place, row.test, row.key])
                rows.append([row.name, place, one.new / one.old if one.old else None])
                chances.append(one.p)
    for line, p in zip(rows, stats.adjusted(chances), strict=True):
        chance = None if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
        line += [chance, "undetermined" if p is None else "yes" if p < 0.05 else "no"]
    columns = [Column("what"), Column("place"), Column("speed", "× host", 3), Column("p"), Column("significant")]
    note = "1: as fast as the host. Welch's t, corrected by Benjamini and Hochberg for all lines."
    return [Table("Compared with the host", columns, rows, note)]


def _paper(found: Values, places: Sequence[str]) -> Table:
    columns = [Column("what"), *(Column(f"{place}, here") for place in places)]
    columns += [Column(f"{name}, the paper") for name in ("host", "its container", "LXC", "Docker")]
    columns += [Column("lxc to host, here", digits=2), Column("LXC to host, the paper", digits=2)]
    rows: list[list[Value]] = []
    for row in _known(found):
        if row.paper is None:
            continue
        ours = [found.get((place, row.test, row.key)) for place in places]
        here = [_digits(stats.summary(one).mean) if one else None for one in ours]
        rows.append([_title(row), *here, *(_digits(one) for one in row.paper), *_shares(found, row)])
    note = (
        f"The paper's are means of {PAPER_RUNS} runs without their deviations, of sysbench 1.0.18 on the host and in "
    )
    note += "its own container, and of 0.4.12 in LXC and Docker (Ubuntu 16), which ends after 10 000 events: so its "
    note += "lines of threads and of total times do not compare across these. Here all are of one version of 1.0."
    return Table("Compared with the paper", columns, rows, note)


def _shares(found: Values, row: Row) -> list[Value]:
    """The ratio of lxc to the host, in this run and in the paper."""
    own, host = (found.get((place, row.test, row.key)) for place in ("lxc", HOST))
    ours = stats.summary(own).mean / stats.summary(host).mean if own and host and any(host) else None
    return [ours, row.paper[2] / row.paper[0] if row.paper else None]


# --- plots ------------------------------------------------------------------------------------------------------------


def _bars(found: Values, places: Sequence[str]) -> list[Row]:
    """The rows that are drawn as groups of bars: those that the reference, the first place, has, too."""
    rows = [row for row in _known(found) if row.better and row.key in _SPEEDS]
    rows = [row for row in rows if not (row.test == "cpu" and row.key == "events")]
    return [row for row in rows if all((place, row.test, row.key) in found for place in places[:1])]


def _plots(found: Values, places: Sequence[str]) -> list[Plot]:
    """The plot of speeds as shares of the first place's speed, which is the host if it was measured."""
    rows = _bars(found, places)
    if not rows:
        return []
    curves = []
    for place in places:
        y: list[float | None] = []
        low: list[float | None] = []
        high: list[float | None] = []
        for row in rows:
            whole = stats.summary(found[places[0], row.test, row.key]).mean
            own = found.get((place, row.test, row.key))
            if own is None or not whole:
                for side in (y, low, high):
                    side.append(None)
                continue
            summary = stats.summary(own)
            y.append(summary.mean / whole)
            low.append((summary.mean if summary.low is None else max(summary.low, 0.0)) / whole)
            high.append((summary.mean if summary.high is None else summary.high) / whole)
        curves.append(Series(place, (), y, low, high))
    return [
        Plot(
            name="speeds",
            title=f"Speed compared with {places[0]}",
            x=Axis("test"),
            left=Axis(f"speed, {places[0]} is 1", least=0),
            series=curves,
            marks=[Mark(1.0, places[0], y=True)],
            groups=[_plain(row) for row in rows],
            note="Whiskers: the 95 % confidence interval of the mean.",
        )
    ]


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(run: Run, found: Values, places: Sequence[str]) -> list[str]:
    runs = max(len(one) for one in found.values())
    said = [f"sysbench ran {runs} time{'s' * (runs > 1)} on {', '.join(places)}."]
    if HOST in places:
        for place in [one for one in places if one != HOST]:
            parts = []
            for row in _bars(found, [HOST]):
                if (place, row.test, row.key) in found:
                    pair = (found[HOST, row.test, row.key], found[place, row.test, row.key])
                    host, own = (stats.summary(one).mean for one in pair)
                    parts.append(f"{_plain(row)} {own / host:.2f}" if host else f"{_plain(row)} -")
            if parts:
                said.append(f"Of the host's speed {place} reached: {', '.join(parts)}.")
    sent = [place for place in places if any(_is_sent(one["data"], place) for one in run.steps.values())]
    if sent:
        said.append(f"On {', '.join(sent)} the sysbench of the machine of slicectl ran, with its libraries.")
    versions = sorted({str(one["data"]["version"]) for one in run.steps.values() if one["data"].get("version")})
    if len(versions) > 1:
        said.append(f"Beware: sysbench is of different versions: {', '.join(versions)}.")
    return said + not_measured.outcome(run)


def _is_sent(data: dict[str, Any], place: str) -> bool:
    return data.get("place") == place and bool(data.get("sent"))


def _metrics(found: Values, places: Sequence[str]) -> list[Metric]:
    rows = [row for row in _known(found) if row.better and row.key != "operations"]
    return [
        Metric(f"{row.name}, {place}", row.unit, found[place, row.test, row.key], row.better)
        for row in rows
        for place in places
        if (place, row.test, row.key) in found
    ]


def _row(data: dict[str, Any]) -> dict[str, Any]:
    """A row of data.csv."""
    numbers = {key: value for key, value in data.items() if key not in ("turn", "place", "test", "sent")}
    return {"repetition": data["turn"], "place": data["place"], "test": data["test"], **numbers}
