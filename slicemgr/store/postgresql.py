"""PostgreSQL as the database: its connections, the lock that serialises writers, and its errors as messages.

The lock is one advisory lock for the whole testbed, held to the end of the transaction. With SERIALIZABLE, two
concurrent creates would hardly ever both succeed: each reads all slivers of the node to find free resources, so one of
them would have to be repeated, by every caller of `store.write()`. Write transactions are short, and serial on SQLite
too, so both databases behave alike. A lock for each node is not enough: names, leases and images belong to no node.
Only what nodes say in beats is written without it (`store.write_beside()`): they are many, and decide nothing.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine

from slicemgr.store.diagnosis import StoreError

LOCK = 0x736C6963656D6772  # unique in this database: "slicemgr"
CONNECTIONS = 20  # for each process; web and agent together stay well below PostgreSQL's own limit of 100
_IDLE = 60_000  # ms after which the server ends an idle transaction: it may hold the lock
_NUL, _NO_NUL = "\0", "\N{REPLACEMENT CHARACTER}"


def make_engine(url: URL, lock_timeout: timedelta, pool_size: int) -> Engine:
    """An engine whose connections wait `lock_timeout` for a lock and, in seconds, for the server."""
    engine = sa.create_engine(
        url.difference_update_query(["options"]),
        poolclass=sa.QueuePool,
        pool_size=min(pool_size, CONNECTIONS),
        max_overflow=0,
        pool_timeout=lock_timeout.total_seconds(),
        pool_pre_ping=True,  # otherwise the first request after a restart of the server fails
        hide_parameters=True,
        connect_args=_parameters(url, lock_timeout),
    )
    event.listen(engine, "connect", _on_connect)
    return engine


def _parameters(url: URL, lock_timeout: timedelta) -> dict[str, str]:
    """Connection parameters of libpq; those in the URL have priority."""
    milliseconds = max(1, round(lock_timeout.total_seconds() * 1000))
    given = url.query.get("options", "")
    options = [f"-c lock_timeout={milliseconds} -c idle_in_transaction_session_timeout={_IDLE}"]
    options += [given] if isinstance(given, str) else given
    defaults = {
        "application_name": "slicemgr",
        "client_encoding": "utf8",
        "connect_timeout": str(max(2, math.ceil(lock_timeout.total_seconds()))),
        "keepalives_idle": "30",
    }
    chosen = {name: value for name, value in defaults.items() if name not in url.query}
    return {**chosen, "options": " ".join(options)}


def _on_connect(connection: Any, record: object) -> None:
    from psycopg.types.string import StrDumperUnknown

    class Dumper(StrDumperUnknown):
        """Removes NUL, which PostgreSQL does not store: output of a program may contain it."""

        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace(_NUL, _NO_NUL) if _NUL in obj else obj)

    connection.adapters.register_dumper(str, Dumper)


def begin(connection: Connection, *, writes: bool, reads: bool) -> None:
    """Set the mode of the driver's next transaction. SQLAlchemy's options are not used, because they leave a setting in
    the connection that overrides default_transaction_read_only.
    """
    from psycopg import IsolationLevel

    driver: Any = connection.connection.driver_connection
    driver.isolation_level = IsolationLevel.REPEATABLE_READ if reads else None
    driver.read_only = True if reads else None
    if writes:
        lock(connection)


def lock(connection: Connection) -> None:
    """Wait until no other transaction writes. Must be the first statement: later ones then read all earlier commits."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")


def prepare(connection: Connection) -> None:
    """Call before tables are created or changed.

    Raises StoreError if the database's encoding cannot store the texts.
    """
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        message = f"the database's encoding is {encoding}"
        raise StoreError(message, "make one with `createdb --encoding UTF8 --template template0`")
    lock(connection)
