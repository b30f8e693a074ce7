"""The memory controller reads groups as often as its share of a processor allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_service import Service

from slicemgr.agent.chores.memory import MemoryController

TOTAL = 1000
COST = 0.05  # seconds of processor time of each reading


class Controller(MemoryController):
    """A controller of a node with the given available memory, whose readings take some processor time."""

    available, used = TOTAL, 0.0

    def __init__(self, service: Service) -> None:
        super().__init__(service.config, service.store, lambda: (TOTAL, self.available, 0), lambda: self.used)

    def reads(self, now: float) -> bool:
        """Whether the step reads the groups."""
        return self.step(now) is not None

    def _tell(self, *args: object) -> None:
        self.used += COST


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with Service(tmp_path) as service:
        yield Controller(service)


def test_readings_cost_one_percent(controller: Controller) -> None:
    controller.available = 80  # between the marks
    times = [now for now in range(100) if controller.reads(float(now))]
    assert len(times) * COST <= 100 * 0.01 + COST
    assert len(times) > 10, "and it uses its share"


def test_a_node_with_plenty_is_not_read(controller: Controller) -> None:
    assert not any(controller.reads(float(now)) for now in range(10))


def test_a_node_that_is_short_is_read_in_each_step(controller: Controller) -> None:
    controller.available = 50
    assert all(controller.reads(float(now)) for now in range(10))
    controller.available = 200
    assert controller.reads(10.0), "so that it is known at once that there is enough again"
