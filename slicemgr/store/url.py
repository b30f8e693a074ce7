"""Parse `store.url`, the URL of the database. Errors do not repeat it, because it may contain a password."""

from __future__ import annotations

from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url

from slicemgr.errors import invalid

FIELD = "store.url"
SQLITE, POSTGRESQL = "sqlite", "postgresql"
_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_HINT = "write it as sqlite:////PATH/FILE.db or postgresql://USER:PASSWORD@HOST/DATABASE"


def parse(text: str, field: str = FIELD) -> URL:
    """The URL with the driver of this project. Refused, without repeating it, if it is invalid."""
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        raise invalid(field, "is not the URL of a database", _HINT) from None
    if url.drivername not in _DRIVERS:
        raise invalid(field, "names a database that is not supported", _HINT)
    url = url.set(drivername=_DRIVERS[url.drivername])
    if url.get_backend_name() == POSTGRESQL:
        if "@" in (url.host or "") or "/" in (url.database or ""):
            raise invalid(field, "has an @ or a / in its password", "write @ as %40, / as %2F, : as %3A, % as %25")
        if not url.database:
            raise invalid(field, "names no database", _HINT)
    return url
