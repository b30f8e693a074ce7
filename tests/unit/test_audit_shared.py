"""The audit uses at most half of the limits that slivers share with the node."""

from __future__ import annotations

import pytest

from slicemgr.audit import shared


@pytest.mark.parametrize(
    ("table", "numbers"),
    [
        ({"limit": 4096}, (1100, 64)),  # tools/units/90-slicemgr.conf
        ({"limit": 128}, (64, 65)),  # Linux's default: root's own watches need the rest
        ({"limit": 129}, (64, 66)),
        ({"limit": None}, (1100, 64)),
        ({}, (1100, 64)),
    ],
)
def test_an_attacker_leaves_half_of_the_inotify_instances(
    table: dict[str, int | None], numbers: tuple[int, int]
) -> None:
    """And the neighbour requests enough to miss some where both are the same user."""
    assert shared._numbers(table, 1100, 64) == numbers
