"""Jinja filters: times, sizes and counts as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flask import Flask
from markupsafe import Markup

from slicemgr import human
from slicemgr.policy.quota import NOUNS, RESOURCES, SIZES

LABELS = {  # of resources
    "slices": "Slices",
    "slivers": "Slivers",
    "vcpus": "CPU cores",
    "memory": "Memory",
    "memory_guarantee": "Memory guarantees",
    "disk": "Disk",
    "ports": "Ports",
    "lease": "Longest lease",
}
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
    "hidden": "held",
    "silent": "held",
    "unknown": "held",
    "failed": "bad",
    "lost": "bad",
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
        "counted": human.counted,
        "tone": tone,
        "percent": percent,
        "amount": amount,
        "resource": LABELS.__getitem__,
        "noun": lambda name: NOUNS.get(name, name),
        "browser": browser,
        "took": took,
        "seconds": seconds,
        "headed": headed,
        "notice_text": notice_text,
    }
    app.jinja_env.filters.update(filters)
    app.jinja_env.globals["RESOURCES"] = RESOURCES


def ago(value: str | None) -> Markup:
    """`in 6 days`, with the RFC 3339 time as a tooltip. Without seconds, so that parts of pages rarely change."""
    if not value:
        return Markup("–")
    seconds = (datetime.fromisoformat(value) - datetime.now(UTC)).total_seconds()
    words = human.when(value) if abs(seconds) >= 60 else "in a moment" if seconds > 0 else "just now"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(value, words)


def day(value: str | None) -> Markup:
    """`Sat 28 Nov 2026, 11:54 UTC`, with the RFC 3339 time as a tooltip."""
    if not value:
        return Markup("–")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(value, date(value))


def date(value: str) -> str:
    """An RFC 3339 time as `Sat 28 Nov 2026, 11:54 UTC`."""
    return f"{datetime.fromisoformat(value).astimezone(UTC):%a %-d %b %Y, %H:%M} UTC"


def notice_text(text: str) -> str:
    """A notice as a sentence for a page: with readable times, and without shell commands."""
    text = _MOMENT.sub(lambda found: date(found[0]), _TYPED.sub("", text))
    return f"{text[:1].upper()}{text[1:]}."


def tone(state: str) -> str:
    """The style of a state: good, still, held, bad, or moving while it changes."""
    return _TONES.get(state, "moving")


def percent(part: float | None, whole: float | None) -> int:
    """0 to 100; 0 if the whole is 0."""
    if not part or not whole:
        return 0
    return max(0, min(100, round(100 * part / whole)))


def amount(value: Any, resource: str) -> str:
    """A limit in the unit of its resource."""
    if value is None:
        return "no limit"
    if resource in SIZES:
        return human.size(value)
    if resource == "lease":
        return human.span(value)
    return f"{value:g}"


_MOMENT = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_TYPED = re.compile(r":? `slicectl [^`]*`")
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox", "Firefox"), ("Chrome", "Chrome"), ("Safari", "Safari"))
_SYSTEMS = ("Android", "iPhone", "iPad", "Windows", "Mac OS X", "Linux")


def browser(agent: str) -> str:
    """A User-Agent in two words: `Firefox on Linux`; unknown ones unchanged."""
    name = next((name for word, name in _BROWSERS if word in agent), "")
    system = next((one for one in _SYSTEMS if one in agent), "")
    if not name:
        return agent[:60]
    return f"{name} on {system.replace('Mac OS X', 'macOS')}" if system else name


def took(operation: Mapping[str, Any]) -> str:
    """How long an operation took; `–` while it has not ended."""
    seconds = seconds_taken(operation)
    if seconds is None:
        return "–"
    return human.span(seconds) if seconds >= 1 else "under a second"


def seconds_taken(operation: Mapping[str, Any]) -> float | None:
    """None: it has not ended."""
    if not operation["finished_at"]:
        return None
    begun, ended = (datetime.fromisoformat(operation[name] or operation["created_at"]) for name in _SPAN)
    return (ended - begun).total_seconds()


_SPAN = ("started_at", "finished_at")


def seconds(value: float | None) -> str:
    """A short time of a step, in seconds with one or two digits."""
    if value is None:
        return "–"
    return human.span(value) if value >= 120 else f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def headed(operation: Mapping[str, Any]) -> str:
    """The name of an operation, without its subject: `Import image`, `Create`."""
    kind = str(operation["kind"])
    return _HEADED.get(kind, kind.replace("-", " ").capitalize())


_HEADED = {
    "image-import": "Import image",
    "image-delete": "Delete image",
    "image-push": "Send image to a node",
    "image-drop": "Delete image from a node",
    "snapshot": "Create snapshot",
    "snapshot-delete": "Delete snapshot",
    "doctor": "Check the node",
    "gc": "Find leftovers",
    "keys": "Install SSH keys",
}


def typed_size(size: int) -> str:
    """Bytes as exact text for a form: `512M`, `4G`."""
    for unit, letter in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M")):
        if size and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)
