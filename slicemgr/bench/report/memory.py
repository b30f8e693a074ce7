"""The report of `bench memory`: what slivers kept of their speed while the node's memory was short. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from slicemgr.bench.experiments.memory_setting import (
    CONFIGURATIONS,
    CONTROLLER,
    GUARANTEE,
    HIGH,
    HOG,
    KERNEL,
    LOW,
    STATIC,
    kind,
)
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import not_measured, stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Mark, Metric, Plot, Series, Table, Value
from slicemgr.human import counted, size

_KEPT = 0.95  # of the speed without pressure, which is to be kept, and which is to be back
_BACK = 10.0  # seconds after the pressure in which it is to be back
_SAME = 0.02  # of the speed: two slivers that keep parts that differ by less count as equal
_SLOWER = 1.2  # times as long as without pressure, which 99 % of the reads may take
_COST = 0.01  # of a core that the controller may use, with up to 200 slivers
_FEW = 5  # repetitions below which no aim is decided
_SMOOTH = 3  # seconds: a speed is back if their mean is
_PROMISED = (LOW, HIGH)
_NAMES = {
    KERNEL: "the kernel alone",
    GUARANTEE: "the kernel with guarantees",
    CONTROLLER: "the memory controller",
    STATIC: "a static partition",
}
_TITLES = {LOW: "promised 1", HIGH: "promised 2", HOG: "promised nothing"}


@dataclass(frozen=True, slots=True)
class Measured:
    """One repetition of one configuration. rates, p99: of the slivers that were promised 1 and 2, for each second since
    the begin of the measurement.

    rates: of all slivers of that kind. p99: microseconds within which 99 % of the reads ended, the mean of those
    slivers; empty in runs of earlier versions. begin, ramp, end: seconds when the pressure began, had grown, and ended.
    """

    configuration: str
    data: Mapping[str, Any]
    rates: Mapping[str, Sequence[float]]
    p99: Mapping[str, Sequence[float]]
    begin: int
    ramp: int
    end: int

    def before(self, name: str) -> float:
        return fmean(self.rates[name][1 : self.begin])

    def pressed(self, name: str) -> float:
        return fmean(self.rates[name][self.ramp : self.end])

    def kept(self, name: str) -> float:
        """The part of the speed that was kept under pressure."""
        return self.pressed(name) / self.before(name)

    def back(self, name: str) -> float | None:
        """Seconds after the pressure until the speed was back; None: not within the measurement."""
        rates, least = self.rates[name], _KEPT * self.before(name)
        for second in range(self.end, len(rates) - _SMOOTH + 1):
            if fmean(rates[second : second + _SMOOTH]) >= least:
                return float(second - self.end)
        return None

    def usual(self, name: str) -> float | None:
        """The 99th percentile of reads without pressure, microseconds: the median of the seconds."""
        return median(self.p99[name][1 : self.begin]) if name in self.p99 else None

    def slower(self, name: str) -> float | None:
        """How many times as long it is under pressure."""
        usual = self.usual(name)
        return median(self.p99[name][self.ramp : self.end]) / usual if usual else None

    @property
    def taken(self) -> int:
        return int(self.data["node"]["taken"][-1])

    @property
    def cost(self) -> float:
        """Of a core, that the controller used."""
        return float(self.data["node"]["cpu"]) / len(self.data["node"]["taken"])


def measured(run: Run) -> list[Measured]:
    found = []
    for one in run.steps.values():
        data = one["data"]
        if "configuration" not in data:
            continue
        seconds = len(data["node"]["taken"]) // 4
        rates = {name: _of_kind(data, name, "each_second", sum) for name in _PROMISED}
        p99 = {name: series for name in _PROMISED if (series := _of_kind(data, name, "p99", fmean))}
        found.append(Measured(data["configuration"], data, rates, p99, seconds, seconds + seconds // 2, 3 * seconds))
    return found


def _of_kind(
    data: Mapping[str, Any], title: str, series: str, one_of: Callable[[list[float]], float]
) -> Sequence[float]:
    """A series of the slivers of a kind, made one by `one_of` in each second; empty if it was not measured.

    The loads began a moment before or after the agent: whole seconds are moved.
    """
    found = [
        _moved(own[series], own["at"] - data["node"]["at"])
        for name, own in data["slivers"].items()
        if kind(name) == title and series in own
    ]
    return [one_of(list(values)) for values in zip(*found, strict=True)]


def _moved(rates: Sequence[float], late: float) -> Sequence[float]:
    """As if the load had begun with the agent. late: seconds."""
    shift = round(late)
    return [rates[0]] * shift + list(rates[: len(rates) - shift]) if shift >= 0 else list(rates[-shift:])


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = measured(run)
    if not found:
        raise ValueError("no repetition has ended yet")
    by = {name: some for name in CONFIGURATIONS if (some := [one for one in found if one.configuration == name])}
    return Content(
        title="The promise of memory under pressure",
        outcome=[*_outcome(by), *not_measured.outcome(run)],
        tables=[_throughput(by), _node(by), *not_measured.tables(run)],
        plots=[*_over_time(by), _bars(by)],
        aims=_aims(by),
        metrics=_metrics(by),
        data=[_row(one) for one in found],
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _throughput(by: Mapping[str, Sequence[Measured]]) -> Table:
    """Table 1.2 of the thesis, for each configuration."""
    columns = [Column("who decides"), Column("sliver"), Column("guarantee", "MiB", 0), Column("without", "reads/s", 0)]
    columns += [Column("pressed", "reads/s", 0), Column("kept", "%", 1), Column("low", "%", 1), Column("high", "%", 1)]
    columns += [Column("least", "%", 1), Column("back after", "s", 1), Column("99 % without", "µs", 1)]
    columns += [Column("99 % pressed", "×", 2), Column("of")]
    rows: list[list[Value]] = []
    for name, some in by.items():
        for sliver in _PROMISED:
            kept = stats.summary([one.kept(sliver) for one in some])
            back = _mean([one.back(sliver) for one in some])
            own = some[0].data["slivers"][sliver]
            numbers = [_percent(value) for value in (kept.mean, kept.low, kept.high, kept.least)]
            speeds = (fmean([one.before(sliver) for one in some]), fmean([one.pressed(sliver) for one in some]))
            slower = [_mean([getattr(one, what)(sliver) for one in some]) for what in ("usual", "slower")]
            own_row = [_NAMES[name], _TITLES[sliver], own["guarantee"] / (1 << 20), *speeds, *numbers, back]
            rows.append([*own_row, *slower, len(some)])
    note = (
        "Each sliver reads pages of a file of 80 % of its guarantee at random. Low and high: the 95 % confidence "
        "interval of the mean by Student's t. Back: until three seconds had 95 % of the speed again; a dash: not "
        "within the measurement. 99 %: the time within which 99 % of the reads of a second ended, the median of the "
        "seconds and the mean of the repetitions; pressed: as a multiple of that."
    )
    return Table("Reads of slivers within their guarantees", columns, rows, note)


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one is not known."""
    return None if None in values else stats.mean_of_known(values)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _node(by: Mapping[str, Sequence[Measured]]) -> Table:
    columns = [Column("who decides"), Column("taken by the controller", "MiB", 0), Column("its cost", "% of a core", 2)]
    columns += [
        Column("least free", "MiB", 0),
        Column("least available", "MiB", 0),
        Column("read by the third", "MiB", 0),
    ]
    rows: list[list[Value]] = []
    for name, some in by.items():
        free, available = (
            min(min(one.data["node"][what]) for one in some) / (1 << 20) for what in ("free", "available")
        )
        hog = fmean([sum(one.data["slivers"][HOG]["each_second"]) for one in some]) / (1 << 20)
        taken = fmean([one.taken for one in some]) / (1 << 20)
        rows.append([_NAMES[name], taken, 100 * fmean([one.cost for one in some]), free, available, hog])
    total = size(next(iter(by.values()))[0].data["memory"])
    return Table(
        "The node", columns, rows, f"It had {total} of memory. Taken, cost and read: means of the repetitions."
    )


# --- plots ------------------------------------------------------------------------------------------------------------


def _over_time(by: Mapping[str, Sequence[Measured]]) -> list[Plot]:
    """Figure 1.2 of the thesis, for each configuration."""
    found = []
    for name, some in by.items():
        one = some[0]
        count = min(len(each.rates[sliver]) for each in some for sliver in _PROMISED)
        series = []
        for sliver in _PROMISED:
            seconds = [
                stats.summary([each.rates[sliver][at] / each.before(sliver) for each in some]) for at in range(count)
            ]
            series.append(_series(sliver, seconds, list(range(count))))
        marks = [Mark(one.begin, "memory is taken"), Mark(one.end, "and given back")]
        found.append(
            Plot(
                name,
                f"Speed over time: {_NAMES[name]}",
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
    for sliver in _PROMISED:
        kept = [stats.summary([one.kept(sliver) for one in some]) for some in by.values()]
        bars.append(_series(sliver, kept))
    return Plot(
        "kept",
        "What slivers within their guarantees keep",
        Axis("who decides"),
        Axis("kept part of the speed", least=0),
        bars,
        marks=[Mark(_KEPT, "aim", y=True)],
        groups=[_NAMES[name] for name in by],
        note="Whiskers: the 95 % confidence interval of the mean.",
    )


def _series(sliver: str, found: Sequence[stats.Summary], x: Sequence[float] = ()) -> Series:
    """The means, with their intervals if all have one."""
    low, high = [one.low for one in found], [one.high for one in found]
    ends = (low, high) if all(one is not None for one in low) else ((), ())
    return Series(_TITLES[sliver], x, [one.mean for one in found], *ends)


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(by: Mapping[str, Sequence[Measured]]) -> list[str]:
    said = []
    for name, some in by.items():
        parts = [f"{100 * fmean([one.kept(sliver) for one in some]):.1f} %" for sliver in _PROMISED]
        said.append(
            f"With {_NAMES[name]}, the slivers that were promised memory 1 : 2 kept {parts[0]} and {parts[1]} of their "
            f"speed ({counted(len(some), 'repetition')})."
        )
    return said


def _aims(by: Mapping[str, Sequence[Measured]]) -> list[Aim]:
    some = by.get(CONTROLLER, [])
    few = f"; this run had {counted(len(some), 'repetition')}" if len(some) < _FEW else ""

    def aim(text: str, reached: bool, measured: str) -> Aim:
        return Aim(text, None if few else reached, measured + few)

    texts = (
        f"a sliver within its guarantee keeps at least {100 * _KEPT:.0f} % of its speed, on average",
        f"the sliver that was promised more keeps at least as much, within {100 * _SAME:.0f} %, in each repetition",
        f"{100 * _KEPT:.0f} % of the speed is back within {_BACK:.0f} s, in each repetition",
        f"the controller uses at most {100 * _COST:.0f} % of a core",
        f"99 % of the reads of a sliver within its guarantee take at most {_SLOWER:g} × as long as without pressure",
    )
    if not some:
        return [Aim(text, None, "not measured") for text in texts]
    kept = {sliver: fmean([one.kept(sliver) for one in some]) for sliver in _PROMISED}
    gaps = [one.kept(HIGH) - one.kept(LOW) for one in some]
    backs = [one.back(sliver) for one in some for sliver in _PROMISED]
    known = [one for one in backs if one is not None]
    slowest = "not within the measurement" if len(known) < len(backs) else f"at most {max(known):.0f} s"
    cost = fmean([one.cost for one in some])
    slower = [_mean([one.slower(sliver) for one in some]) for sliver in _PROMISED]
    times = [one for one in slower if one is not None]
    return [
        aim(texts[0], min(kept.values()) >= _KEPT, " and ".join(f"{100 * one:.1f} %" for one in kept.values())),
        aim(texts[1], min(gaps) >= -_SAME, f"at least {100 * min(gaps):+.1f} %"),
        aim(texts[2], len(known) == len(backs) and max(known) <= _BACK, slowest),
        aim(texts[3], cost <= _COST, f"{100 * cost:.2f} % with three slivers"),
        aim(texts[4], max(times) <= _SLOWER, " and ".join(f"{one:.2f} ×" for one in times))
        if len(times) == len(slower)
        else Aim(texts[4], None, "not measured"),
    ]


def _metrics(by: Mapping[str, Sequence[Measured]]) -> list[Metric]:
    return [
        Metric(f"{_NAMES[name]}: kept, {_TITLES[sliver]}", "", [one.kept(sliver) for one in some], "more")
        for name, some in by.items()
        for sliver in _PROMISED
    ]


def _row(one: Measured) -> dict[str, Any]:
    """A row of data.csv."""
    row: dict[str, Any] = {"repetition": one.data["turn"], "configuration": one.configuration}
    for sliver in _PROMISED:
        values = {"before": one.before(sliver), "pressed": one.pressed(sliver), "back": one.back(sliver)}
        values |= {"p99": one.usual(sliver), "slower": one.slower(sliver)}
        row |= {f"{sliver}_{name}": value for name, value in values.items()}
    return row | {"taken": one.taken, "cost": one.cost}
