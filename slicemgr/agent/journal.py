"""The agent's one writer to the store.

What workers report is queued and written by one thread, in order. Reports of steps and phases wait a moment to share a
transaction; any other report is written at once, with all that was queued before.
A report that is lost in a crash is made again when the host is observed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from slicemgr.store import Store, StoreError, pending

log = logging.getLogger(__name__)

_SHARING = 0.05  # seconds that such a report waits for others
_MAY_WAIT = (pending.StepSeen, pending.SliverSeen)
_RETRY = 0.5  # seconds between attempts while the database does not take a write


class Journal:
    """Queue of updates with its writer thread. Use as a context manager; its end writes what is queued.

    broken: called if the writer ends by an error that does not go away by waiting: no work may go on unreported.
    """

    def __init__(self, store: Store, broken: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._broken = broken
        self.broke = False
        self._queued: list[pending.Update] = []
        self._changed = threading.Condition()
        self._written = 0
        self._accepted = 0
        self._flushing = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def __enter__(self) -> Journal:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=30)

    def add(self, *updates: pending.Update) -> None:
        """Queue updates; they are written in this order, together or in later transactions."""
        with self._changed:
            self._queued.extend(updates)
            self._accepted += len(updates)
            self._changed.notify_all()

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything queued so far is committed; False if that took longer than `timeout` seconds."""
        with self._changed:
            target = self._accepted
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: self._written >= target, timeout)
            finally:
                self._flushing -= 1

    def _run(self) -> None:
        try:
            while batch := self._next():
                if not self._write(batch):
                    return
                with self._changed:
                    self._written += len(batch)
                    self._changed.notify_all()
        finally:
            if not self._closing:
                self.broke = True
                self._broken()

    def _next(self) -> Sequence[pending.Update]:
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._closing)
            self._changed.wait_for(self._hurries, _SHARING)
            batch, self._queued = self._queued, []
            return batch

    def _hurries(self) -> bool:
        return self._closing or self._flushing > 0 or not all(isinstance(one, _MAY_WAIT) for one in self._queued)

    def _write(self, batch: Sequence[pending.Update]) -> bool:
        """Write until it works; False when the agent is being stopped and the database still refuses."""
        while True:
            try:
                with self._store.write() as connection:
                    pending.record(connection, batch)
                return True
            except StoreError as error:
                log.error("cannot write %d updates: %s", len(batch), error)
                with self._changed:
                    if self._changed.wait_for(lambda: self._closing, _RETRY):
                        return False
