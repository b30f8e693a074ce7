"""Compares a run with an earlier one of the same experiment: each difference and its significance. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slicemgr.bench.report import stats
from slicemgr.bench.report.content import Column, Content, Metric, Table, Value

LEVEL = 0.05
_SAME = ("cpu_model", "cpus", "memory", "kernel")


def table(new: Content, old: Content) -> Table:
    """The table of the comparison, with a row for each metric that both runs have."""
    before = {one.name: one for one in old.metrics}
    both = [(before[one.name], one) for one in new.metrics if one.name in before]
    found = [stats.difference(old_one.values, new_one.values) for old_one, new_one in both]
    chances = stats.adjusted([one.p for one in found])
    rows: list[Sequence[Value]] = []
    for (_, metric), one, p in zip(both, found, chances, strict=True):
        name = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
        change = "-" if one.change is None else f"{one.change:+.1%}"
        chance = "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
        verdict = _verdict(metric, one, p)
        rows.append([name, f"{one.old:.4g}", f"{one.new:.4g}", change, chance, one.test, verdict])
    names = ("what", "earlier", "this run", "change", "p", "test", "verdict")
    note = (
        f"Means. Significant: p below {LEVEL}, after the correction of Benjamini and Hochberg for {len(rows)} "
        "comparisons. Mann-Whitney's U where both runs have 20 values or more, else Welch's t; a single value on "
        "either side allows no test. Values of one run share its node and hour: a small p does not mean that another "
        "day would not differ as much."
    )
    return Table("Compared with the earlier run", [Column(one) for one in names], rows, note)


def _verdict(metric: Metric, one: stats.Difference, p: float | None) -> str:
    if p is None:
        return "undetermined"
    if p >= LEVEL or one.new == one.old:
        return "no significant difference"
    if not metric.better:
        return "differs"
    return "better" if (one.new < one.old) == (metric.better == "less") else "worse"


def sentence(table: Table) -> str:
    """The summary of the comparison table."""
    verdicts = [str(row[-1]) for row in table.rows]
    named = {
        word: [
            str(row[0]).partition(" (")[0] for row, verdict in zip(table.rows, verdicts, strict=True) if verdict == word
        ]
        for word in ("better", "worse")
    }
    parts = [f"significantly {word}: {', '.join(names)}" for word, names in named.items() if names]
    return f"Compared with the earlier run: {'; '.join(parts) if parts else 'no significant difference'}."


def caveats(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """Other differences between the two runs: parameters, and properties of the node."""
    said = []
    for what, key, only in (("parameter", "parameters", ()), ("node", "node", _SAME)):
        now, then = new.get(key) or {}, old.get(key) or {}
        for name in only or dict.fromkeys([*now, *then]):
            if now.get(name) != then.get(name):
                said.append(f"{what} {name}: {then.get(name)} then, {now.get(name)} now")
    return said
