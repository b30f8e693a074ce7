"""Requests that wait for an operation share one look at the store.

A hundred waiting requests cost one query each time, not a hundred. The looks are frequent after something has
changed or somebody has begun to wait, and then become rare.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from slicemgr.service.views import operations as operation_views
from slicemgr.store import Store, StoreError

_FIRST, _SLOWEST, _SLOWER = 0.015, 0.2, 1.3  # seconds between looks; factor from one to the next
_ENDED = ("done", "failed")

Version = tuple[int, str]


class News:
    """What waiting requests know of their operations. Thread-safe; looks only while somebody waits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._waiting: Counter[str] = Counter()
        self._known: dict[str, Version] = {}
        self._queries = 0
        self._polling = False

    def wait(self, operation: str, seen: int, timeout: float) -> None:
        """Return when it has ended, has a version beyond `seen`, is unknown, or after `timeout` seconds."""
        end = time.monotonic() + timeout
        with self._changed:
            since = self._queries
            self._waiting[operation] += 1
            if not self._polling:
                self._polling = True
                threading.Thread(target=self._poll, name="news", daemon=True).start()
            self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: self._queries > since and self._is_news(operation, seen), max(0.0, end - time.monotonic())
                )
            finally:
                self._waiting[operation] -= 1
                self._waiting += Counter()  # drops the zeros

    def _is_news(self, operation: str, seen: int) -> bool:
        known = self._known.get(operation)
        return known is None or known[0] > seen or known[1] in _ENDED

    def _poll(self) -> None:
        pause = _FIRST
        while True:
            with self._changed:
                wanted = set(self._waiting)
                if not wanted:
                    self._polling = False
                    return
            known = self._versions(wanted)
            with self._changed:
                changed = known != self._known
                self._known = known
                self._queries += 1
                self._changed.notify_all()
                pause = _FIRST if changed else min(_SLOWEST, pause * _SLOWER)
                self._changed.wait_for(lambda wanted=wanted: set(self._waiting) - wanted, pause)  # type: ignore[misc]

    def _versions(self, operations: set[str]) -> dict[str, Version]:
        """None known if the store cannot be read: those who wait then ask it themselves and are told why."""
        try:
            with self._store.read() as connection:
                return operation_views.operation_versions(connection, operations)
        except StoreError:
            return {}
