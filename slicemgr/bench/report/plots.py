"""Draws plots with matplotlib (group `bench`): as SVG with the colours of the page, light or dark, and as PNG."""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicemgr.bench.report import stats
from slicemgr.bench.report.content import Mark, Plot, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as Scale
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Colours:
    ink: str
    rule: str
    curves: tuple[str, ...]
    back: str


# Placeholders in an SVG for the colours of the page. Curves beyond the last colour reuse the first with another dash,
# bars with stripes.
_PAGE = Colours("#010101", "#020202", ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306"), "none")
_VARIABLES = {
    _PAGE.ink: "var(--ink)",
    _PAGE.rule: "var(--rule)",
    **{one: f"var(--curve-{place})" for place, one in enumerate(_PAGE.curves, 1)},
}
_PAPER = Colours("#1b1f24", "#d5d9de", ("#0b5cad", "#b3420a", "#0f7257", "#7b3fa3", "#8a6a00", "#5b6470"), "white")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_SIZE = (7.2, 4.2)  # inches
_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
_FEW = 12  # up to this number of counts, a logarithmic axis has a label at each
_LINES, _LINE = 4, 0.07  # lines of labels of marks, and the height of each as a part of the plot
_ROW = 72  # characters of labels side by side
_MARKED = 45  # up to this number of points, each one is marked
_SETTINGS = {
    "svg.fonttype": "none",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "legend.fontsize": 9.0,
    "axes.spines.top": False,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
}


def svg(plot: Plot) -> str:
    """An <svg> element for a page that defines --ink, --rule and --curve-1 to -6. Raises Refused without matplotlib."""
    target = io.StringIO()
    with _settings(plot.name):
        draw(plot, _PAGE).savefig(target, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for stands, variable in _VARIABLES.items():
        text = text.replace(stands, variable)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="', f' id="{plot.name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{plot.name}-", text)
    text = re.sub(r'font-family: [^;"]*', "font-family: sans-serif", text)
    opening = f'<svg {_NAMESPACES} role="img" aria-label="{html.escape(plot.title)}"'
    return re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf"{opening} \1>", text, count=1)


def png(plot: Plot) -> bytes:
    """A PNG image on white, for use outside a page. Raises Refused without matplotlib."""
    target = io.BytesIO()
    figure = draw(plot, _PAPER)
    figure.savefig(target, format="png", dpi=144, facecolor=_PAPER.back, metadata={"Software": None})
    return target.getvalue()


def _settings(salt: str) -> Any:
    """The context that makes figures reproducible, in the style of slicemgr. Raises Refused without matplotlib."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise stats.missing("matplotlib") from None
    settings: dict[Any, Any] = {**_SETTINGS, "svg.hashsalt": salt}
    return rc_context(settings)


def draw(plot: Plot, colours: Colours) -> Figure:
    """The figure of a plot. Raises Refused without matplotlib."""
    with _settings(plot.name):
        from matplotlib.figure import Figure

        figure = Figure(figsize=_SIZE, layout="constrained")
        left = figure.add_subplot()
        right = left.twinx() if plot.right is not None else None
        handles = []
        for place, series in enumerate(plot.series):
            axes = right if series.right and right is not None else left
            paint = colours.curves[place % len(colours.curves)]
            if plot.groups:
                stripes = "////" if place >= len(colours.curves) else ""
                handles.append(_bars(axes, series, place, len(plot.series), (paint, colours.ink, stripes)))
            else:
                handles.append(_curve(axes, series, place, paint))
        _axes(plot, left, right, colours)
        _make_room(plot, left)
        for place, mark in enumerate(plot.marks):
            _mark(left, mark, place, colours)
        if len(plot.series) > 1 or plot.series[0].label:
            _legend(figure, handles, [_label(one) for one in plot.series], colours.ink)
        return figure


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], ink: str) -> None:
    """A legend below the plot, with as many columns as fit."""
    for columns in range(min(4, len(labels)), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    for text in legend.get_texts():
        text.set_color(ink)


def _label(series: Series) -> str:
    return f"{series.label} (right)" if series.right else series.label


def _known(series: Series) -> list[int]:
    return [place for place, value in enumerate(series.y) if value is not None]


def _curve(axes: Axes, series: Series, place: int, paint: str) -> Any:
    known = _known(series)
    x = [series.x[one] for one in known]
    marker = _MARKERS[place % len(_MARKERS)] if series.points or len(x) <= _MARKED else ""
    line = "none" if series.points else _DASHES[place % len(_DASHES)]
    (drawn,) = axes.plot(
        x, [_number(series.y[one]) for one in known], color=paint, linestyle=line, marker=marker, ms=3.5, lw=1.6
    )
    if series.low and series.high:
        banded = [one for one in known if series.low[one] is not None and series.high[one] is not None]
        low, high = ([_number(side[one]) for one in banded] for side in (series.low, series.high))
        axes.fill_between([series.x[one] for one in banded], low, high, color=paint, alpha=0.18, lw=0)
    return drawn


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _bars(axes: Axes, series: Series, place: int, count: int, look: tuple[str, str, str]) -> Any:
    """look: the colours of bars and whiskers, and the pattern of matplotlib for stripes."""
    paint, ink, stripes = look
    width = 0.8 / count
    at = [group - 0.4 + (place + 0.5) * width for group in range(len(series.y))]
    heights = [_number(one) for one in series.y]
    drawn = axes.bar(at, heights, width * 0.92, color=paint, hatch=stripes, edgecolor=ink, lw=0)
    if series.low and series.high:
        below = [value - _number(low) for value, low in zip(heights, series.low, strict=True)]
        above = [_number(high) - value for value, high in zip(heights, series.high, strict=True)]
        axes.errorbar(at, heights, [below, above], fmt="none", color=paint, ecolor=ink, capsize=3, lw=1)
    return drawn


def _axes(plot: Plot, left: Axes, right: Axes | None, colours: Colours) -> None:
    left.set_title(plot.title, color=colours.ink, loc="left")
    left.set_xlabel(plot.x.text, color=colours.ink)
    sides = [(left, plot.left), *([(right, plot.right)] if right is not None and plot.right is not None else [])]
    for axes, side in sides:
        axes.set_ylabel(side.text, color=colours.ink)
        if side.log:
            axes.set_yscale("log")
            _plain_numbers(axes.yaxis)
        axes.set_ylim(bottom=side.least, top=side.most)
        axes.tick_params(which="both", colors=colours.ink)
        for spine in axes.spines.values():
            spine.set_color(colours.rule)
    left.spines["right"].set_visible(right is not None)
    left.grid(axis="y", color=colours.rule, lw=0.6)
    left.set_axisbelow(True)
    if plot.groups:
        crowded = len(plot.groups) * max(map(len, plot.groups)) > _ROW
        each = max(8, _ROW // len(plot.groups))  # characters of a line
        labels = [textwrap.fill(one, each) if crowded else one for one in plot.groups]
        left.set_xticks(range(len(plot.groups)), labels)
        left.set_xlim(-0.6, len(plot.groups) - 0.4)
        return
    if plot.x.log:
        left.set_xscale("log")
        _plain_numbers(left.xaxis)
    _count_ticks(plot, left)
    left.set_xlim(left=plot.x.least, right=plot.x.most)


def _count_ticks(plot: Plot, axes: Axes) -> None:
    """Label an axis of counts with whole numbers; a logarithmic one with the counts themselves, if they are few."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    counts = sorted({value for series in plot.series for value in series.x})
    if any(value != int(value) for value in counts):
        return
    if not plot.x.log:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif 1 < len(counts) <= _FEW:
        axes.set_xticks(counts)
        axes.xaxis.set_minor_locator(NullLocator())


def _plain_numbers(axis: Scale) -> None:
    """Label a logarithmic axis with plain numbers, also with 2 and 5 times each if it spans less than three decades."""
    from matplotlib.ticker import FuncFormatter

    def between(value: float, _place: int | None) -> str:
        low, high = axis.get_view_interval()
        return f"{value:g}" if high < 1000 * low and f"{value:.0e}"[0] in "25" else ""

    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(between))


def _make_room(plot: Plot, axes: Axes) -> None:
    """Make room above the curves for the labels of marks."""
    lines = min(_LINES, sum(not mark.y for mark in plot.marks))
    if lines and plot.left.most is None and not plot.left.log:
        bottom, top = axes.get_ylim()
        axes.set_ylim(top=top + _LINE * lines * (top - bottom))


def _mark(axes: Axes, mark: Mark, place: int, colours: Colours) -> None:
    """Draw a mark. place: its index among the marks, by which the labels of neighbours are set below each other."""
    style: dict[str, Any] = {"color": colours.ink, "lw": 0.9, "ls": (0, (4, 3))}
    words: dict[str, Any] = {"textcoords": "offset points", "color": colours.ink, "fontsize": 9}
    if mark.y:
        axes.axhline(mark.at, **style)
        axes.annotate(mark.label, (1, mark.at), (-4, 3), xycoords=("axes fraction", "data"), ha="right", **words)
        return
    axes.axvline(mark.at, **style)
    below = 0.98 - _LINE * (place % _LINES)
    axes.annotate(mark.label, (mark.at, below), (4, 0), xycoords=("data", "axes fraction"), va="top", **words)


def check(plots: Sequence[Plot]) -> None:
    """Raises ValueError if the values of a plot's curves do not match in number, or an axis is missing."""
    for plot in plots:
        for one in plot.series:
            wide = len(plot.groups) if plot.groups else len(one.x)
            if len(one.y) != wide or any(side and len(side) != wide for side in (one.low, one.high)):
                raise ValueError(f"plot {plot.name}: {one.label} has {len(one.y)} values for {wide} places")
            if one.right and plot.right is None:
                raise ValueError(f"plot {plot.name}: {one.label} needs an axis on the right")
