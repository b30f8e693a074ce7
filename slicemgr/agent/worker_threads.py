"""Threads for work on slivers: one job at a time and in order for one sliver, in parallel for different slivers.

The part of a job that only waits (for a banner) continues in a second, larger pool, so that it never occupies a worker
that could create the next sliver. A job that takes longer than 10 s no longer counts as one of the workers: it
continues in a spare thread, of which there are 64. So a few slivers that block their own jobs cannot stop the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

log = logging.getLogger(__name__)

_WAITING = 64  # threads for parts of jobs that only wait
_LONG = 10.0  # seconds after which a job no longer counts against the number of workers
_SPARE = 64  # jobs, at most, that do not count
_CHECK_INTERVAL = 1.0  # seconds between checks for such jobs

Rest = Callable[[], None]
Job = Callable[[], Rest | None]
Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class _Turn:
    sliver: str
    job: Job
    done: Done


class Turns:
    """Queues of jobs by sliver. `done` is called once for each job, with its exception or None."""

    def __init__(self, workers: int, long: float = _LONG) -> None:
        """workers: number of concurrent jobs. long: seconds after which a job no longer counts as one of them."""
        self._workers = ThreadPoolExecutor(workers + _SPARE, "worker")
        self._waiting = ThreadPoolExecutor(_WAITING, "waiting")
        self._long = long
        self._free = workers
        self._spare = _SPARE
        self._next: deque[_Turn] = deque()  # turns without a worker
        self._since: dict[int, float] = {}  # job that counts, by the id of its turn → its start
        self._queues: dict[str, deque[_Turn]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._relieve, name="turns", daemon=True).start()

    def add(self, sliver: str, job: Job, done: Done) -> None:
        """Run `job` after all earlier jobs of this sliver; the function that it returns runs as its second part."""
        turn = _Turn(sliver, job, done)
        with self._lock:
            queue = self._queues.setdefault(sliver, deque())
            queue.append(turn)
            first = len(queue) == 1
        if first:
            self._begin(turn)

    def busy(self, sliver: str) -> bool:
        """Whether the sliver has a turn in progress or in its queue."""
        with self._lock:
            return sliver in self._queues

    def shutdown(self) -> None:
        """Discard the turns that have not begun; those in progress continue to their ends."""
        self._ended.set()
        with self._lock:
            self._next.clear()
        for pool in (self._workers, self._waiting):
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, turn: _Turn) -> None:
        with self._lock:
            self._next.append(turn)
        self._fill()

    def _fill(self) -> None:
        """Start the next turns on the free workers.

        Jobs are submitted without the lock: one may end before its callback is added, which then runs in this thread.
        """
        fresh = []
        with self._lock:
            while self._next and self._free:
                turn = self._next.popleft()
                self._free -= 1
                self._since[id(turn)] = time.monotonic()
                fresh.append(turn)
        for turn in fresh:
            with suppress(RuntimeError):  # shut down in the meantime
                self._workers.submit(turn.job).add_done_callback(partial(self._half, turn))

    def _relieve(self) -> None:
        """While turns wait for a worker, free the places of jobs that take longer than `long`."""
        while not self._ended.wait(min(_CHECK_INTERVAL, self._long)):
            with self._lock:
                late = time.monotonic() - self._long
                long = [turn for turn, since in self._since.items() if since < late] if self._next else []
                long = long[: self._spare]
                for turn in long:
                    del self._since[turn]
                self._spare -= len(long)
                self._free += len(long)
            if long:
                log.warning(
                    "%d jobs take longer than %.0f s; other jobs start without waiting for them", len(long), self._long
                )
                self._fill()

    def _half(self, turn: _Turn, future: Future[Rest | None]) -> None:
        with self._lock:
            if self._since.pop(id(turn), None) is None:
                self._spare += 1
            else:
                self._free += 1
        self._fill()
        if future.cancelled():
            return
        rest = None if future.exception() else future.result()
        if rest is None:
            self._end(turn, future.exception())
        else:
            self._waiting.submit(rest).add_done_callback(lambda last: self._whole(turn, last))

    def _whole(self, turn: _Turn, future: Future[None]) -> None:
        if not future.cancelled():
            self._end(turn, future.exception())

    def _end(self, turn: _Turn, error: BaseException | None) -> None:
        turn.done(error)
        with self._lock:
            queue = self._queues[turn.sliver]
            queue.popleft()
            following = queue[0] if queue else None
            if following is None:
                del self._queues[turn.sliver]
        if following is not None:
            self._begin(following)
