"""Old history is deleted; unfinished and recent rows stay."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from bare_service import Service

from slicemgr.config import StoreConfig
from slicemgr.model import OperationState
from slicemgr.service.leases import leases
from slicemgr.service.nodes import retention
from slicemgr.store import pending as work
from slicemgr.store.updates import utcnow

pytestmark = pytest.mark.usefixtures("each_store")

DAY = timedelta(days=1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, store=StoreConfig(keep_operations=10 * DAY, keep_events=20 * DAY)) as made:
        leases.expire(made.store, made.config)  # the first reading of the clock
        yield made


def test_ended_operations_go_with_their_steps_and_events_later(service: Service) -> None:
    ended, pending = service.create("ended"), service.create("pending")
    sliver = service.rows()[0].sliver.id
    service.record(
        work.StepSeen(ended, sliver, "root", OperationState.DONE), work.OperationEnded(ended, OperationState.DONE)
    )
    assert retention.forget(service.store, service.config, utcnow() + 9 * DAY) == 0
    assert retention.forget(service.store, service.config, utcnow() + 11 * DAY) == 1
    assert [row[0] for row in service.dump()["operations"]] == [pending]
    assert (service.count("operation_steps"), service.count("events")) == (0, 2)
    assert retention.forget(service.store, service.config, utcnow() + 21 * DAY) == 2
    assert (service.count("operations"), service.count("events"), service.count("slices")) == (1, 0, 2)


def test_a_clock_that_jumped_makes_nobody_forget(service: Service) -> None:
    service.create()
    leases.expire(service.store, service.config, utcnow() + 3650 * DAY)
    assert retention.forget(service.store, service.config, utcnow() + 3650 * DAY) == 0
    assert service.count("events") > 0


def test_much_is_forgotten_in_small_parts(service: Service) -> None:
    service.record(*(work.EventSeen("x", str(number)) for number in range(501)))
    later = utcnow() + 30 * DAY
    assert retention.forget(service.store, service.config, later) == 500
    assert retention.forget(service.store, service.config, later) == 1
    assert retention.forget(service.store, service.config, later) == 0
