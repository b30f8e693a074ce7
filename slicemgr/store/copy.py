"""Move a testbed: copy every row of an SQLite database into an empty PostgreSQL database, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.errors import Code, Failed, Refused, invalid
from slicemgr.store import postgresql, rows, schema
from slicemgr.store.diagnosis import explained
from slicemgr.store.engine import Store, make_engine
from slicemgr.store.tables import metadata
from slicemgr.store.url import POSTGRESQL, SQLITE, parse

_AT_ONCE = 1000  # rows in one insert


def copy(source: str, target: str, lock_timeout: timedelta, field: str = "--to") -> dict[str, int]:
    """Copy the database at URL `source` to URL `target`; how many rows each table has. The source is not changed.

    Refused: the source is no SQLite database of this version or another process writes to it, or the target is no
    PostgreSQL database, cannot be used, or is not empty. Failed: a row does not fit. The target is then as before.
    """
    if parse(source).get_backend_name() != SQLITE:
        raise invalid("store.url", "is not SQLite: there is nothing to move", "PostgreSQL has pg_dump")
    if parse(target, field).get_backend_name() != POSTGRESQL:
        raise invalid(field, "is not PostgreSQL", "write it as postgresql://USER:PASSWORD@HOST/DATABASE")
    origin, destination = (Store(make_engine(url, lock_timeout), lock_timeout) for url in (source, target))
    # The source has no other writers meanwhile; only the target has something to commit.
    with origin, destination, origin.write() as old, explained(), destination.engine.begin() as new:
        schema.check(old)
        _refuse_full(new, field)
        postgresql.prepare(new)
        schema.run_migrations(new)
        return {table.name: _copy_table(old, new, table) for table in metadata.sorted_tables}


def check_target(target: str, lock_timeout: timedelta, field: str = "--to") -> None:
    """Refused, or a StoreError, if `copy` would refuse the target. Nothing is changed."""
    if parse(target, field).get_backend_name() != POSTGRESQL:
        raise invalid(field, "is not PostgreSQL", "write it as postgresql://USER:PASSWORD@HOST/DATABASE")
    with _changing(target, lock_timeout) as new:
        _refuse_full(new, field)
        postgresql.prepare(new)
        if not new.exec_driver_sql("SELECT has_schema_privilege(current_schema(), 'CREATE')").scalar_one():
            hint = "make it the owner of the database: `createdb --owner USER`"
            raise Refused(Code.CONFLICT, "the user of the database cannot create tables", hint=hint, field=field)


def empty(target: str, lock_timeout: timedelta) -> None:
    """Remove what `copy` made: every table of the target. The caller knows that it was empty before."""
    with _changing(target, lock_timeout) as new:
        found = sa.MetaData()
        found.reflect(new)
        found.drop_all(new)


@contextmanager
def _changing(url: str, lock_timeout: timedelta) -> Iterator[Connection]:
    opened = Store(make_engine(url, lock_timeout), lock_timeout)
    with opened, explained(), opened.engine.begin() as connection:
        yield connection


def _refuse_full(new: Connection, field: str) -> None:
    found = sa.inspect(new).get_table_names()
    if found:
        message = f"the database is not empty: it has {len(found)} tables, {found[0]!r} among them"
        raise Refused(Code.CONFLICT, message, hint="make a new one with `createdb`", field=field)


def _copy_table(old: Connection, new: Connection, table: sa.Table) -> int:
    count = 0
    try:
        found = old.execute(sa.select(table), execution_options={"yield_per": _AT_ONCE})
        for batch in found.partitions():
            new.execute(table.insert(), [dict(zip(table.columns.keys(), row, strict=True)) for row in batch])
            count += len(batch)
    except (exc.IntegrityError, exc.ProgrammingError, exc.DataError) as error:
        reason = str(error.orig).partition("\n")[0]  # the rest of the message contains the row
        raise Failed(f"a row of {table.name} does not fit: {reason}", hint="nothing was copied") from error
    arrived = new.scalar(sa.select(sa.func.count()).select_from(table))
    if arrived != count:
        raise Failed(f"of {count} rows of {table.name}, {arrived} arrived", hint="nothing was copied")
    last = rows.last_number(old, table)
    if last is not None and table.autoincrement_column is not None:
        rows.continue_after(new, table, table.autoincrement_column.name, last)
    return count
