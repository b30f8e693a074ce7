"""The scheduler continues after any error of the comparison of host and rows."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bare_service import service, settings

from slicemgr.agent.journal import Journal
from slicemgr.agent.scheduler import Scheduler
from slicemgr.model import Sliver
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
