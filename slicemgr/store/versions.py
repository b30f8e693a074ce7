"""Versions of the whole database: while it stays the same, no transaction has changed any row.

SQLite counts commits of other connections (PRAGMA data_version). PostgreSQL's snapshot names the transactions that are
visible; of two equal ones all rows are the same. A version covers all tables, so what a reader depends on cannot be
incomplete. The price is that a change to any row makes a new one. Versions of different processes are not comparable.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Engine

from slicemgr.store.url import SQLITE

_PATIENCE = 0.1  # seconds for the turn; with a database that does not answer, requests must not queue here
_STATEMENTS = {SQLITE: "PRAGMA data_version", "postgresql": "SELECT pg_current_snapshot()::text"}


class Versions:
    """A connection of its own that only asks for the version. Thread-safe; it connects on first use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._statement = _STATEMENTS[engine.dialect.name]
        self._turn = threading.Lock()
        self._connection: Any = None
        self._connected = 0  # how often: a database may have been restored between two connections
        self._closed = False

    def now(self) -> Hashable | None:
        """The current version; None if it cannot be read. Read it before the rows."""
        if not self._turn.acquire(timeout=_PATIENCE):
            return None
        try:
            if self._closed:  # a request that came late must not leave a connection behind
                return None
            if self._connection is None:
                self._connect()
            return self._connected, self._connection.execute(self._statement).fetchone()[0]
        except (self._engine.dialect.loaded_dbapi.Error, exc.SQLAlchemyError):  # a request that reads rows reports it
            self._disconnect()
            return None
        finally:
            self._turn.release()

    def _connect(self) -> None:
        """Detached from the pool: the connection must stay the same, and never write."""
        held = self._engine.raw_connection()
        self._connection, self._connected = held.driver_connection, self._connected + 1
        held.detach()
        if self._engine.dialect.name != SQLITE:
            self._connection.autocommit = True

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(self._engine.dialect.loaded_dbapi.Error):
                self._connection.close()
            self._connection = None

    def close(self) -> None:
        with self._turn:
            self._closed = True
            self._disconnect()
