"""The version of the tables: upgrade a database to it, or report why it cannot be used."""

from __future__ import annotations

import sqlite3
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr import __version__
from slicemgr.config import PACKAGE
from slicemgr.model import DEFAULT_PROJECT
from slicemgr.store import postgresql
from slicemgr.store.diagnosis import StoreError, explained
from slicemgr.store.engine import make_engine
from slicemgr.store.tables import about, metadata, projects, users
from slicemgr.store.url import SQLITE, parse

# oldest first; this version uses the last one
REVISIONS = tuple(f"{number:04}" for number in range(1, 44))
HEAD = REVISIONS[-1]
ADMIN = "admin"

_LOCK_TIMEOUT = timedelta(seconds=30)


def upgrade(url: str, revision: str = "head") -> None:
    """Create the database if it does not exist, and upgrade its tables to `revision`.

    All or nothing: a failed migration leaves the tables as they were. Raises StoreError.
    """
    _migrate(url, revision, down=False)


def downgrade(url: str, revision: str) -> None:
    """Downgrade the tables to `revision` ("base": no tables at all)."""
    _migrate(url, revision, down=True)


def _migrate(url: str, revision: str, *, down: bool) -> None:
    parsed = parse(url)
    sqlite = parsed.get_backend_name() == SQLITE
    if sqlite and parsed.database and not parsed.database.startswith("file:"):
        Path(parsed.database).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    engine = make_engine(url, _LOCK_TIMEOUT)
    try:
        with explained(), engine.connect() as connection:
            if sqlite:
                _outside_transaction(connection, "PRAGMA journal_mode=WAL")
            _refuse_newer(connection)
            if revision == "head" and _is_current(connection):
                return  # Alembic takes long to read its scripts, while others would wait for the lock
            # SQLite's migrations must begin outside of a transaction, see migrations/env.py.
            with nullcontext() if sqlite else connection.begin():
                if not sqlite:
                    postgresql.prepare(connection)
                run_migrations(connection, revision, down=down)
                if not down:
                    seed(connection)
    finally:
        engine.dispose()


def run_migrations(connection: Connection, revision: str = "head", *, down: bool = False) -> None:
    """Run Alembic on a connection: within its transaction, if there is one."""
    from alembic import command
    from alembic.config import Config as AlembicConfig

    alembic = AlembicConfig()
    alembic.set_main_option("script_location", str(PACKAGE / "migrations"))
    alembic.attributes["connection"] = connection
    (command.downgrade if down else command.upgrade)(alembic, revision)


def _outside_transaction(connection: Connection, statement: str) -> None:
    """Run a statement with SQLAlchemy's error handling."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
    except sqlite3.Error as error:
        raise exc.OperationalError(statement, None, error) from error
    finally:
        cursor.close()


def seed(connection: Connection) -> None:
    """Insert the built-in user and project, and the version that wrote the database.

    A database that has them is not written: other processes may use it, and SQLite does not let a transaction that has
    read wait for them.
    """
    if _seeded(connection):
        return
    with nullcontext() if connection.in_transaction() else connection.begin():
        if not sa.inspect(connection).has_table("about"):
            return
        connection.execute(about.delete())
        connection.execute(about.insert().values(key="version", value=__version__))
        now = datetime.now(UTC)
        if connection.scalar(sa.select(users.c.name).where(users.c.name == ADMIN)) is None:
            connection.execute(users.insert().values(name=ADMIN, admin=True, created_at=now))
        if connection.scalar(sa.select(projects.c.name).where(projects.c.name == DEFAULT_PROJECT)) is None:
            connection.execute(projects.insert().values(name=DEFAULT_PROJECT, created_at=now))


def _is_current(connection: Connection) -> bool:
    """Whether there is nothing to do."""
    try:
        return _revision(connection) == HEAD and _seeded(connection)
    finally:
        connection.rollback()


def _seeded(connection: Connection) -> bool:
    with nullcontext() if connection.in_transaction() else connection.begin():
        if not sa.inspect(connection).has_table("about"):
            return False
        version = connection.scalar(sa.select(about.c.value).where(about.c.key == "version"))
        admin = connection.scalar(sa.select(users.c.name).where(users.c.name == ADMIN))
        project = connection.scalar(sa.select(projects.c.name).where(projects.c.name == DEFAULT_PROJECT))
    return version == __version__ and None not in (admin, project)


def check(connection: Connection) -> None:
    """StoreError unless the tables are exactly those of this version."""
    revision = _revision(connection)
    if revision == HEAD:
        return
    if revision is None:
        raise StoreError("the database has no tables", "run `slicemgr db upgrade`")
    if revision in REVISIONS:
        message = f"the database is of an older version (schema {revision}, needed {HEAD})"
        raise StoreError(message, "run `slicemgr db upgrade`")
    _refuse_newer(connection)


def _refuse_newer(connection: Connection) -> None:
    revision = _revision(connection)
    if revision is None:
        others = sorted(set(sa.inspect(connection).get_table_names()) & set(metadata.tables))
        if others:
            message = (
                f"the database belongs to another program: it has a table {others[0]!r} that slicemgr did not create"
            )
            raise StoreError(message, "give slicemgr a database of its own")
    if revision is None or revision in REVISIONS:
        connection.rollback()
        return
    try:
        writer = connection.scalar(sa.select(about.c.value).where(about.c.key == "version"))
    except exc.DBAPIError:
        writer = None
    message = f"the database was written by slicemgr {writer or 'of a newer version'} (schema {revision})"
    raise StoreError(message, f"this is slicemgr {__version__}: install that version or a newer one")


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(sa.select(sa.table("alembic_version", sa.column("version_num", sa.Text)).c.version_num))
