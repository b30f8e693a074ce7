"""Checks of the node whose verdict depends only on figures."""

from __future__ import annotations

import pytest

from slicemgr.agent.checks.kernel import control_groups
from slicemgr.agent.checks.network import connections, neighbours
from slicemgr.config import NetworkConfig

NETWORK = NetworkConfig(connections=4096)


@pytest.mark.parametrize(
    ("limit", "used", "published", "ok"),
    [
        (262144, 100, 0, True),
        (262144, 100, 20, True),
        (262144, 100, 100, None),
        (1 << 20, 100, 100, True),
        (262144, 250_000, 20, None),
        (32768, 100, 0, None),
        (None, 100, 0, None),
        (262144, None, 0, None),
    ],
)
def test_the_table_of_connections_has_room_for_all_shares(
    limit: int | None, used: int | None, published: int, ok: bool | None
) -> None:
    assert connections(NETWORK, limit, used, published, {}).ok is ok


def test_what_would_be_enough_for_the_slivers_is_said() -> None:
    check = connections(NETWORK, 262144, 7, 100, {})
    assert check.remedy.startswith("sysctl -w net.netfilter.nf_conntrack_max=851968, or lower network.connections")
    assert "262144, 7 in use; 100 slivers can use up to 8192 each" in check.detail


def test_slivers_at_their_limit_are_named_the_busiest_first() -> None:
    busiest = {f"aaaaaaaa-{number}": 4096 + number for number in range(7)}
    detail = connections(NETWORK, 262144, 7, 8, busiest).detail
    assert "at their limit: aaaaaaaa-6 (4102), aaaaaaaa-5 (4101)," in detail and detail.endswith(" and 2 more")
    assert "at their limit" not in connections(NETWORK, 262144, 7, 8, {}).detail


@pytest.mark.parametrize(
    ("limit", "used", "path_filter", "ok"),
    [
        (65536, 20, 0, True),
        (65536, 20, 1, True),
        (65536, None, 0, True),
        (65536, 20, 2, None),
        (1024, 20, 0, None),
        (65536, 60_000, 0, None),
        (None, None, 0, None),
        (None, None, 2, None),
    ],
)
def test_the_table_of_neighbours_has_room_and_takes_no_forged_ones(
    limit: int | None, used: int | None, path_filter: int, ok: bool | None
) -> None:
    check = neighbours(limit, used, path_filter)
    assert check.ok is ok
    assert ("all.rp_filter=0" in check.remedy) is (path_filter == 2)


@pytest.mark.parametrize(
    ("version", "present", "registers", "ok", "says"),
    [
        ("v2", ("memory", "cpu", "pids", "io"), True, True, "cgroup v2"),
        ("v2", ("cpu", "pids"), True, False, "missing: memory"),
        ("v1", ("memory", "cpu", "pids"), False, True, "cgroup v1"),
        ("v1", ("memory", "cpu", "pids"), True, False, "cannot start containers"),
    ],
)
def test_containers_need_controllers_and_a_hierarchy_in_which_they_start(
    version: str, present: tuple[str, ...], registers: bool, ok: bool, says: str
) -> None:
    check = control_groups(version, present, registers=registers)
    assert check.ok is ok and says in check.detail and bool(check.remedy) is not ok
