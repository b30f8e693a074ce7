"""Queries of the rows by work that has begun, and that a restart of the database must not end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection

from slicemgr.store import Store, StoreError

T = TypeVar("T")

_PAUSE = 1.0  # seconds between two attempts


def awaited(store: Store, stop: threading.Event, query: Callable[[Connection], T]) -> T:
    """The result of a query, which begins again until the database answers.

    Raises what the query raises, and StoreError if `stop` is set before the database answers.
    """
    while True:
        try:
            with store.read() as connection:
                return query(connection)
        except StoreError:
            if stop.wait(_PAUSE):
                raise
