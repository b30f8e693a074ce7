"""The door to the database: one engine, read and write transactions, and errors people understand.

Two writers never have read the same state, and readers and the writer do not wait for one another. SQLite: WAL,
foreign keys on, `BEGIN IMMEDIATE` for what writes, plain `BEGIN` for what reads. PostgreSQL: READ COMMITTED behind
one lock for what writes (see store.postgresql), REPEATABLE READ and READ ONLY for what reads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
        self._here = threading.local()  # the connection of `whole`, in the thread that is within it

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database. Raises StoreError."""
        if (whole := self._whole()) is not None:
            yield whole
            return
        with explained(), self._reading.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is alone in writing; committed at the end, undone by an exception.

        Raises StoreError if the database is locked for too long, read-only, full or broken.
        """
        if (whole := self._whole()) is not None:
            with explained(), whole.begin_nested():
                yield whole
            return
        with explained(), self._my_turn(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def whole(self) -> Iterator[Connection]:
        """Like `write`, and what this thread reads and writes meanwhile is part of it: all happens, or nothing."""
        with self.write() as connection:
            self._here.whole = connection
            try:
                yield connection
            finally:
                self._here.whole = None

    def _whole(self) -> Connection | None:
        return getattr(self._here, "whole", None)

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Of this process's writers one at a time has a connection: the others leave theirs to who reads."""
        if not self._turn.acquire(timeout=self._lock_timeout):
            raise StoreError(*LOCKED)
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def make_engine(url: str, lock_timeout: timedelta, pool_size: int = 8) -> Engine:
    """An engine for `url`. lock_timeout: how long a writer waits for another one. Refused if it is no such URL."""
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
    connection.isolation_level = None  # transactions are begun below, not by the driver
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
    """A store for `config` whose schema has not been looked at."""
    wait = config.store.lock_timeout
    return Store(make_engine(config.store_url, wait, config.web.threads + 8), wait)
