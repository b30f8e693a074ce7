"""The agent's loop goes on whatever a look at the node runs into."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bare_service import service, settings

from slicemgr.agent.journal import Journal
from slicemgr.agent.scheduler import Agent
from slicemgr.store import pending
from slicemgr.store.diagnosis import StoreError


@pytest.mark.parametrize("error", [OSError("a file went"), StoreError("it restarts", "wait"), ValueError("a bug")])
def test_a_look_that_breaks_is_one_look(tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    config = settings(tmp_path)
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, reconcile=timedelta(milliseconds=10)))
    config.node.run_dir.mkdir(parents=True, exist_ok=True)
    stop, looks = threading.Event(), []

    def look(agent: Agent, rows: Sequence[pending.SliverRow]) -> None:
        looks.append(len(rows))
        if len(looks) == 1:
            raise error
        stop.set()

    nothing: Any = None
    with service(config) as store, Journal(store) as journal, caplog.at_level(logging.ERROR):
        Agent(config, store, journal, nothing, nothing, nothing, stop).run(look)
    assert looks == [0, 0]
    assert str(error) in caplog.text
