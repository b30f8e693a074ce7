"""What every experiment gives the report: tables, plots, aims, sentences, samples to compare. Descriptions, no drawing.

An experiment's module has `content(run) -> Content`; `pages.py` knows where each one is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = str | float | int | None


@dataclass(frozen=True, slots=True)
class Column:
    """unit: as it stands beside the name, "" for words and counts. digits: after the point, None: as it comes."""

    name: str
    unit: str = ""
    digits: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """rows: as long as `columns`; None is shown as a dash. note: what a reader must know about it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """least, most: where it begins and ends, None: as the values want. log: on a logarithmic scale."""

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
    """One curve. low, high: a band around it, such as a confidence interval. right: it belongs to the axis there.

    y may have None where nothing was measured. errors are drawn as a band of a line and as whiskers of bars.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    right: bool = False
    points: bool = False  # marks without a line


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the plot at an x, or with `y` at a value of the left axis: a number of the paper, a limit."""

    at: float
    label: str
    y: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """name: of its file. groups: words below groups of bars, one bar of each series in each; then x is left out."""

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
    """What was to be reached. reached: None where this run cannot tell. measured: what it came to, or why not."""

    text: str
    reached: bool | None
    measured: str


@dataclass(frozen=True, slots=True)
class Metric:
    """Values that an earlier run of the same experiment has, too. better: less, more, or "" if neither is."""

    name: str
    unit: str
    values: Sequence[float]
    better: str = "less"


@dataclass(frozen=True, slots=True)
class Content:
    """outcome: sentences that state what came out. data: flat rows for data.csv and data.json."""

    title: str
    outcome: Sequence[str]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    aims: Sequence[Aim] = ()
    metrics: Sequence[Metric] = ()
    data: Sequence[Mapping[str, Any]] = field(default=())
