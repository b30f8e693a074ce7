"""Values that were computed from the database, kept in memory until the database changes."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")
_OVERHEAD = 512  # bytes of an entry beside its value, roughly
_SHARES = 4  # an owner has at most this part of the memory


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Value]):
    owner: str
    value: Value
    size: int
    until: float


class Kept(Generic[Value]):
    """Values of one version of the database: a new version drops all. Thread-safe.

    most: bytes of all values; an owner, such as a user, has at most a quarter of them. age: seconds that a value is
    kept at most.
    """

    def __init__(self, most: int, age: float) -> None:
        self._most, self._age = most, age
        self._lock = threading.Lock()
        self._version: Hashable | None = None
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()  # the one used last comes last
        self._sizes: Counter[str] = Counter()

    def get(self, version: Hashable | None, key: Hashable) -> Value | None:
        """The value for `key` if it is of this version. A version of None has no values."""
        with self._lock:
            if version != self._version:
                self._entries.clear()
                self._sizes.clear()
                self._version = version
            entry = self._entries.get(key)
            if entry is None:
                return None
            if time.monotonic() >= entry.until:
                self._drop(key)
                return None
            self._entries.move_to_end(key)
            return entry.value

    def put(self, version: Hashable | None, key: Hashable, value: Value, size: int, owner: str) -> None:
        """Keep a value that was read after its version was. Others of the owner, then of all, make room for it."""
        size += _OVERHEAD
        share = self._most // _SHARES
        with self._lock:
            if version is None or version != self._version or size > share:
                return
            self._drop(key)
            for other in [one for one, entry in self._entries.items() if entry.owner == owner]:
                if self._sizes[owner] + size <= share:
                    break
                self._drop(other)
            while self._sizes.total() + size > self._most:
                self._drop(next(iter(self._entries)))
            self._entries[key] = _Entry(owner, value, size, time.monotonic() + self._age)
            self._sizes[owner] += size

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._sizes[entry.owner] -= entry.size
            if not self._sizes[entry.owner]:
                del self._sizes[entry.owner]
