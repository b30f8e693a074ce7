"""The database of this node: the rows that the centre sent, on which the agent works.

The columns that the node writes are never overwritten; a row that is new to the node begins with what the centre knew.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.policy import mirror
from slicemgr.policy.messages import Rows
from slicemgr.policy.mirror import Change, Key, Mirrored, Row
from slicemgr.store import Store, allocations, outbox, rows
from slicemgr.store import tables as t
from slicemgr.store.outbox import State

log = logging.getLogger(__name__)

_NODE = sa.select(t.nodes.c.name).where(t.nodes.c.name == sa.bindparam("node"))
_FORM = hashlib.sha256(repr(mirror.TABLES).encode()).hexdigest()[:16]  # of the rows that this version has


def state(store: Store) -> State:
    """The revision is "" if another version of the program received the rows: it has other columns."""
    with store.write() as c:
        return _state(c)


def _state(c: Connection) -> State:
    found = outbox.state(c)
    form, _, revision = found.revision.rpartition(":")
    return replace(found, revision=revision if form == _FORM else "")


def receive(store: Store, node: str, message: Rows) -> bool:
    """Apply a message about the rows; whether it changed them. One that does not follow the present state is dropped.

    A change that does not fit the rows makes their revision unknown, so that the centre sends all rows.
    """
    try:
        with store.write() as c:
            now = _state(c)
            follows = message.before == now.revision
            if follows:
                apply(c, node, message.change)
            _note(c, message.after if follows else now.revision, message.number)
    except (exc.IntegrityError, exc.StatementError, KeyError, TypeError, ValueError) as error:
        log.error("the rows of the centre do not fit those of this node: %s", type(error).__name__)
        with store.write() as c:
            _state(c)  # of a new mirror, too
            _note(c, "", message.number)
        return False
    return follows


def _note(c: Connection, revision: str, number: int) -> None:
    c.execute(t.mirror.update(), {"revision": f"{_FORM}:{revision}" if revision else "", "received": number})


def apply(c: Connection, node: str, change: Change) -> None:
    """Make the rows as the change says, in a transaction of `store.write()`. node: the name that this node has here.

    Raises an error of SQLAlchemy, KeyError, TypeError or ValueError if it does not fit.
    """
    if c.scalar(_NODE, {"node": node}) is None:
        c.execute(t.nodes.insert().values(name=node, address="", facts={}))
    for one in reversed(mirror.TABLES):
        gone = change.delete.get(one.table, ())
        if change.whole:
            gone = sorted(_keys(c, one) - {one.key_of(row) for row in change.upsert.get(one.table, ())}, key=repr)
        _delete(c, one, gone)
    for one in mirror.TABLES:
        if rows_ := change.upsert.get(one.table, ()):  # known now: a delete has deleted what belongs to the row
            _upsert(c, one, node, rows_, _keys(c, one))
    allocations.recount(c)


def _keys(c: Connection, one: Mirrored) -> set[Key]:
    return {tuple(row) for row in c.execute(_all_keys(one.table))}


@cache
def _all_keys(table: str) -> sa.Select[Any]:
    """Kept like all statements here: to make one takes longer than to execute it."""
    return sa.select(*(t.metadata.tables[table].c[name] for name in mirror.BY_NAME[table].key))


def _delete(c: Connection, one: Mirrored, keys: Iterable[Key]) -> None:
    gone = [dict(zip((f"b_{name}" for name in one.key), key, strict=True)) for key in keys]
    if gone:
        c.execute(_delete_row(one.table), gone)


@cache
def _delete_row(table: str) -> sa.Delete:
    return t.metadata.tables[table].delete().where(*_named(table))


@cache
def _update_row(table: str, columns: tuple[str, ...]) -> sa.Update:
    own = t.metadata.tables[table]
    values = {name: sa.bindparam(f"v_{name}", type_=own.c[name].type) for name in columns}
    return own.update().where(*_named(table)).values(values)


def _named(table: str) -> list[sa.ColumnElement[bool]]:
    columns = t.metadata.tables[table].c
    return [columns[name] == sa.bindparam(f"b_{name}") for name in mirror.BY_NAME[table].key]


def _upsert(c: Connection, one: Mirrored, node: str, found: Sequence[Row], known: set[Key]) -> None:
    table = t.metadata.tables[one.table]
    here = {"node": node} if one.node else {}
    changed, new = [], []
    for row in found:
        key = one.key_of(row)
        values = _values(table, one.centre, row) | here
        if key in known:
            names = (f"b_{name}" for name in one.key)
            changed.append(dict(zip(names, key, strict=True)) | {f"v_{name}": value for name, value in values.items()})
        else:
            new.append({**one.fixed, **values, **_values(table, (*one.key, *one.own), row)})
    if changed and (one.centre or here):
        c.execute(_update_row(one.table, (*one.centre, *here)), changed)
    if new:
        fixed = _values(table, tuple(one.fixed), one.fixed)
        c.execute(table.insert(), [{**row, **fixed} for row in new])


def _values(table: sa.Table, names: Iterable[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of columns of a row in JSON. Raises KeyError, TypeError or ValueError."""
    return {name: None if row[name] is None else rows.reader(table.c[name])(row[name]) for name in names}
