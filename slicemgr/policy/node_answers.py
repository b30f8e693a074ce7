"""Answers of nodes to questions of the service, as rows of samples. Pure.

A node may be hostile: it answers for the slivers and the time that it was asked for, with numbers of possible size.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

LARGEST = 8 << 20  # bytes of an answer
MOST_ROWS = 50_000
_LARGEST_NUMBER = 1 << 53  # beyond it, JSON readers differ


class BadAnswer(ValueError):
    """An answer that no node of this or an earlier version gives."""


@dataclass(frozen=True, slots=True)
class Form:
    """What rows may have. optional: columns whose value may be unknown; numbers: those with 0 if it is missing."""

    optional: Collection[str]
    numbers: Collection[str]
    whole: Collection[str]  # of `numbers`, those without fractions


Rows = Sequence[Any]


def tables(body: bytes) -> Mapping[str, Any]:
    """The tables in an answer by name, whose rows are not checked yet. BadAnswer."""
    if len(body) > LARGEST:
        raise BadAnswer(f"{len(body)} bytes are too many")
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadAnswer("no JSON") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("tables"), dict):
        raise BadAnswer("no tables")
    return dict(raw["tables"])


def rows(table: object, form: Form, since: int, until: int, slivers: Collection[int] | None = None) -> Rows:
    """The rows of a table with since < at <= until, by time. slivers: their serials; None: rows are of no sliver.

    Columns that this version does not know are ignored. BadAnswer.
    """
    match table:
        case {"columns": [*columns], "rows": [*lines]} if len(lines) <= MOST_ROWS and len(columns) <= 100:
            found = [_row(columns, line, form) for line in lines]
        case _:
            raise BadAnswer("a table is not valid")
    for one in found:
        if type(one.at) is not int or not since < one.at <= until:
            raise BadAnswer("a row is of another time")
        if slivers is not None and (type(one.sliver) is not int or one.sliver not in slivers):
            raise BadAnswer("a row is of another sliver")
    return sorted(found, key=lambda one: one.at)


def _row(columns: Sequence[object], line: object, form: Form) -> SimpleNamespace:
    if not isinstance(line, list) or len(line) != len(columns):
        raise BadAnswer("a row is not valid")
    given = dict(zip((str(one) for one in columns), line, strict=True))
    row = SimpleNamespace(at=given.get("at"), sliver=given.get("sliver"))
    for name in form.optional:
        setattr(row, name, None if given.get(name) is None else _number(given[name], whole=True))
    for name in form.numbers:
        setattr(row, name, _number(given.get(name, 0), whole=name in form.whole))
    return row


def _number(value: object, *, whole: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise BadAnswer("a number is not valid")
    if not 0 <= value <= _LARGEST_NUMBER:
        raise BadAnswer("a number is not valid")
    return value


def aligned(found: Rows, interval: int) -> Rows:
    """The rows with times that are multiples of the interval, so that rows of several nodes have the same ones.

    Each time of a node becomes another one. interval: seconds between two samples.
    """
    times: dict[int, int] = {}
    last = -interval
    for at in sorted({one.at for one in found}):
        last = times[at] = max(-(-at // interval) * interval, last + interval)
    return [SimpleNamespace(**{**vars(one), "at": times[one.at]}) for one in found]


def summed(parts: Sequence[Any], form: Form) -> Any:
    """One row instead of several of the same time: sums; of durations the longest."""
    first = parts[0]
    row = SimpleNamespace(at=first.at, sliver=None)
    for name in (*form.optional, *form.numbers):
        known = [getattr(one, name) for one in parts if getattr(one, name) is not None]
        if name in ("seconds", "running"):
            setattr(row, name, max(known))
        else:
            setattr(row, name, sum(known) if known else None)
    return row
