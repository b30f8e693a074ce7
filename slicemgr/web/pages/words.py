"""Jinja filters: times, sizes and counts as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from flask import Flask
from markupsafe import Markup

from slicemgr import human

_TONES = {
    "running": "good",
    "done": "good",
    "ready": "good",
    "granted": "good",
    "stopped": "still",
    "withdrawn": "still",
    "paused": "held",
    "partial": "held",
    "waiting": "held",
    "failed": "bad",
    "declined": "bad",
}


def install(app: Flask) -> None:
    filters = {
        "size": human.size,
        "rate": human.rate,
        "span": human.span,
        "number": human.number,
        "printable": human.printable,
        "ago": ago,
        "day": day,
        "counted": counted,
        "tone": tone,
        "percent": percent,
        "amount": amount,
    }
    app.jinja_env.filters.update(filters)


def ago(value: str | None) -> Markup:
    """`in 6 days`, with the RFC 3339 time to point at."""
    if not value:
        return Markup("–")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(value, human.when(value))


def day(value: str | None) -> Markup:
    """`Sat 28 Nov 2026, 11:54 UTC`, with the RFC 3339 time to point at."""
    if not value:
        return Markup("–")
    moment = datetime.fromisoformat(value).astimezone(UTC)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(value, f"{moment:%a %-d %b %Y, %H:%M} UTC")


def counted(count: int, word: str, several: str = "") -> str:
    """`1 slice`, `3 slices`."""
    return f"{count} {word if count == 1 else several or word + 's'}"


def tone(state: str) -> str:
    """How a state looks: good, still, held, bad, or moving for what is on its way."""
    return _TONES.get(state, "moving")


def percent(part: float | None, whole: float | None) -> int:
    """0 to 100; 0 of nothing."""
    if not part or not whole:
        return 0
    return max(0, min(100, round(100 * part / whole)))


def amount(value: Any, resource: str) -> str:
    """What a quota counts, in its unit."""
    if value is None:
        return "no limit"
    if resource in ("memory", "disk"):
        return human.size(value)
    if resource == "lease":
        return human.span(value)
    return f"{value:g}"
