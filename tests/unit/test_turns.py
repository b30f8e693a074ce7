"""Turns: in order for one sliver, side by side across slivers, every end told once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from slicemgr.agent.turns import Turns

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
