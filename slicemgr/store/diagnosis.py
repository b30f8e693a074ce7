"""Errors of the database itself as messages for people. The driver's message goes to the log; neither has the URL."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from slicemgr.errors import Code, Refused

log = logging.getLogger(__name__)

_NO_RIGHT = "42501"  # the driver classifies it as an SQL error

LOCKED = ("the database is locked by another process", "try again; store.lock_timeout is the time to wait")
_READ_ONLY = ("the database is read-only", "PostgreSQL is a standby, or default_transaction_read_only is on")
_PASSWORD = ("PostgreSQL refuses the user or the password", "check store.url and PostgreSQL's pg_hba.conf")
_MISSING = ("PostgreSQL has no such database", "create it with `createdb`, or check store.url")
_RIGHTS = ("PostgreSQL refuses access to this user", "the user of store.url must own the database")
_FULL = ("the disk of the database is full", "free some space and try again")
_MANY = ("PostgreSQL has too many connections", "raise its max_connections, or try again in a moment")
_STARTING = ("PostgreSQL is starting or stopping", "try again in a moment")
_DOWN = (
    "PostgreSQL does not answer",
    "check store.url and that PostgreSQL is running; the log of the service has the details",
)
_UNKNOWN = ("the database does not work", "the log of the service has the details")


class StoreError(Refused):
    """The database does not respond or cannot be used; the current transaction changed nothing."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(Code.UNAVAILABLE, message, hint=hint)


@contextmanager
def explained() -> Iterator[None]:
    """Turn a failure of the database itself into StoreError; violated constraints pass through."""
    try:
        yield
    except (exc.IntegrityError, exc.ProgrammingError) as error:
        if getattr(error.orig, "sqlstate", None) == _NO_RIGHT:
            raise _trouble(error) from error
        raise
    except exc.TimeoutError as error:
        raise StoreError("the service is overloaded", "try again in a moment") from error
    except exc.DBAPIError as error:
        raise _trouble(error) from error


def _trouble(error: exc.DBAPIError) -> StoreError:
    sqlite = isinstance(error.orig, sqlite3.Error)
    message, hint = _explain_sqlite(error) if sqlite else _explain_postgresql(error.orig)
    log.error("database: %s: %s", message, error.orig)
    return StoreError(message, hint)


def _explain_sqlite(error: exc.DBAPIError) -> tuple[str, str]:
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return LOCKED
        case sqlite3.SQLITE_READONLY:
            return "the database is read-only", "its file and folder must be writable for this user"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return "the database cannot be opened", "its file and folder must exist and be writable for this user"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return "the file is not a database, or it is damaged", "check store.url, or restore a backup"
        case sqlite3.SQLITE_FULL:
            return _FULL
        case _:
            return _UNKNOWN


_BY_STATE = {
    "55P03": LOCKED,
    "40P01": LOCKED,
    "25006": _READ_ONLY,
    "28P01": _PASSWORD,
    "28000": _PASSWORD,
    "3D000": _MISSING,
    _NO_RIGHT: _RIGHTS,
    "53100": _FULL,
    "53300": _MANY,
    "57P01": _STARTING,
    "57P02": _STARTING,
    "57P03": _STARTING,
    "25P03": _DOWN,
    "08006": _DOWN,
}
# A failed connection has no code, only a message.
_BY_WORDS = (
    ("too many", _MANY),
    ("connection slots", _MANY),
    ("permission denied for database", _RIGHTS),
    ("password", _PASSWORD),
    ("authentication failed", _PASSWORD),
    ("pg_hba.conf", _PASSWORD),
    ('role "', _PASSWORD),
    ("is starting up", _STARTING),
    ("is shutting down", _STARTING),
    ("not accepting connections", _STARTING),
    ("recovery", _STARTING),
)


def _explain_postgresql(error: BaseException | None) -> tuple[str, str]:
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return _BY_STATE.get(state, _UNKNOWN)
    text = str(error)
    if 'database "' in text and "does not exist" in text:
        return _MISSING
    return next((message for words, message in _BY_WORDS if words in text), _DOWN)
