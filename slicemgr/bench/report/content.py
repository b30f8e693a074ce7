"""The content of a report: descriptions of its tables, plots, aims, sentences and metrics, without any drawing.

The report module of each experiment has `content(run) -> Content`; `pages.CONTENTS` lists these modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = str | float | int | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. unit: shown beside the name, "" for text and counts. digits: decimals; None: as needed."""

    name: str
    unit: str = ""
    digits: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table. rows: each as long as `columns`; None is shown as a dash. note: an explanation below the table."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a plot. least, most: its range, None: derived from the values. log: use a logarithmic scale."""

    label: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    log: bool = False

    @property
    def text(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, slots=True)
class Series:
    """One curve, or the bars of one kind.

    y: None for a value that was not measured. low, high: an interval around each value, such as a confidence interval,
    drawn as a band around a line and as whiskers of bars. right: the curve belongs to the right axis.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    right: bool = False
    points: bool = False  # draw marks without a line


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the plot at a value of the x axis, or with `y` of the left axis: a limit or a published number."""

    at: float
    label: str
    y: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot. name: of its file. groups: labels of groups of bars, each with one bar per series; x is then unused."""

    name: str
    title: str
    x: Axis
    left: Axis
    series: Sequence[Series]
    right: Axis | None = None
    marks: Sequence[Mark] = ()
    groups: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Aim:
    """A goal of the experiment. reached: None if undecided. measured: the result, or the reason why there is none."""

    text: str
    reached: bool | None
    measured: str


@dataclass(frozen=True, slots=True)
class Metric:
    """Values to compare with an earlier run of the same experiment. better: "less", "more", or "" for neither."""

    name: str
    unit: str
    values: Sequence[float]
    better: str = "less"


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a report. outcome: sentences that state the results. data: rows for data.csv and data.json."""

    title: str
    outcome: Sequence[str]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    aims: Sequence[Aim] = ()
    metrics: Sequence[Metric] = ()
    data: Sequence[Mapping[str, Any]] = field(default=())
