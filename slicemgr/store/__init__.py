"""The database: the desired state, and the state that the agent last observed."""

from __future__ import annotations

from slicemgr.config import Config
from slicemgr.store import schema
from slicemgr.store.diagnosis import StoreError
from slicemgr.store.engine import Store, make_store

__all__ = ["Store", "StoreError", "open"]


def open(config: Config) -> Store:
    """The store of `config`, with the schema of this version.

    Raises StoreError: the database is missing, locked, read-only, no database, or of another version.
    """
    store = make_store(config)
    try:
        with store.read() as connection:
            schema.check(connection)
    except BaseException:
        store.close()
        raise
    return store
