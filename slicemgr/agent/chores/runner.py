"""Run the chores: the tasks that the agent repeats beside the work on slivers, each at its own interval."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Self

from slicemgr.errors import SlicemgrError

log = logging.getLogger(__name__)


class First(Enum):
    """When a chore runs for the first time."""

    BEFORE_ALL = auto()  # the caller that enters the runner waits for this run
    AT_ONCE = auto()
    AFTER_INTERVAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """Work that is repeated until the agent ends.

    thread: the name of its thread; chores with the same name run in it one after another.
    run: does the work once. An SlicemgrError or OSError is logged, and the chore is repeated.
    interval: seconds from the end of a run to the next one; if `steady`, from start to start.
    longest: seconds up to which the interval doubles with each consecutive failure; None: it never changes.
    failure: the log's text before the error. each_failure: log every failure, not only the first of consecutive ones.
    grace: seconds that the end of the agent waits for a run in progress.
    """

    thread: str
    run: Callable[[], object]
    interval: float
    failure: str = ""
    each_failure: bool = False
    first: First = First.AFTER_INTERVAL
    steady: bool = False
    longest: float | None = None
    grace: float = 0.0


@dataclass(slots=True)
class Schedule:
    """The time at which one chore is due. Pure: `now` is in seconds of a monotonic clock."""

    chore: Chore
    due: float = 0.0
    failed: bool = False  # whether the last run failed
    _pause: float = field(init=False)

    def __post_init__(self) -> None:
        self._pause = self.chore.interval

    def begin(self, now: float) -> None:
        """Set the time of the first run."""
        self.due = now if self.chore.first is First.AT_ONCE else now + self.chore.interval

    def started(self, now: float) -> None:
        """Set the next time of a steady chore."""
        if self.chore.steady:
            self.due = max(self.due + self.chore.interval, now)

    def ended(self, now: float, *, failed: bool) -> None:
        """Record the outcome of a run, and set the next time of a chore that is not steady."""
        self.failed = failed
        longest = self.chore.longest
        self._pause = min(2 * self._pause, longest) if failed and longest is not None else self.chore.interval
        if not self.chore.steady:
            self.due = now + self._pause


def repeated(work: Iterable[tuple[float, str, Callable[..., object]]], *arguments: object) -> list[Chore]:
    """Chores of interval, thread and function, which gets `arguments`; each failure is logged with its name."""
    return [
        Chore(
            thread=thread,
            run=partial(function, *arguments),
            interval=interval,
            failure=function.__name__,
            each_failure=True,
        )
        for interval, thread, function in work
    ]


class Runner:
    """A context manager: repeats the chores until its end, with one thread per name."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._stop = threading.Event()
        self._before = [chore for chore in chores if chore.first is First.BEFORE_ALL]
        self._schedules: dict[str, list[Schedule]] = defaultdict(list)
        for chore in chores:
            self._schedules[chore.thread].append(Schedule(chore))
        self._threads = {
            name: threading.Thread(target=self._work, args=(schedules,), name=name, daemon=True)
            for name, schedules in self._schedules.items()
        }

    def __enter__(self) -> Self:
        for chore in self._before:
            _attempt(chore, failed_before=False)
        for name, thread in self._threads.items():
            for schedule in self._schedules[name]:
                schedule.begin(time.monotonic())
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for name, thread in self._threads.items():
            thread.join(max(schedule.chore.grace for schedule in self._schedules[name]))

    def _work(self, schedules: Sequence[Schedule]) -> None:
        while not self._stop.wait(max(0.0, min(one.due for one in schedules) - time.monotonic())):
            for schedule in schedules:
                now = time.monotonic()
                if schedule.due <= now:
                    schedule.started(now)
                    worked = _attempt(schedule.chore, failed_before=schedule.failed)
                    schedule.ended(time.monotonic(), failed=not worked)


def _attempt(chore: Chore, *, failed_before: bool) -> bool:
    """Run the chore once; whether it succeeded."""
    try:
        chore.run()
    except (SlicemgrError, OSError) as error:
        if chore.each_failure or not failed_before:
            log.error("%s", f"{chore.failure}: {error}" if chore.failure else error)
        return False
    return True
