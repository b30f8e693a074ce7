"""The audit uses at most half of the limits that slivers share with the node."""

from __future__ import annotations

from typing import Any

import pytest

from slicemgr.audit import shared


@pytest.mark.parametrize(
    ("tables", "most"),
    [
        ({"inotify": {"limit": 4096}}, 1100),  # tools/units/90-slicemgr.conf
        ({"inotify": {"limit": 128}}, 64),  # Linux's default: root's own watches need the rest
        ({"inotify": {"limit": None}}, 1100),
        ({}, 1100),
    ],
)
def test_an_attacker_leaves_half_of_the_inotify_instances(tables: dict[str, Any], most: int) -> None:
    assert shared._inotify_at_most(tables, 1100) == most
