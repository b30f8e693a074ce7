"""Old history is deleted; unfinished and recent rows stay."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import Service

from slicemgr.config import StoreConfig
from slicemgr.model import OperationState
from slicemgr.service import due
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


LARGE = ("slices", "slivers", "operations", "operation_parts", "operation_slivers", "events", "ports", "samples")


def scans(service: Service) -> list[str]:
    """The steps of SQLite's plans in which a large table is read as a whole, for all that is due each minute."""
    noted: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: Any, _x: object, many: bool) -> None:
        noted.append((statement, parameters[0] if many else parameters))

    sa.event.listen(service.store.engine, "before_cursor_execute", note)
    for _, _, work_due in due.WORK:
        work_due(service.store, service.config)
    sa.event.remove(service.store.engine, "before_cursor_execute", note)
    with service.store.read() as c:
        plans = [c.exec_driver_sql(f"EXPLAIN QUERY PLAN {one}", parameters).all() for one, parameters in noted]
    steps = [str(row[3]) for plan in plans for row in plan]
    return [step for step in steps if step.startswith("SCAN ") and step.split()[1] in LARGE]


@pytest.mark.parametrize("each_store", ["sqlite"], indirect=True)  # plans of PostgreSQL depend on the number of rows
def test_no_large_table_is_read_for_what_is_due(service: Service) -> None:
    service.create()
    assert scans(service) == []
    with service.store.write() as c:
        c.exec_driver_sql("DROP INDEX ix_slices_expires_at")
        c.exec_driver_sql("DROP INDEX ix_events_at")
    service.store.engine.dispose()  # connections keep prepared statements with their plans
    assert {step.split()[1] for step in scans(service)} == {"slices", "events"}, "control"
