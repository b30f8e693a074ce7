"""Statistics of samples. Pure; scipy does them, it comes with the optional group `bench`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slicemgr.errors import Code, Refused

CONFIDENCE = 0.95
_RANKS = 20  # values on each side from which ranks are compared: times are skewed, and few values have no tail to tell
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Summary:
    """low, high: the confidence interval of the mean by Student's t; None of one value. deviation: of the sample."""

    count: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Of `new` to `old`. change: as a share of the old mean. p: None where it cannot be told. test: by its name."""

    old: float
    new: float
    change: float | None
    p: float | None
    test: str


@dataclass(frozen=True, slots=True)
class Slope:
    """A line through points by least squares; low, high: the slope's confidence interval. fit: r squared."""

    value: float
    start: float
    low: float
    high: float
    fit: float


def scipy_stats() -> Any:
    """scipy.stats. Refused with how to install it if it is missing."""
    try:
        import scipy.stats
    except ImportError:
        raise missing("scipy") from None
    return scipy.stats


def missing(package: str) -> Refused:
    """The error of an optional package that is not there."""
    hint = "install the optional group: pip install 'slicemgr[bench]'"
    return Refused(Code.UNAVAILABLE, f"reports need {package}, which is not installed", hint=hint)


def summary(values: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """Raises ValueError of no values."""
    if not values:
        raise ValueError("no values")
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Summary(count, mean, None, None, None, mean, mean)
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (count - 1))
    half = float(scipy_stats().t.ppf((1 + confidence) / 2, count - 1)) * deviation / math.sqrt(count)
    return Summary(count, mean, deviation, mean - half, mean + half, min(values), max(values))


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """None if nothing is known."""
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, between neighbours in proportion. ValueError of no values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def fairness(values: Sequence[float]) -> float | None:
    """Jain's index: 1 if all have the same, 1/n if one has all; None if nobody has anything."""
    squares = math.fsum(one * one for one in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else None


def difference(old: Sequence[float], new: Sequence[float]) -> Difference:
    """Welch's t, or Mann-Whitney's U where both have many values. ValueError of no values."""
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
    """Whether the values differ by more than what their sum is rounded to."""
    return one.deviation is not None and one.deviation > _ROUNDING * abs(one.mean)


def adjusted(values: Sequence[float | None]) -> list[float | None]:
    """p values of several comparisons at once, by Benjamini and Hochberg; what cannot be told stays so."""
    known = [one for one in values if one is not None]
    if not known:
        return list(values)
    found = iter(scipy_stats().false_discovery_control(known))
    return [None if one is None else float(next(found)) for one in values]


def slope(x: Sequence[float], y: Sequence[float], confidence: float = CONFIDENCE) -> Slope | None:
    """None where fewer than three different x have a value."""
    if len(set(x)) < 3:
        return None
    found = scipy_stats().linregress(x, y)
    half = float(scipy_stats().t.ppf((1 + confidence) / 2, len(x) - 2)) * float(found.stderr)
    value = float(found.slope)
    return Slope(value, float(found.intercept), value - half, value + half, float(found.rvalue) ** 2)
