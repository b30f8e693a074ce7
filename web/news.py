"""The current versions of operations, shared by the requests that wait for them.

A hundred waiting requests cost one query at a time, not a hundred. Queries are frequent after a change or a new waiting
request, and then become rare: the longer a change takes, the less it matters how soon it is found.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from slicemgr.service.views import operations as operation_views
from slicemgr.store import Store, StoreError

_SHORTEST, _LONGEST = 0.015, 0.2  # seconds between queries
_SHARE = 0.06  # of the time since the last change, at most, is added to the time until the next one is found
_ENDED = ("done", "failed")

Version = tuple[int, str]


def pause(quiet: float) -> float:
    """Seconds until the next query, `quiet` seconds after the last change. Pure."""
    return min(_LONGEST, max(_SHORTEST, quiet * _SHARE))


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
        changed_at = time.monotonic()
        while True:
            with self._changed:
                wanted = set(self._waiting)
                if not wanted:
                    self._polling = False
                    return
            known = self._versions(wanted)
            with self._changed:
                if known != self._known:
                    changed_at = time.monotonic()
                self._known = known
                self._queries += 1
                self._changed.notify_all()
                left = pause(time.monotonic() - changed_at)
                self._changed.wait_for(lambda wanted=wanted: set(self._waiting) - wanted, left)  # type: ignore[misc]

    def _versions(self, operations: set[str]) -> dict[str, Version]:
        """Empty if the store cannot be read: waiting requests then read it themselves and report the error."""
        try:
            with self._store.read() as connection:
                return operation_views.operation_versions(connection, operations)
        except StoreError:
            return {}
