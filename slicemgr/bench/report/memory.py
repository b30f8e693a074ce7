"""The report of `bench memory`: what slivers kept of their speed while the node's memory was short. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from slicemgr.bench.experiments.memory_setting import CONFIGURATIONS, CONTROLLER, HIGH, LOW
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import memory_matrix, not_measured, stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Mark, Metric, Plot, Series, Table, Value
from slicemgr.bench.report.memory_repetitions import KEPT, NAMES, PROMISED, SAME, TITLES, Measured, measured
from slicemgr.human import counted, size

_BACK = 10.0  # seconds after the pressure in which it is to be back
_SLOWER = 1.2  # times as long as without pressure, which 99 % of the reads may take
_COST = 0.01  # of a core that the controller may use, with up to 200 slivers
_FEW = 5  # repetitions below which no aim is decided


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = measured(run)
    if not found:
        raise ValueError("no repetition has ended yet")
    base = [one for one in found if not one.variant]
    by = {name: some for name in CONFIGURATIONS if (some := [one for one in base if one.configuration == name])}
    varied = len(base) < len(found)
    return Content(
        title="The promise of memory under pressure",
        outcome=[*_outcome(by), *(memory_matrix.answers(found) if varied else []), *not_measured.outcome(run)],
        tables=[
            *([_throughput(by), _node(by)] if by else []),
            *([memory_matrix.table(found)] if varied else []),
            *not_measured.tables(run),
        ],
        plots=[*([*_over_time(by), _bars(by)] if by else []), *(memory_matrix.plots(found) if varied else [])],
        aims=_aims(by),
        metrics=_metrics(by),
        data=[_row(one) for one in found],
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _throughput(by: Mapping[str, Sequence[Measured]]) -> Table:
    """Table 1.2 of the thesis, for each configuration."""
    columns = [Column("who decides"), Column("sliver"), Column("guarantee", "MiB", 0)]
    columns += [Column("beside the further sliver", "% of alone", 1), Column("without", "reads/s", 0)]
    columns += [Column("pressed", "reads/s", 0), Column("kept", "%", 1), Column("low", "%", 1), Column("high", "%", 1)]
    columns += [Column("least", "%", 1), Column("back after", "s", 1), Column("99 % without", "µs", 1)]
    columns += [Column("99 % pressed", "×", 2), Column("of")]
    rows: list[list[Value]] = []
    for name, some in by.items():
        for sliver in PROMISED:
            kept = stats.summary([one.kept(sliver) for one in some])
            back = _mean([one.back(sliver) for one in some])
            own = some[0].data["slivers"][sliver]
            numbers = [_percent(value) for value in (kept.mean, kept.low, kept.high, kept.least)]
            speeds = (fmean([one.before(sliver) for one in some]), fmean([one.pressed(sliver) for one in some]))
            slower = [_mean([getattr(one, what)(sliver) for one in some]) for what in ("usual", "slower")]
            beside = _percent(_mean([one.of_alone(sliver) for one in some]))
            own_row = [NAMES[name], TITLES[sliver], own["guarantee"] / (1 << 20), beside, *speeds, *numbers, back]
            rows.append([*own_row, *slower, len(some)])
    note = (
        f"Each sliver uses {_use(by)} of its guarantee, whose pages it reads at random. Beside the further sliver: "
        'while that works in little memory, which is what "without" pressure means here. Low and high: the 95 % '
        "confidence interval of the mean by Student's t. Back: until three seconds had 95 % of the speed again; a "
        "dash: not within the measurement. 99 %: the time within which 99 % of the reads of a second ended, the median "
        "of the seconds and the mean of the repetitions; pressed: as a multiple of that."
    )
    return Table("Reads of slivers within their guarantees", columns, rows, note)


def _use(by: Mapping[str, Sequence[Measured]]) -> str:
    """What slivers use; in runs of earlier versions a file of 80 %."""
    setting = next(iter(by.values()))[0].data.get("setting", {"workload": "file", "usage": 80})
    what = {"file": "a file of", "memory": "memory of a program, of"}.get(
        setting["workload"], f"{setting['workload']} with"
    )
    return f"{what} {setting['usage']} %"


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one is not known."""
    return None if None in values else stats.mean_of_known(values)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _node(by: Mapping[str, Sequence[Measured]]) -> Table:
    columns = [Column("who decides"), Column("taken by the controller", "MiB", 0), Column("its cost", "% of a core", 2)]
    columns += [Column("the kernel's work for it", "% of a core", 2)]
    columns += [
        Column("least free", "MiB", 0),
        Column("least available", "MiB", 0),
        Column("used by the further sliver", "MiB", 0),
        Column("programs killed"),
    ]
    rows: list[list[Value]] = []
    for name, some in by.items():
        free, available = (
            min(min(one.data["node"][what]) for one in some) / (1 << 20) for what in ("free", "available")
        )
        hog = fmean([sum(one.hog) for one in some]) / (1 << 20)
        taken = fmean([one.taken for one in some]) / (1 << 20)
        cost, taking = (100 * fmean([getattr(one, what) for one in some]) for what in ("cost", "taking"))
        killed = sum(one.killed for one in some)
        rows.append([NAMES[name], taken, cost, taking, free, available, hog, killed])
    total = size(next(iter(by.values()))[0].data["memory"])
    note = f"It had {total} of memory. Taken, cost and used: means of the repetitions; killed: all."
    return Table("The node", columns, rows, note)


# --- plots ------------------------------------------------------------------------------------------------------------


def _over_time(by: Mapping[str, Sequence[Measured]]) -> list[Plot]:
    """Figure 1.2 of the thesis, for each configuration."""
    found = []
    for name, some in by.items():
        one = some[0]
        count = min(len(each.rates[sliver]) for each in some for sliver in PROMISED)
        series = []
        for sliver in PROMISED:
            seconds = [
                stats.summary([each.rates[sliver][at] / each.before(sliver) for each in some]) for at in range(count)
            ]
            series.append(_series(sliver, seconds, list(range(count))))
        marks = [Mark(one.begin, "memory is taken"), Mark(one.end, "and given back")]
        if one.alone:
            marks.insert(0, Mark(one.alone, "the further sliver works"))
        found.append(
            Plot(
                name,
                f"Speed over time: {NAMES[name]}",
                Axis("time", "s", 0),
                Axis("reads, 1 is without pressure", least=0),
                series,
                marks=marks,
                note="Band: the 95 % confidence interval of the mean of the repetitions.",
            )
        )
    return found


def _bars(by: Mapping[str, Sequence[Measured]]) -> Plot:
    bars = []
    for sliver in PROMISED:
        kept = [stats.summary([one.kept(sliver) for one in some]) for some in by.values()]
        bars.append(_series(sliver, kept))
    return Plot(
        "kept",
        "What slivers within their guarantees keep",
        Axis("who decides"),
        Axis("kept part of the speed", least=0),
        bars,
        marks=[Mark(KEPT, "aim", y=True)],
        groups=[NAMES[name] for name in by],
        note="Whiskers: the 95 % confidence interval of the mean.",
    )


def _series(sliver: str, found: Sequence[stats.Summary], x: Sequence[float] = ()) -> Series:
    """The means, with their intervals if all have one."""
    low, high = [one.low for one in found], [one.high for one in found]
    ends = (low, high) if all(one is not None for one in low) else ((), ())
    return Series(TITLES[sliver], x, [one.mean for one in found], *ends)


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(by: Mapping[str, Sequence[Measured]]) -> list[str]:
    said = []
    for name, some in by.items():
        parts = [f"{100 * fmean([one.kept(sliver) for one in some]):.1f} %" for sliver in PROMISED]
        said.append(
            f"With {NAMES[name]}, the slivers that were promised memory 1 : 2 kept {parts[0]} and {parts[1]} of their "
            f"speed ({counted(len(some), 'repetition')})."
        )
    return said


def _aims(by: Mapping[str, Sequence[Measured]]) -> list[Aim]:
    some = by.get(CONTROLLER, [])
    few = f"; this run had {counted(len(some), 'repetition')}" if len(some) < _FEW else ""

    def aim(text: str, reached: bool, measured: str) -> Aim:
        return Aim(text, None if few else reached, measured + few)

    texts = (
        f"a sliver within its guarantee keeps at least {100 * KEPT:.0f} % of its speed, on average",
        f"the sliver that was promised more keeps at least as much, within {100 * SAME:.0f} %, in each repetition",
        f"{100 * KEPT:.0f} % of the speed is back within {_BACK:.0f} s, in each repetition",
        f"the controller uses at most {100 * _COST:.0f} % of a core",
        f"99 % of the reads of a sliver within its guarantee take at most {_SLOWER:g} × as long as without pressure",
    )
    if not some:
        return [Aim(text, None, "not measured") for text in texts]
    kept = {sliver: fmean([one.kept(sliver) for one in some]) for sliver in PROMISED}
    gaps = [one.kept(HIGH) - one.kept(LOW) for one in some]
    backs = [one.back(sliver) for one in some for sliver in PROMISED]
    known = [one for one in backs if one is not None]
    slowest = "not within the measurement" if len(known) < len(backs) else f"at most {max(known):.0f} s"
    cost = fmean([one.cost for one in some])
    slower = [_mean([one.slower(sliver) for one in some]) for sliver in PROMISED]
    times = [one for one in slower if one is not None]
    return [
        aim(texts[0], min(kept.values()) >= KEPT, " and ".join(f"{100 * one:.1f} %" for one in kept.values())),
        aim(texts[1], min(gaps) >= -SAME, f"at least {100 * min(gaps):+.1f} %"),
        aim(texts[2], len(known) == len(backs) and max(known) <= _BACK, slowest),
        aim(texts[3], cost <= _COST, f"{100 * cost:.2f} % with three slivers"),
        aim(texts[4], max(times) <= _SLOWER, " and ".join(f"{one:.2f} ×" for one in times))
        if len(times) == len(slower)
        else Aim(texts[4], None, "not measured"),
    ]


def _metrics(by: Mapping[str, Sequence[Measured]]) -> list[Metric]:
    return [
        Metric(f"{NAMES[name]}: kept, {TITLES[sliver]}", "", [one.kept(sliver) for one in some], "more")
        for name, some in by.items()
        for sliver in PROMISED
    ]


def _row(one: Measured) -> dict[str, Any]:
    """A row of data.csv."""
    row: dict[str, Any] = {"repetition": one.data["turn"], "configuration": one.configuration}
    for sliver in PROMISED:
        values = {"before": one.before(sliver), "pressed": one.pressed(sliver), "back": one.back(sliver)}
        values |= {"p99": one.usual(sliver), "slower": one.slower(sliver)}
        row |= {f"{sliver}_{name}": value for name, value in values.items()}
    return row | {"taken": one.taken, "cost": one.cost}
