"""The current versions of operations, shared by the requests that wait for them.

A hundred waiting requests cost one query at a time, not a hundred. Queries are frequent after a change or a new waiting
request, and then become rare.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from slicemgr.service.views import operations as operation_views
from slicemgr.store import Store, StoreError

_FIRST, _SLOWEST, _SLOWER = 0.015, 0.2, 1.3  # seconds between queries; factor from one to the next
_ENDED = ("done", "failed")

Version = tuple[int, str]


class News:
    """The versions of operations that requests wait for. Thread-safe; queries only while a request waits."""

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
                self._waiting += Counter()  # removes zeros

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
        """Empty if the store cannot be read: waiting requests then read it themselves and report the error."""
        try:
            with self._store.read() as connection:
                return operation_views.operation_versions(connection, operations)
        except StoreError:
            return {}
