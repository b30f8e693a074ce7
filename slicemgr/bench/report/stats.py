"""Statistics of samples. Pure; computed by scipy, which the optional group `bench` installs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from slicemgr.errors import Code, Refused

CONFIDENCE = 0.95
_RANKS = 20  # values on each side from which ranks are compared: times are skewed, which few values do not show
_ROUNDING = 1e-12
_RESAMPLES = 2000

Drawn = TypeVar("Drawn")


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a sample. low, high: Student's confidence interval of the mean. None: undefined for one value."""

    count: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two means. change: relative to the old mean. p: None if unknown. test: name of the test."""

    old: float
    new: float
    change: float | None
    p: float | None
    test: str


@dataclass(frozen=True, slots=True)
class Slope:
    """A line fitted by least squares. start: its value at 0. low, high: confidence interval of the slope. fit: r²."""

    value: float
    start: float
    low: float
    high: float
    fit: float


def scipy_stats() -> Any:
    """The module scipy.stats. Raises Refused, with a hint how to install it, if it is missing."""
    try:
        import scipy.stats
    except ImportError:
        raise missing("scipy") from None
    return scipy.stats


def missing(package: str) -> Refused:
    """The error for an optional package that is not installed."""
    hint = "install the optional group: pip install 'slicemgr[bench]'"
    return Refused(Code.UNAVAILABLE, f"reports need {package}, which is not installed", hint=hint)


def summary(values: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """The summary of a sample. Raises ValueError if it is empty."""
    if not values:
        raise ValueError("no values")
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Summary(count, mean, None, None, None, mean, mean)
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (count - 1))
    half = float(scipy_stats().t.ppf((1 + confidence) / 2, count - 1)) * deviation / math.sqrt(count)
    return Summary(count, mean, deviation, mean - half, mean + half, min(values), max(values))


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None if there are none."""
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


def percentile(values: Sequence[float], share: float) -> float:
    """The quantile `share` (0 to 1) of the values, interpolated linearly. Raises ValueError if there are none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def bootstrap(
    rows: Sequence[Drawn], statistic: Callable[[Sequence[Drawn]], float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval of a statistic of the rows, by resampling them; None for one row. The same for the same rows."""
    if len(rows) < 2:
        return None
    chosen = random.Random(1)
    found = [statistic(chosen.choices(rows, k=len(rows))) for _ in range(_RESAMPLES)]
    return percentile(found, (1 - confidence) / 2), percentile(found, (1 + confidence) / 2)


def fairness(values: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 if all values are equal, 1/n if all but one are 0; None if all are 0."""
    squares = math.fsum(one * one for one in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else None


def difference(old: Sequence[float], new: Sequence[float]) -> Difference:
    """Compares two samples by Welch's t, or by Mann-Whitney's U if both are large. ValueError if one is empty."""
    before, after = summary(old), summary(new)
    change = (after.mean - before.mean) / before.mean if before.mean else None
    if min(before.count, after.count) < 2:
        return Difference(before.mean, after.mean, change, None, "one value only")
    if not (_spreads(before) or _spreads(after)):
        same = math.isclose(before.mean, after.mean, rel_tol=_ROUNDING)
        return Difference(before.mean, after.mean, change, 1.0 if same else None, "no spread")
    if min(before.count, after.count) >= _RANKS:
        found, test = scipy_stats().mannwhitneyu(new, old, alternative="two-sided"), "Mann-Whitney"
    else:
        of_both = (one for side in (after, before) for one in (side.mean, side.deviation, side.count))
        found, test = scipy_stats().ttest_ind_from_stats(*of_both, equal_var=False), "Welch"
    return Difference(before.mean, after.mean, change, float(found.pvalue), test)


def _spreads(one: Summary) -> bool:
    """Whether the values differ by more than the rounding error of their sum."""
    return one.deviation is not None and one.deviation > _ROUNDING * abs(one.mean)


def adjusted(values: Sequence[float | None]) -> list[float | None]:
    """p values of several comparisons, corrected by Benjamini and Hochberg; None stays None."""
    known = [one for one in values if one is not None]
    if not known:
        return list(values)
    found = iter(scipy_stats().false_discovery_control(known))
    return [None if one is None else float(next(found)) for one in values]


def slope(x: Sequence[float], y: Sequence[float], confidence: float = CONFIDENCE) -> Slope | None:
    """The line through points; None if there are fewer than three different x."""
    if len(set(x)) < 3:
        return None
    found = scipy_stats().linregress(x, y)
    half = float(scipy_stats().t.ppf((1 + confidence) / 2, len(x) - 2)) * float(found.stderr)
    value = float(found.slope)
    return Slope(value, float(found.intercept), value - half, value + half, float(found.rvalue) ** 2)
