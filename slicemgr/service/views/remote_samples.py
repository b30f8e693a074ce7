"""Samples of hosts that joined the testbed: what to ask each of them, and what of their answers is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.policy import node_answers
from slicemgr.policy.node_answers import Form, Rows
from slicemgr.store import tables as t

_KEYS = ("node", "resolution", "at", "sliver")


def _form(table: sa.Table) -> Form:
    columns = [one for one in table.columns if one.name not in _KEYS]
    numbers = [one for one in columns if not one.nullable]
    whole = [one.name for one in numbers if isinstance(one.type, sa.Integer)]
    return Form([one.name for one in columns if one.nullable], [one.name for one in numbers], whole)


_SLIVERS, _NODES = _form(t.samples), _form(t.node_samples)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to a node. slivers: the serials that the answer may have; None: it has none."""

    node: str
    question: Mapping[str, Any]
    slivers: frozenset[int] | None = None


@dataclass(slots=True)
class Found:
    """The checked rows of an answer."""

    node: Rows = ()
    slivers: Rows = ()


Others = Mapping[str, Found | None]  # by node; None: it has not answered


def of_slice(c: Connection, id: str, span: tuple[int, int, int], *, total: bool) -> list[Asked]:
    """For the samples of a slice. span: resolution, since, until."""
    s, n = t.slivers.c, t.nodes.c
    query = sa.select(s.node, s.serial).join(t.nodes, n.name == s.node).where(s.slice == id, n.identity.is_not(None))
    resolution, since, until = span
    question = {"kind": "slivers", "resolution": resolution, "since": since, "until": until, "together": total}
    return _by_node(c, query, question)


def of_node(c: Connection, name: str, span: tuple[int, int, int]) -> list[Asked]:
    """For the samples of a node; nothing if its agent writes them here."""
    n = t.nodes.c
    if c.scalar(sa.select(n.name).where(n.name == name, n.identity.is_not(None))) is None:
        return []
    resolution, since, until = span
    return [Asked(name, {"kind": "node", "resolution": resolution, "since": since, "until": until})]


def newest(c: Connection, projects: Collection[str] | None, since: int, until: int) -> list[Asked]:
    """For the last samples of the nodes with slivers of these projects; None: of all projects."""
    s, l, n = t.slivers.c, t.slices.c, t.nodes.c
    nodes = sa.select(s.node).join(t.slices, l.id == s.slice)
    nodes = nodes if projects is None else nodes.where(l.project.in_(projects))
    joined = sa.and_(n.identity.is_not(None), s.node.in_(nodes))
    query = sa.select(s.node, s.serial).join(t.nodes, n.name == s.node).where(joined)
    return _by_node(c, query, {"kind": "newest", "since": since, "until": until})


def _by_node(c: Connection, query: sa.Select[Any], question: Mapping[str, Any]) -> list[Asked]:
    """query: selects node and serial."""
    serials: dict[str, list[int]] = defaultdict(list)
    for node, serial in c.execute(query.order_by(t.slivers.c.node, t.slivers.c.serial)):
        serials[node].append(serial)
    return [Asked(node, {**question, "slivers": of}, frozenset(of)) for node, of in serials.items()]


def checked(tables: Mapping[str, Any], asked: Asked) -> Found:
    """The rows of an answer. BadAnswer."""
    question = asked.question
    since, until = question["since"], question["until"]
    found = Found()
    if question["kind"] != "slivers":
        found.node = node_answers.rows(tables.get("node"), _NODES, since, until)
    if question["kind"] != "node":
        serials = None if question.get("together") else asked.slivers
        found.slivers = node_answers.rows(tables.get("slivers"), _SLIVERS, since, until, serials)
    return found


def joined(local: Rows, others: Others, interval: int, *, together: bool) -> Rows:
    """The rows of slivers on all nodes, by time. Rows of several nodes get common times.

    interval: seconds between two samples. together: one row for each time, the sum.
    """
    here = [SimpleNamespace(**row._mapping) for row in local]
    parts = [part for part in (here, *(one.slivers for one in others.values() if one is not None)) if part]
    if len(parts) > 1:
        parts = [node_answers.aligned(part, interval) for part in parts]
    rows = [row for part in parts for row in part]
    if not together:
        return rows
    by_time: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        by_time[row.at].append(row)
    return [node_answers.summed(by_time[at], _SLIVERS) for at in sorted(by_time)]
