"""The steps that an import reports: each ends, and the one that broke is marked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bare_service import Service

from slicemgr.agent.acceleration import Machines
from slicemgr.agent.images import Importer, Steps
from slicemgr.agent.journal import Journal
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Failed
from slicemgr.model import OperationState
from slicemgr.service.views import operations
from slicemgr.store import pending


class Import:
    """An import of four bytes, whose operation has a row."""

    def __init__(self, service: Service, journal: Journal, sha256: str) -> None:
        self.service, self.journal, self.stop = service, journal, threading.Event()
        service.create("exp")
        with service.store.read() as c:
            row = pending.pending_operations(c, "node1")[0]
        self.operation = replace(row, kind="image-import", image=sha256, params={"format": "raw"})
        self.config = service.config
        (self.config.uploads_dir / f"{sha256}.raw").write_bytes(b"disk")

    def run(self) -> None:
        pool, machines = Pool(self.config.node.pool), Machines(self.config)
        Importer(self.config, pool, self.journal, machines, self.stop).add(self.operation)

    def steps(self) -> list[dict[str, Any]]:
        assert self.journal.flush()
        with self.service.store.read() as c:
            return list(operations.operation(c, self.operation.id)["steps"])


@pytest.fixture
def changed(tmp_path: Path) -> Iterator[Import]:
    """An import of a file that is not the one that was sent."""
    with Service(tmp_path) as service, Journal(service.store, "node1") as journal:
        yield Import(service, journal, "cd" * 32)


def test_the_step_that_broke_is_marked(changed: Import) -> None:
    with pytest.raises(Failed, match="has changed"):
        changed.run()
    (step,) = changed.steps()
    assert (step["name"], step["state"], step["detail"]) == (
        "check",
        "failed",
        "the uploaded file has changed (import the image again)",
    )
    assert step["seconds"] is not None, "it has ended"


def test_an_agent_that_stops_marks_nothing(changed: Import) -> None:
    """The control: its successor continues the import."""
    changed.stop.set()
    with pytest.raises(Failed):
        changed.run()
    assert [one["state"] for one in changed.steps()] == ["running"]


def test_each_step_ends_when_the_next_begins(changed: Import) -> None:
    steps = Steps(changed.journal, changed.operation.id)
    seen = []
    for name, percent in (("check", 0), ("check", 60), ("inspect", None), ("extract", 10)):
        steps(name, percent)
        seen.append([(one["name"], one["state"], one["percent"]) for one in changed.steps()])
    assert seen[1:] == [
        [("check", "running", 60)],
        [("check", "done", 100), ("inspect", "running", None)],
        [("check", "done", 100), ("inspect", "done", 100), ("extract", "running", 10)],
    ]
    steps.end(OperationState.FAILED, "the pool is full")
    assert [one["state"] for one in changed.steps()] == ["done", "done", "failed"]
    assert changed.steps()[2]["detail"] == "the pool is full"
