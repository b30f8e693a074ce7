"""The door to the database: one engine, read and write transactions, and errors people understand.

SQLite: WAL, foreign keys on, `BEGIN IMMEDIATE` for what writes (two writers can then never have read the same
state), plain `BEGIN` for what reads (readers and the writer do not wait for one another).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine, make_url

from slicemgr.config import Config
from slicemgr.errors import Code, Refused

log = logging.getLogger(__name__)

_WRITES = {"slicemgr_writes": True}


class StoreError(Refused):
    """The database does not answer or cannot be used; the transaction at hand changed nothing."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(Code.UNAVAILABLE, message, hint=hint)


class Store:
    """The database behind a pool of connections. Safe to share among threads, not across a fork."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writing = engine.execution_options(**_WRITES)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database. Raises StoreError."""
        with explained(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is alone in writing; committed at the end, undone by an exception.

        Raises StoreError if the database is locked for too long, read-only, full or broken.
        """
        with explained(), self._writing.begin() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def make_engine(url: str, lock_timeout: timedelta, pool_size: int = 8) -> Engine:
    """An engine for `url`. lock_timeout: how long a writer waits for another one."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return sa.create_engine(parsed, pool_size=pool_size)
    engine = sa.create_engine(
        parsed,
        poolclass=sa.QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=lock_timeout.total_seconds(),
        connect_args={"timeout": lock_timeout.total_seconds(), "check_same_thread": False},
    )
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=NORMAL")


def _on_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("slicemgr_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def explained() -> Iterator[None]:
    """Turn a failure of the database itself into StoreError; broken constraints pass through."""
    try:
        yield
    except (exc.IntegrityError, exc.ProgrammingError):
        raise
    except exc.TimeoutError as error:
        raise StoreError("the service has too much to do", "try again in a moment") from error
    except exc.DBAPIError as error:
        message, hint = _explain(error)
        log.error("database: %s: %s", message, error.orig)
        raise StoreError(message, hint) from error


def _explain(error: exc.DBAPIError) -> tuple[str, str]:
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "the database is locked by another process", "try again; store.lock_timeout says how long to wait"
        case sqlite3.SQLITE_READONLY:
            return "the database is read-only", "its file and folder must be writable for this user"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return "the database cannot be opened", "its file and folder must be there and writable for this user"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return "the file is not a database, or it is damaged", "look at store.url, or restore a backup"
        case sqlite3.SQLITE_FULL:
            return "the disk of the database is full", "make room and try again"
        case _:
            return "the database does not work", "the service's log has the details"


def make_store(config: Config) -> Store:
    """A store for `config` whose schema has not been looked at."""
    return Store(make_engine(config.store_url, config.store.lock_timeout, config.web.threads + 8))
