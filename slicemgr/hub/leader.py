"""One hub works at a time: it holds an advisory lock of PostgreSQL, which ends with its connection."""

from __future__ import annotations

import threading

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from slicemgr.errors import Failed
from slicemgr.store import Store

_LOCK = 0x736C6963656D6875  # "slicemhu"; that of write transactions is another
_INTERVAL = 2.0  # seconds


class Leader:
    """A context in which this process is the leader. `check` raises Failed once it no longer is."""

    def __init__(self, store: Store) -> None:
        self._connection: Connection = store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def wait(self, stop: threading.Event) -> bool:
        """Until this process leads; False: stopped before."""
        while not stop.is_set():
            if self._connection.scalar(sa.text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
                return True
            stop.wait(_INTERVAL)
        return False

    def check(self) -> None:
        try:
            self._connection.scalar(sa.text("SELECT 1"))
        except exc.DBAPIError as error:
            raise Failed("the connection with the hub's lock was lost", hint="the hub starts again") from error

    def close(self) -> None:
        self._connection.invalidate()
        self._connection.close()
