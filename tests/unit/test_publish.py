"""Publication to the packet filter: a failed write does not count as done."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from test_plan import sliver

from slicemgr.agent.publisher import Publisher, published
from slicemgr.drivers.network.firewall_rules import Published
from slicemgr.errors import Failed
from slicemgr.model import Desired

ONE = sliver(Desired.RUNNING)


class Kernel:
    """A firewall whose next write may break."""

    def __init__(self) -> None:
        self.rules: set[Published] = set()
        self.breaks = False

    def replace(self, asked: Callable[[], Collection[Published]], *, full: bool = False) -> None:
        if self.breaks:
            raise Failed("the table is locked")
        self.rules = set(asked())


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def publisher(kernel: Kernel) -> Publisher:
    firewall: Any = kernel
    return Publisher(firewall)


def test_a_publication_that_broke_is_tried_again(kernel: Kernel, publisher: Publisher) -> None:
    kernel.breaks = True
    with pytest.raises(Failed):
        publisher.publish(ONE)
    kernel.breaks = False
    publisher.publish(ONE)
    assert kernel.rules == {published(ONE)}


def test_a_withdrawal_that_broke_is_tried_again(kernel: Kernel, publisher: Publisher) -> None:
    publisher.publish(ONE)
    kernel.breaks = True
    with pytest.raises(Failed):
        publisher.withdraw(ONE.id)
    kernel.breaks = False
    publisher.withdraw(ONE.id)
    assert kernel.rules == set()
