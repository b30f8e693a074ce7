"""Limits on the requests that hold a thread for long, so that threads remain for all others.

A console, a followed operation, a request that waits for an operation, an upload, the download of a disk image by a
node, and a connection to the agent of another host hold a thread each. Each kind, each user and each node is limited,
and an eighth of the threads is reserved for other requests.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from slicemgr.config import WebConfig
from slicemgr.errors import Busy, Code
from slicemgr.web.refusals import Refusals

_RETRY_AFTER = 5  # seconds


class Kind(Enum):
    CONSOLE = "consoles"
    FOLLOWER = "followed operations"
    WAIT = "waiting requests"
    UPLOAD = "uploads"
    DOWNLOAD = "downloads of disk images"
    DIAL = "connections to its agent"


_STREAMS = (Kind.CONSOLE, Kind.FOLLOWER)
_DOWNLOADS_PER_NODE = 2  # one that was interrupted may not have ended yet


class ThreadLimits:
    """Thread-safe."""

    def __init__(self, config: WebConfig, refusals: Refusals) -> None:
        threads = config.threads
        self.most = {
            Kind.CONSOLE: max(1, threads // 2),
            Kind.FOLLOWER: max(1, threads // 4),
            Kind.WAIT: max(1, threads * 3 // 4),
            Kind.UPLOAD: max(1, min(config.uploads, threads // 2)),
            Kind.DOWNLOAD: max(1, threads // 4),
            Kind.DIAL: max(1, threads // 2),
        }
        self._all = max(1, threads - max(1, threads // 8))
        self._config = config
        self._refusals = refusals
        self._lock = threading.Lock()
        self._taken: Counter[Kind] = Counter()
        self._by_user: Counter[tuple[str, str]] = Counter()

    def acquire(self, kind: Kind, user: str) -> Callable[[], None]:
        """A function to call at the end, once or more. Busy: UNAVAILABLE at the limit of the kind, TOO_MANY at the
        user's.

        Waiting requests are limited together, not by user.
        """
        with self._lock:
            if self._taken[kind] >= self.most[kind] or self._taken.total() >= self._all:
                raise self._full(kind)
            key, most = self._share(kind, user)
            if most and self._by_user[key] >= most:
                raise self._too_many(kind, most)
            self._taken[kind] += 1
            self._by_user[key] += 1
        gone = False

        def release() -> None:
            nonlocal gone
            with self._lock:
                if not gone:
                    gone = True
                    self._taken[kind] -= 1
                    self._by_user[key] -= 1
                    self._by_user += Counter()  # removes zeros

        return release

    @contextmanager
    def held(self, kind: Kind, user: str) -> Iterator[None]:
        """As `acquire`."""
        release = self.acquire(kind, user)
        try:
            yield
        finally:
            release()

    def _share(self, kind: Kind, user: str) -> tuple[tuple[str, str], int]:
        """The counter for the user's threads, and its limit; 0: no limit."""
        if kind in _STREAMS:
            return (user, "streams"), self._config.streams_per_user
        if kind is Kind.DOWNLOAD:
            return (user, kind.value), _DOWNLOADS_PER_NODE
        if kind is Kind.DIAL:
            return (user, kind.value), max(1, self.most[kind] // 2)  # one node that is slow leaves room for others
        return (user, kind.value), self._config.uploads_per_user if kind is Kind.UPLOAD else 0

    def _full(self, kind: Kind) -> Busy:
        self._refusals.add("uploads" if kind is Kind.UPLOAD else "streams")
        hint = f"try again in {_RETRY_AFTER} s, or raise web.threads"
        if kind is Kind.FOLLOWER:
            hint += "; GET /operations/ID?wait=30 waits too"
        return Busy(Code.UNAVAILABLE, f"too many {kind.value}", hint=hint, retry_after=_RETRY_AFTER)

    def _too_many(self, kind: Kind, most: int) -> Busy:
        if kind in (Kind.DOWNLOAD, Kind.DIAL):
            self._refusals.add("streams_per_user")
            message = f"the node already has {most} {kind.value}"
            return Busy(Code.TOO_MANY, message, hint="try again later", retry_after=_RETRY_AFTER)
        setting = "uploads_per_user" if kind is Kind.UPLOAD else "streams_per_user"
        self._refusals.add(setting)
        what = "uploads" if kind is Kind.UPLOAD else "consoles and followed operations"
        hint = f"close one of them and try again (limit: web.{setting})"
        return Busy(Code.TOO_MANY, f"you already have {most} {what} open", hint=hint, retry_after=_RETRY_AFTER)
