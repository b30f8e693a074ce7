"""Turns: in order for one sliver, concurrent for different slivers, every end reported once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from slicemgr.agent.worker_threads import Turns

PATIENCE = 20.0  # seconds after which a test gives up


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns(2)
    yield made
    made.shutdown()


def test_one_sliver_in_order_and_every_end_told_once(turns: Turns) -> None:
    order: list[int] = []
    ends: list[BaseException | None] = []
    over = threading.Event()

    def done(error: BaseException | None) -> None:
        ends.append(error)
        if len(ends) == 30:
            over.set()

    for number in range(30):
        turns.add("a", lambda number=number: order.append(number), done)  # type: ignore[misc]
    assert over.wait(PATIENCE)
    assert order == list(range(30))
    assert ends == [None] * 30


def test_two_slivers_run_at_the_same_time(turns: Turns) -> None:
    together = threading.Barrier(3)
    ends: list[BaseException | None] = []
    for name in "ab":
        turns.add(name, lambda: (together.wait(PATIENCE), None)[1], ends.append)
    together.wait(PATIENCE)  # breaks unless both jobs are there
    assert not together.broken


def test_what_fails_is_told_and_the_next_one_runs(turns: Turns) -> None:
    ends: list[BaseException | None] = []
    over = threading.Event()

    def breaks() -> None:
        raise ValueError("half way")

    turns.add("a", breaks, ends.append)
    turns.add("a", lambda: breaks, ends.append)

    def last(error: BaseException | None) -> None:
        ends.append(error)
        over.set()

    turns.add("a", lambda: None, last)
    assert over.wait(PATIENCE)
    assert [type(one) for one in ends] == [ValueError, ValueError, type(None)]


def test_waiting_keeps_no_worker_but_keeps_the_sliver(turns: Turns) -> None:
    release, first, other, second = (threading.Event() for _ in range(4))

    def wait() -> None:
        release.wait(PATIENCE)

    for name in "abc":  # more than there are workers
        turns.add(name, lambda: wait, lambda _: first.set())
    turns.add("a", lambda: second.set(), lambda _: None)
    turns.add("d", lambda: other.set(), lambda _: None)
    assert other.wait(PATIENCE)
    assert turns.busy("a") and not second.is_set() and not first.is_set()
    release.set()
    assert second.wait(PATIENCE)


def test_jobs_that_take_very_long_do_not_keep_the_others_from_a_worker() -> None:
    """More of them than there are workers. The control: workers that are never relieved."""
    for long, reached in ((0.2, True), (PATIENCE * 10, False)):
        turns, release, other = Turns(2, long), threading.Event(), threading.Event()
        ends: list[BaseException | None] = []
        try:
            for name in "abcd":
                turns.add(name, lambda release=release: (release.wait(PATIENCE), None)[1], ends.append)  # type: ignore[misc]
            turns.add("victim", lambda other=other: other.set(), lambda _: None)  # type: ignore[misc]
            assert other.wait(PATIENCE if reached else 2) is reached
            assert not ends
            release.set()
            assert other.wait(PATIENCE)
        finally:
            release.set()
            turns.shutdown()


def test_relieved_workers_are_not_more_than_before_in_the_end() -> None:
    turns, release = Turns(2, 1.0), threading.Event()  # a quick job takes less, also on a loaded host
    counts = [0, 0]  # at work now, and at most
    lock, ended = threading.Lock(), threading.Semaphore(0)

    def work() -> None:
        with lock:
            counts[0] += 1
            counts[1] = max(counts)
        time.sleep(0.01)
        with lock:
            counts[0] -= 1

    try:
        for number in range(4):
            turns.add(f"slow{number}", lambda: (release.wait(PATIENCE), None)[1], lambda _: ended.release())
        turns.add("after", lambda: None, lambda _: ended.release())
        assert ended.acquire(timeout=PATIENCE)  # that one
        release.set()
        assert all(ended.acquire(timeout=PATIENCE) for _ in range(4))
        for number in range(40):
            turns.add(f"quick{number}", work, lambda _: ended.release())
        assert all(ended.acquire(timeout=PATIENCE) for _ in range(40))
        assert counts[1] <= 2
    finally:
        turns.shutdown()
