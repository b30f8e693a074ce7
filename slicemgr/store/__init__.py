"""The database: what should be, and what was last seen."""

from __future__ import annotations

from slicemgr.config import Config
from slicemgr.store import schema
from slicemgr.store.diagnosis import StoreError
from slicemgr.store.engine import Store, make_store

__all__ = ["Store", "StoreError", "open"]


def open(config: Config) -> Store:
    """The store of `config`, checked to be of this version's schema.

    Raises StoreError: not there, locked, read-only, no database, or of another version.
    """
    store = make_store(config)
    try:
        with store.read() as connection:
            schema.check(connection)
    except BaseException:
        store.close()
        raise
    return store
