"""The report of `bench consolidation`: how many slivers fit until a promise is broken. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from slicemgr.bench.experiments.consolidation import ELASTIC, KEPT, POLICIES, STATIC, usual_speed
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import not_measured, stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Mark, Metric, Plot, Series, Table, Value
from slicemgr.human import counted, size

_MORE = 1.5  # times as many slivers as with a static partition
_FEW = 3  # repetitions below which no aim is decided
_NAMES = {STATIC: "the whole limit is promised", ELASTIC: "a part of the limit is promised"}


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = [one["data"] for one in run.steps.values() if "fits" in one["data"]]
    if not found:
        raise ValueError("no repetition has ended yet")
    by = {name: some for name in POLICIES if (some := [one for one in found if one["policy"] == name])}
    return Content(
        title="How many slivers fit until a promise is broken",
        outcome=[*_outcome(by), *not_measured.outcome(run)],
        tables=[_table(by, run.info.get("parameters", {})), *not_measured.tables(run)],
        plots=[_plot(by)],
        aims=[_aim(by)],
        metrics=[
            Metric(f"slivers, {_NAMES[name]}", "", [one["fits"] for one in some], "more") for name, some in by.items()
        ],
        data=[row for one in found for row in _rows(one)],
    )


def _outcome(by: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    return [
        f"If {_NAMES[name]}, {fmean([one['fits'] for one in some]):.1f} slivers fit "
        f"({counted(len(some), 'repetition')}); then {some[-1]['end']}."
        for name, some in by.items()
    ]


def _table(by: Mapping[str, Sequence[Mapping[str, Any]]], parameters: Mapping[str, Any]) -> Table:
    columns = [Column("promise"), Column("slivers", digits=1), Column("low", digits=1), Column("high", digits=1)]
    columns += [Column("least"), Column("ends by a broken promise"), Column("of")]
    rows: list[list[Value]] = []
    for name, some in by.items():
        fits = stats.summary([one["fits"] for one in some])
        broken = sum(one["broken"] for one in some)
        rows.append([_NAMES[name], fits.mean, fits.low, fits.high, int(fits.least), broken, len(some)])
    whole = size(next(iter(by.values()))[0]["memory"])
    said = ""
    if parameters:
        said = (
            f" Each sliver has a limit of {parameters['memory']}, of which {parameters['guarantee']} % are promised or "
            f"all, and uses {parameters['usage']} % of the former by the workload {parameters['workload']!r}."
        )
    note = (
        f"The node had {whole} of memory.{said} Six slivers are measured, one after the other, by their best second. A "
        "promise is broken if "
        f"one is slower than {100 * KEPT:.0f} % of the usual speed in three measurements, while the newest sliver uses "
        "most of its limit. Otherwise the node refused the next one, because it could not promise more. Low and high: "
        "the 95 % confidence interval by Student's t."
    )
    return Table("Slivers that fit", columns, rows, note)


def _plot(by: Mapping[str, Sequence[Mapping[str, Any]]]) -> Plot:
    series = []
    for name, some in by.items():
        kept: dict[int, list[float]] = {}
        for one in some:
            usual = usual_speed(one["looks"])
            for look in one["looks"]:
                if usual and look["speeds"]:
                    kept.setdefault(look["n"], []).append(min(look["speeds"].values()) / usual)
        numbers = sorted(kept)
        series.append(Series(_NAMES[name], numbers, [fmean(kept[number]) for number in numbers]))
    return Plot(
        "slowest",
        "The slowest sliver by the number of slivers",
        Axis("slivers"),
        Axis("part of the usual speed", least=0),
        series,
        marks=[Mark(KEPT, "promise", y=True)],
        note="Mean of the repetitions.",
    )


def _aim(by: Mapping[str, Sequence[Mapping[str, Any]]]) -> Aim:
    text = f"at least {_MORE:g} × as many slivers as with a static partition, at the same level of service"
    if len(by) < len(POLICIES):
        return Aim(text, None, "not measured")
    static, elastic = (fmean([one["fits"] for one in by[name]]) for name in (STATIC, ELASTIC))
    few = min(len(some) for some in by.values()) < _FEW
    more = elastic / static
    return Aim(text, None if few else more >= _MORE, f"{more:.2f} × ({elastic:.1f} of {static:.1f})")


def _rows(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of data.csv."""
    usual = usual_speed(one["looks"])
    return [
        {
            "repetition": one["turn"],
            "policy": one["policy"],
            "slivers": look["n"],
            "slowest": min(look["speeds"].values(), default=None),
            "usual": usual or None,
            "available": look["available"],
        }
        for look in one["looks"]
    ]
