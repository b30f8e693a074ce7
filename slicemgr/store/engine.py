"""Access to the database: one engine, read and write transactions, and readable errors.

Write transactions are serial, except for those of `write_beside` on PostgreSQL, and readers and the writer do not wait
for one another. SQLite: WAL, foreign keys on, `BEGIN IMMEDIATE` for writes, plain `BEGIN` for reads. PostgreSQL: READ
COMMITTED behind one lock for writes (see store.postgresql), REPEATABLE READ and READ ONLY for reads.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from slicemgr.config import Config
from slicemgr.store import postgresql
from slicemgr.store.diagnosis import LOCKED, StoreError, explained
from slicemgr.store.url import SQLITE, parse
from slicemgr.store.versions import Versions

_WRITES = {"slicemgr_writes": True}
_READS = {"slicemgr_reads": True}


class Store:
    """The database behind a pool of connections. Safe to share among threads, not across a fork."""

    def __init__(self, engine: Engine, lock_timeout: timedelta = timedelta(seconds=10)) -> None:
        self.engine = engine
        self._writing = engine.execution_options(**_WRITES)
        self._reading = engine.execution_options(**_READS)
        self._turn = threading.Lock()
        self._lock_timeout = lock_timeout.total_seconds()
        self._versions = Versions(engine)
        self._here = threading.local()  # the connection of `whole`, in the thread inside it

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction with a consistent snapshot of the database. Raises StoreError."""
        if (whole := self._whole()) is not None:
            yield whole
            return
        with explained(), self._reading.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction alone in the database; committed at the end, rolled back on an exception.

        Raises StoreError if the database is locked for too long, read-only, full or broken.
        """
        if (whole := self._whole()) is not None:
            with explained(), whole.begin_nested():
                yield whole
            return
        with explained(), self._my_turn(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def write_beside(self) -> Iterator[Connection]:
        """Like `write`, but beside other transactions that write: on PostgreSQL they wait for one another only for rows
        that both change. For rows about which no two transactions decide. Never inside `whole`.
        """
        if self.engine.dialect.name == SQLITE:
            with self.write() as connection:
                yield connection
            return
        with explained(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def whole(self) -> Iterator[Connection]:
        """Like `write`; all reads and writes of this thread inside it are one transaction."""
        with self.write() as connection:
            self._here.whole = connection
            try:
                yield connection
            finally:
                self._here.whole = None

    def version(self) -> Hashable | None:
        """Of the whole database: what is read after it stays true while it is the same (see store.versions). None:
        unknown, also inside `whole`, whose changes others do not see.
        """
        return None if self._whole() is not None else self._versions.now()

    def _whole(self) -> Connection | None:
        return getattr(self._here, "whole", None)

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """One writer of this process at a time uses a connection, so that connections remain for readers."""
        if not self._turn.acquire(timeout=self._lock_timeout):
            raise StoreError(*LOCKED)
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        self._versions.close()
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def make_engine(url: str, lock_timeout: timedelta, pool_size: int = 8) -> Engine:
    """An engine for `url`. lock_timeout: how long a writer waits for another one. Refused for an invalid URL."""
    parsed = parse(url)
    if parsed.get_backend_name() != SQLITE:
        engine = postgresql.make_engine(parsed, lock_timeout, pool_size)
        event.listen(engine, "begin", _on_begin)
        return engine
    engine = sa.create_engine(
        parsed,
        poolclass=sa.QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=lock_timeout.total_seconds(),
        hide_parameters=True,
        connect_args={"timeout": lock_timeout.total_seconds(), "check_same_thread": False},
    )
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin below, not in the driver
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=NORMAL")


def _on_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    writes, reads = options.get("slicemgr_writes", False), options.get("slicemgr_reads", False)
    if connection.dialect.name == SQLITE:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
    else:
        postgresql.begin(connection, writes=writes, reads=reads)


def make_store(config: Config) -> Store:
    """A store for `config` without a check of its schema."""
    wait = config.store.lock_timeout
    return Store(make_engine(config.store_url, wait, config.web.threads + 8), wait)
