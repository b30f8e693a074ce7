"""Threads for work on slivers: serial and in order for one sliver, parallel across slivers.

Work that only waits (for a banner) goes on in a second, larger pool, so that it never keeps a worker from
making the next sliver.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

_WAITING = 64  # threads that only wait

Rest = Callable[[], None]
Job = Callable[[], Rest | None]
Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class _Turn:
    sliver: str
    job: Job
    done: Done


class Turns:
    """Queues of jobs by sliver. `done` is called once for each job, with what it raised or None."""

    def __init__(self, workers: int) -> None:
        self._workers = ThreadPoolExecutor(workers, "worker")
        self._waiting = ThreadPoolExecutor(_WAITING, "waiting")
        self._queues: dict[str, deque[_Turn]] = {}
        self._lock = threading.Lock()

    def add(self, sliver: str, job: Job, done: Done) -> None:
        """Run `job` after everything added before for this sliver; what it returns runs as its second half."""
        turn = _Turn(sliver, job, done)
        with self._lock:
            queue = self._queues.setdefault(sliver, deque())
            queue.append(turn)
            first = len(queue) == 1
        if first:
            self._begin(turn)

    def busy(self, sliver: str) -> bool:
        with self._lock:
            return sliver in self._queues

    def shutdown(self) -> None:
        """Take no more turns; those under way end by themselves."""
        for pool in (self._workers, self._waiting):
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, turn: _Turn) -> None:
        self._workers.submit(turn.job).add_done_callback(lambda future: self._half(turn, future))

    def _half(self, turn: _Turn, future: Future[Rest | None]) -> None:
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
