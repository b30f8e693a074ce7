"""What the life cycles of several series say, side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slicemgr.bench.lifecycle import Outcome

# What people read, ours by phase, the baseline's by name: one of the two, or both where they are the same point.
_LINES = (
    ("raw: created", None, "started"),
    ("raw: console", None, "spoke"),
    ("raw: ssh banner", None, "answered"),
    ("accepted", "accepted", None),
    ("created", "created", None),
    ("console", "console", "spoke"),
    ("operation done", "operation", None),
    ("ssh banner", "banner", "answered"),
)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rows(outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """For each phase a line of each series: seconds, and the ratio to its raw baseline where that has the same point.

    What a series has not (a container no console) is left out.
    """
    lines = []
    for name, phase, point in _LINES:
        for label, outcome in outcomes.items():
            raw = list(outcome.baseline.get(point, ())) if point else []  # type: ignore[call-overload]
            values = outcome.phases.get(phase, []) if phase else raw
            if values:
                lines.append(_line(name, label, values, raw if phase else []))
    return lines


def _line(name: str, label: str, values: Sequence[float], beside: Sequence[float]) -> dict[str, Any]:
    return {
        "phase": name,
        "type": label,
        "p50": percentile(values, 0.5),
        "p95": percentile(values, 0.95),
        "max": max(values),
        "ratio": percentile(values, 0.5) / percentile(beside, 0.5) if beside else None,
    }


def totals(outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """A line for each series: the whole run in seconds and as ratios to the baseline, bytes of each sliver."""
    return [_total(label, outcome) for label, outcome in outcomes.items()]


def _total(label: str, outcome: Outcome) -> dict[str, Any]:
    banner = outcome.phases["banner"]
    edge = max(1, min(50, len(banner) // 4))
    return {
        "type": label,
        "count": len(banner),
        "create": outcome.create,
        "create_ratio": outcome.create / outcome.baseline["create"],
        "last_to_first": percentile(banner[-edge:], 0.5) / percentile(banner[:edge], 0.5),
        "delete": outcome.delete,
        "delete_ratio": outcome.delete / outcome.baseline["delete"],
        "available_each": outcome.memory,
        "memory_each": outcome.charged,
        "disk_each": outcome.disk,
    }
