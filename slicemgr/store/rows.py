"""Rows as JSON, in the same form for both databases, so that a backup of one can be restored into the other."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.errors import Failed, Refused, invalid
from slicemgr.store.url import SQLITE

_AT_ONCE = 1000  # rows in one statement
_MOST = 1 << 63


def dump(c: Connection, table: sa.Table) -> Iterator[bytes]:
    """Each row of a table as a line of JSON, in the order of its primary key."""
    query = sa.select(table).order_by(*table.primary_key.columns)
    names = [column.name for column in table.columns]  # as in the database: keys of columns may differ
    for rows in c.execute(query, execution_options={"yield_per": _AT_ONCE}).partitions():
        for row in rows:
            values = {name: plain(value) for name, value in zip(names, row, strict=True)}
            yield json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def plain(value: Any) -> Any:
    """A value of a column in JSON."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def load(c: Connection, table: sa.Table, rows: Iterable[Mapping[str, Any]]) -> int:
    """Insert rows; how many. Refused for a value of the wrong type, Failed for a row that does not fit."""
    readers: dict[str, Callable[[Any], Any]] = {column.name: reader(column) for column in table.columns}
    count, batch = 0, []
    try:
        for row in rows:
            batch.append(_read(table.name, row, readers))
            if len(batch) == _AT_ONCE:
                c.execute(table.insert(), batch)
                count, batch = count + len(batch), []
        if batch:
            c.execute(table.insert(), batch)
    except (exc.IntegrityError, exc.ProgrammingError, exc.DataError, exc.StatementError) as error:
        reason = str(getattr(error, "orig", error)).partition("\n")[0]  # the rest of the message contains the row
        raise Failed(f"a row of {table.name} does not fit: {reason}", hint="nothing was restored") from error
    return count + len(batch)


def _read(table: str, row: Mapping[str, Any], readers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    if row.keys() != readers.keys():
        odd = sorted(row.keys() ^ readers.keys())[0]
        raise _wrong(table, odd[:80], "the columns of the table and of the backup differ")
    read = {}
    for name, convert in readers.items():
        value = row[name]
        try:
            read[name] = None if value is None else convert(value)
        except (TypeError, ValueError) as error:
            raise _wrong(table, name, str(error)) from error
    return read


def _wrong(table: str, column: str, why: str) -> Refused:
    return invalid("FILE", f"the backup is damaged: {table}.{column}: {why}")


def reader(column: sa.Column[Any]) -> Callable[[Any], Any]:
    """The function that checks and converts a value of a column. It raises TypeError or ValueError."""
    match column.type:
        case sa.Boolean():
            return _boolean
        case sa.Integer():
            return _integer
        case sa.Float() | sa.Numeric():
            return _number
        case sa.DateTime():
            return _naive_time
        case sa.JSON():
            return _anything
        case sa.types.TypeDecorator():
            return _time
        case _:
            return _text


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("is not true or false")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int or not -_MOST <= value < _MOST:
        raise TypeError("is not a number of 64 bits")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("is not a number")
    return float(value)


def _time(value: Any) -> datetime:
    if not isinstance(value, str):
        raise TypeError("is not a time")
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError("has no time zone")
    return found.astimezone(UTC)


def _naive_time(value: Any) -> datetime:
    return _time(value).replace(tzinfo=None)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("is not text")
    value.encode()  # refuses a lone surrogate
    return value


def _anything(value: Any) -> Any:
    return value


def reflect(c: Connection) -> sa.MetaData:
    """The tables of the database as they are, for rows of an earlier version. NULL stays NULL in columns of JSON."""
    found = sa.MetaData()
    found.reflect(bind=c)
    for table in found.tables.values():
        for column in table.columns:
            if isinstance(column.type, sa.JSON):
                column.type = sa.JSON(none_as_null=bool(column.nullable))
    return found


def last_number(c: Connection, table: sa.Table) -> int | None:
    """The highest number that the table's sequence has given, even if its row was deleted; None: no sequence."""
    column = table.autoincrement_column
    if column is None or not table.dialect_options["sqlite"]["autoincrement"]:
        return None
    given = [c.scalar(sa.select(sa.func.max(column)))]
    if c.dialect.name == SQLITE:
        given.append(c.scalar(sa.text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": table.name}))
    else:
        name = c.scalar(sa.select(_sequence(c, table, column.name)))
        last, called = c.exec_driver_sql(f"SELECT last_value, is_called FROM {name}").one()
        given.append(last if called else None)
    return max((int(one) for one in given if one is not None), default=0)


def continue_after(c: Connection, table: sa.Table, column: str, last: int) -> None:
    """Let the table's sequence continue after a number."""
    if last == 0:
        return
    if c.dialect.name == SQLITE:
        name = {"name": table.name, "last": last}
        if not c.execute(sa.text("UPDATE sqlite_sequence SET seq = :last WHERE name = :name"), name).rowcount:
            c.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"), name)
        return
    c.execute(sa.select(sa.func.setval(_sequence(c, table, column), last)))


def _sequence(c: Connection, table: sa.Table, column: str) -> sa.Function[Any]:
    quoted = c.dialect.identifier_preparer.format_table(table)
    return sa.func.pg_get_serial_sequence(quoted, column)
