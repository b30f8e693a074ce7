"""The runner of chores: their times, shared threads, log entries, and end."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bare_service import settings

from slicemgr import agent_process
from slicemgr.agent.chores.runner import Chore, First, Runner, Schedule
from slicemgr.config import CENTRE, HubConfig
from slicemgr.errors import Failed
from slicemgr.hub.chores import chores as hub_chores

PATIENCE = 30.0


def chore(run: Callable[[], object] = lambda: None, **fields: Any) -> Chore:
    return Chore(**{"thread": "one", "interval": 10.0, **fields}, run=run)


@pytest.mark.parametrize(
    ("first", "due"), [(First.AT_ONCE, 100.0), (First.AFTER_INTERVAL, 110.0), (First.BEFORE_ALL, 110.0)]
)
def test_the_first_run(first: First, due: float) -> None:
    schedule = Schedule(chore(first=first))
    schedule.begin(100.0)
    assert schedule.due == due


def test_the_interval_begins_when_a_run_has_ended_unless_it_is_steady() -> None:
    for steady, due in ((False, 117.0), (True, 110.0)):
        schedule = Schedule(chore(first=First.AT_ONCE, steady=steady))
        schedule.begin(100.0)
        schedule.started(100.0)
        schedule.ended(107.0, failed=False)
        assert schedule.due == due


def test_a_steady_chore_that_took_longer_makes_up_for_nothing() -> None:
    schedule = Schedule(chore(first=First.AT_ONCE, steady=True))
    schedule.begin(100.0)
    schedule.started(100.0)
    schedule.ended(145.0, failed=False)
    assert schedule.due == 110.0
    schedule.started(145.0)
    assert schedule.due == 145.0
    schedule.started(145.0)
    assert schedule.due == 155.0


def test_the_interval_doubles_with_failures_up_to_the_longest() -> None:
    schedule, plain = Schedule(chore(longest=60.0)), Schedule(chore())
    pauses = []
    for failed in (True, True, True, True, False, True):
        schedule.ended(100.0, failed=failed)
        plain.ended(100.0, failed=failed)
        pauses.append(schedule.due - 100.0)
        assert plain.due == 110.0
    assert pauses == [20.0, 40.0, 60.0, 60.0, 10.0, 20.0]


def test_what_comes_before_all_has_run_when_the_runner_is_entered() -> None:
    ran: list[str] = []

    def run() -> None:
        ran.append(threading.current_thread().name)

    with Runner([chore(run, first=First.BEFORE_ALL, interval=3600.0)]):
        assert ran == [threading.current_thread().name]


def test_a_chore_that_hangs_delays_its_own_thread_alone() -> None:
    hangs, release, again = threading.Event(), threading.Event(), threading.Event()
    others: list[None] = []

    def hang() -> None:
        hangs.set()
        release.wait(PATIENCE)

    def count() -> None:
        others.append(None)
        if hangs.is_set() and len(others) > 3:
            again.set()

    behind: list[str] = []
    chores = [
        chore(hang, thread="mail", interval=0.001),
        chore(lambda: behind.append(threading.current_thread().name), thread="mail", interval=0.001),
        chore(count, thread="leases", interval=0.001),
    ]
    with Runner(chores):
        assert again.wait(PATIENCE)
        assert behind == []
        release.set()
        waited = threading.Event()
        while not behind and not waited.wait(0.01):
            pass
    assert set(behind) == {"mail"}


@pytest.mark.parametrize(("each", "lines"), [(False, ["it: away", "it: away"]), (True, ["it: away"] * 4)])
def test_failures_in_a_row_are_logged_once_or_each(
    caplog: pytest.LogCaptureFixture, each: bool, lines: list[str]
) -> None:
    outcomes: list[Exception | None] = [Failed("away"), OSError("away"), None, OSError("away"), Failed("away")]
    done = threading.Event()

    def run() -> None:
        if not outcomes:
            done.set()
        elif (outcome := outcomes.pop(0)) is not None:
            raise outcome

    with caplog.at_level(logging.ERROR), Runner([chore(run, interval=0.001, failure="it", each_failure=each)]):
        assert done.wait(PATIENCE)
    assert caplog.messages == lines


def test_the_end_waits_for_a_run_under_way_as_long_as_the_chore_says() -> None:
    under_way, release, ended = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        under_way.set()
        release.wait(PATIENCE)
        ended.set()

    with Runner([chore(run, first=First.AT_ONCE, grace=PATIENCE)]):
        assert under_way.wait(PATIENCE)
        threading.Timer(0.1, release.set).start()
    assert ended.is_set()

    for event in (under_way, release, ended):
        event.clear()
    with Runner([chore(run, first=First.AT_ONCE)]):
        assert under_way.wait(PATIENCE)
    assert not ended.is_set()
    release.set()
    assert ended.wait(PATIENCE)


def test_the_rows_chores_of_the_agent(tmp_path: Path) -> None:
    nothing: Any = None
    chores = agent_process.row_chores(settings(tmp_path), nothing)
    assert [(one.failure, one.interval) for one in chores] == [
        *((name, 60.0) for name in ("expire", "forget", "act", "notify", "deliver")),
        ("fill", 5.0),
    ]
    threads = {one.failure: one.thread for one in chores}
    assert threads["expire"] == threads["forget"] != threads["notify"] == threads["deliver"]


def test_the_rows_chores_are_the_hubs(tmp_path: Path) -> None:
    """In a testbed with a broker; and a node that has joined one has no leases to end."""
    nothing: Any = None
    config = settings(tmp_path)
    with_hub = dataclasses.replace(config, hub=HubConfig(broker="testbed.example:5671"))
    assert agent_process.row_chores(with_hub, nothing) == []
    config.membership_dir.mkdir(parents=True)
    (config.membership_dir / CENTRE).touch()
    assert agent_process.row_chores(config, nothing) == []
    names = {"expire", "forget", "act", "notify", "deliver", "fill"}
    assert {one.failure for one in hub_chores(config, nothing)} == names
