"""Filters of lists, as conditions of a query. The caller has validated names and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from slicemgr.model import Desired, Phase
from slicemgr.service.views.slices import SETTLED, UNKNOWN, sliver_state
from slicemgr.store import tables as t

Condition = sa.ColumnElement[bool]
Wanted = Mapping[str, Any]
_Tests = Mapping[str, Callable[[Any], Condition]]


def _conditions(wanted: Wanted, tests: _Tests) -> list[Condition]:
    return [tests[name](value) for name, value in wanted.items()]


def _is(column: sa.ColumnElement[Any]) -> Callable[[Any], Condition]:
    return lambda value: column == value


def _each(*columns: sa.Column[Any]) -> _Tests:
    """Tests for the value of columns, by their names."""
    return {column.name: _is(column) for column in columns}


def _begins(column: sa.ColumnElement[str], text: str) -> Condition:
    """Not LIKE, which gives some characters a special meaning, and ignores case in SQLite."""
    return sa.func.substr(column, 1, len(text)) == text


def _within(column: sa.ColumnElement[Any]) -> _Tests:
    return {"since": lambda value: column >= value, "until": lambda value: column < value}


def slices(wanted: Wanted) -> list[Condition]:
    """state, type, image (name or sha256), project, owner, prefix (of the name)."""
    l, i = t.slices.c, t.images.c
    tests: _Tests = {
        "state": lambda value: l.id.in_(_in_state(value)),
        "type": _is(l.type),
        "image": lambda value: sa.or_(i.name == value, i.sha256 == value),
        **_each(l.project, l.owner),
        "prefix": lambda value: _begins(l.name, value),
    }
    return _conditions(wanted, tests)


def _in_state(state: str) -> sa.Select[tuple[str]]:
    """The ids of slices in a state: `slice_state` of the views, as a query."""
    s, n = t.slivers.c, t.nodes.c
    lost = s.node.in_(sa.select(n.name).where(n.lost))
    pairs = [(sa.and_(s.desired != Desired.ABSENT, lost), UNKNOWN)]
    pairs += [(sa.and_(s.desired == d, s.phase == p), sliver_state(d, p)) for d in Desired for p in Phase]
    each = sa.case(*pairs, else_="failed")
    moving = sa.case((each.not_in(SETTLED), each))
    lowest = sa.func.min(each)
    whole = sa.case((lowest == sa.func.max(each), lowest), else_=sa.func.coalesce(sa.func.min(moving), "partial"))
    found = sa.select(s.slice).group_by(s.slice).having(whole == state)
    if state != "deleting":
        return found
    bare = sa.select(t.slices.c.id).where(t.slices.c.id.not_in(sa.select(s.slice)))
    return sa.select(sa.union_all(found, bare).subquery().c[0])


def images(wanted: Wanted) -> list[Condition]:
    """state, project, prefix (of the name)."""
    i = t.images.c
    return _conditions(wanted, {**_each(i.state, i.project), "prefix": lambda value: _begins(i.name, value)})


def operations(wanted: Wanted) -> list[Condition]:
    """state, kind, slice, project, user, since and until (of creation)."""
    o = t.operations.c
    tests = {**_each(o.state, o.kind, o.project, o.user), "slice": _is(o.slice_name), **_within(o.created_at)}
    return _conditions(wanted, tests)


def events(wanted: Wanted) -> list[Condition]:
    """slice, project, user, action, since, until."""
    e = t.events.c
    return _conditions(wanted, {**_each(e.slice, e.project, e.user, e.action), **_within(e.at)})


def requests(wanted: Wanted) -> list[Condition]:
    """state, project, user, since, until."""
    q = t.requests.c
    return _conditions(wanted, {**_each(q.state, q.project, q.user), **_within(q.created_at)})


def experiments(wanted: Wanted) -> list[Condition]:
    """kind, node, since and until (of publication)."""
    x = t.experiments.c
    return _conditions(wanted, {**_each(x.kind, x.node), **_within(x.published_at)})
