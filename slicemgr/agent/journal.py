"""The agent's only writer to the store.

One thread writes what workers report, in order. Reports of begun operations, steps, phases and deleted slivers wait a
moment to share a transaction, and on a node that has joined a testbed a report to the centre. Any other, such as the
end of an operation, is written at once, with all that were queued before. A report that is lost in a crash is made
again when the host is observed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from slicemgr.ipc.wake import wake
from slicemgr.store import Store, StoreError, outbox, pending

log = logging.getLogger(__name__)

_SHARING = 0.05  # seconds that such a report waits for others
_MAY_WAIT = (pending.OperationStarted, pending.StepSeen, pending.SliverSeen, pending.SliverGone)
_RETRY = 0.5  # seconds between attempts while the database refuses writes


class Journal:
    """A queue of updates with its writer thread. A context manager; its end writes all queued updates.

    node: the name of the agent's node. broken: called if the writer ends with an error other than StoreError: no work
    may continue unreported. link: the socket of `slicemgr link`, if the updates are also for the centre of a testbed.
    """

    def __init__(
        self, store: Store, node: str, broken: Callable[[], None] = lambda: None, link: Path | None = None
    ) -> None:
        self._store = store
        self._node = node
        self._broken = broken
        self._link = link
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
        """Write until it succeeds; False if the agent is stopping and the database still refuses the write."""
        while True:
            try:
                with self._store.write() as connection:
                    if self._link is not None:
                        outbox.add(connection, batch)
                    pending.record(connection, batch, self._node)
                if self._link is not None:
                    wake(self._link)
                return True
            except StoreError as error:
                log.error("cannot write %d updates: %s", len(batch), error)
                with self._changed:
                    if self._changed.wait_for(lambda: self._closing, _RETRY):
                        return False
