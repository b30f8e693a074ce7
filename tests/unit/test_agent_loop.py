"""The scheduler continues after any error of the comparison of host and rows, and compares no more than it has to."""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from bare_service import Service, service, settings

from slicemgr import names
from slicemgr.agent.journal import Journal
from slicemgr.agent.repairs import Repair
from slicemgr.agent.scheduler import Scheduler
from slicemgr.ipc.wake import wake
from slicemgr.model import OperationState, Sliver
from slicemgr.store import pending
from slicemgr.store.diagnosis import StoreError


@pytest.mark.parametrize("error", [OSError("a file went"), StoreError("it restarts", "wait"), ValueError("a bug")])
def test_a_comparison_that_fails_is_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    config = settings(tmp_path)
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, reconcile=timedelta(milliseconds=10)))
    config.node.run_dir.mkdir(parents=True, exist_ok=True)
    stop, comparisons = threading.Event(), []

    class Reconciler:
        def compare(self, slivers: Sequence[Sliver], busy: Callable[[str], bool]) -> None:
            comparisons.append(len(slivers))
            if len(comparisons) == 1:
                raise error
            stop.set()

    rest: Any = None
    with service(config) as store, Journal(store, "node1") as journal, caplog.at_level(logging.ERROR):
        Scheduler(config, store, journal, rest, Reconciler(), rest, stop).run()  # type: ignore[arg-type]
    assert comparisons == [0, 0]
    assert str(error) in caplog.text


class Comparisons:
    """A reconciler that notes what it is asked, and finds nothing."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[set[str] | None] = queue.SimpleQueue()  # None: all slivers

    def compare(self, slivers: Sequence[Sliver], busy: Callable[[str], bool]) -> None:
        self.asked.put(None)

    def check(self, slivers: Sequence[Sliver], busy: Callable[[str], bool]) -> Iterator[Repair]:
        self.asked.put({sliver.id for sliver in slivers if not busy(sliver.id)})
        return iter(())


def test_a_changed_domain_causes_the_check_of_its_sliver(tmp_path: Path) -> None:
    """A comparison of the node would cost as much as all slivers on it."""
    stop, reconciler, rest = threading.Event(), Comparisons(), cast(Any, None)
    with Service(tmp_path) as service, Journal(service.store, "node1") as journal:
        created = service.create("exp", count=2)
        service.record(pending.OperationEnded(created, OperationState.DONE), node="node1")
        slivers = [row.sliver.id for row in service.rows()]
        others = [f"{number:08d}-0".translate(str.maketrans("01", "ab")) for number in range(40)]
        for sliver in (*slivers, *others):
            names.sliver_dir(service.config.node.pool, sliver).mkdir(parents=True)
        scheduler = Scheduler(service.config, service.store, journal, rest, cast(Any, reconciler), rest, stop)
        thread = threading.Thread(target=scheduler.run)
        thread.start()
        try:
            assert reconciler.asked.get(timeout=60) is None
            scheduler.changed(slivers[1])
            assert reconciler.asked.get(timeout=60) == {slivers[1]}
            scheduler.changed(others[0])
            assert reconciler.asked.get(timeout=60) is None, "it has no row"
            for sliver in others:
                scheduler.changed(sliver)
            assert reconciler.asked.get(timeout=60) is None, "many at once"
        finally:
            stop.set()
            wake(service.config.wake_socket)
            thread.join(60)
    assert reconciler.asked.empty()
