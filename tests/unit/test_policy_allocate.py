"""Allocation: no duplicates, all or nothing, late reuse, and errors that name the exhausted resource."""

from __future__ import annotations

import dataclasses
import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicemgr.config import LimitsConfig, NetworkConfig, Size
from slicemgr.errors import Code, Refused
from slicemgr.model import GIB, IDS_PER_SLIVER, MIB, Limits, PortBlock
from slicemgr.policy import allocate
from slicemgr.policy.allocate import Cursors, Given, Grant

NETWORK = NetworkConfig(addresses="10.77.0.0/27", ports_first=10000, ports_last=10299)
LARGE = NetworkConfig(addresses="10.0.0.0/16")


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 30)), max_size=6),
    st.tuples(st.integers(0, 30), st.integers(0, 260), st.integers(0, 30)),
    st.integers(1, 4),
)
def test_what_is_ahead_of_the_cursors_is_what_a_complete_search_gives(
    taken: list[tuple[int, int, int]], cursors: tuple[int, int, int], count: int
) -> None:
    """Unless a part of it is taken."""
    network = NetworkConfig(addresses="10.77.0.0/27", ports_first=20000, ports_last=20259)
    pool = allocate.address_pool(network)
    there = [
        Given(str(pool[address % 30]), PortBlock(20000 + block * 20, 20), allocate.UID_FIRST + uid * 65536, MIB, MIB)
        for address, block, uid in taken
    ]
    found = allocate.ahead(network, allocate.Cursors(*cursors), count, 20)
    if found is None:
        return
    used = [(one.address, one.uid_first) for one in there]
    for grant in found[0]:
        ports = range(grant.ports.first, grant.ports.last + 1)
        if any(grant.address == address or grant.uid_first == uid for address, uid in used):
            return
        if any(one.ports.first in ports or one.ports.last in ports for one in there):
            return
    assert allocate.allocate(network, there, allocate.Cursors(*cursors), count, 20) == found


def held(grant: Grant, memory: int = MIB) -> Given:
    return Given(grant.address, grant.ports, grant.uid_first, memory, MIB)


requests = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 60), st.lists(st.integers(0, 40), max_size=6)), min_size=1, max_size=12
)


@given(requests)
@settings(deadline=None, max_examples=150)
def test_nothing_is_given_twice_and_a_refusal_is_true(asked: list[tuple[int, int, list[int]]]) -> None:
    taken: list[Given] = []
    cursors = Cursors()
    for count, size, freed in asked:
        for index in sorted({one for one in freed if one < len(taken)}, reverse=True):
            del taken[index]
        try:
            grants, cursors = allocate.allocate(NETWORK, taken, cursors, count, size)
        except Refused as refused:
            assert refused.code is Code.QUOTA
            assert _cannot_be_met(taken, count, size)
            continue
        assert len(grants) == count
        taken += [held(grant) for grant in grants]
        _check_disjoint(taken)


def _cannot_be_met(taken: list[Given], count: int, size: int) -> bool:
    used = {port for one in taken for port in range(one.ports.first, one.ports.last + 1)}
    blocks, run = 0, 0
    for port in range(NETWORK.ports_first, NETWORK.ports_last + 1):
        run = 0 if port in used else run + 1
        if run == size:
            blocks, run = blocks + 1, 0
    return blocks < count or 30 - len(taken) < count


def _check_disjoint(taken: list[Given]) -> None:
    ports = [port for one in taken for port in range(one.ports.first, one.ports.last + 1)]
    assert len(ports) == len(set(ports))
    assert all(NETWORK.ports_first <= port <= NETWORK.ports_last for port in ports)
    assert len({one.address for one in taken}) == len({one.uid_first for one in taken}) == len(taken)
    hosts = set(ipaddress.IPv4Network(NETWORK.addresses).hosts())
    assert {ipaddress.IPv4Address(one.address) for one in taken} <= hosts
    assert all((one.uid_first - allocate.UID_FIRST) % IDS_PER_SLIVER == 0 for one in taken)


def test_what_is_freed_is_given_again_last() -> None:
    """A reused address or port would receive the traffic of its predecessor."""
    cursors = Cursors()
    seen: list[Grant] = []
    for _ in range(30):
        (grant,), cursors = allocate.allocate(NETWORK, [], cursors, 1, 10)
        seen.append(grant)
    for values in ([grant.address for grant in seen], [grant.ports.first for grant in seen]):
        assert len(set(values)) == 30
    (again,), _ = allocate.allocate(NETWORK, [], cursors, 1, 10)
    assert again.address == seen[0].address


def test_a_free_block_across_the_cursor_is_found() -> None:
    (block,) = allocate.port_blocks(NETWORK, [PortBlock(10000, 100), PortBlock(10200, 100)], 150, 1, 100)
    assert block == PortBlock(10100, 100)


def test_uid_ranges_are_nobody_elses() -> None:
    last = allocate.UID_FIRST + allocate.UID_RANGES * IDS_PER_SLIVER - 1
    assert allocate.UID_RANGES == 4094
    assert allocate.UID_FIRST > 1_879_048_191 > 1_001_000_000 > 600_100_000  # nspawn, LXD and Incus, login.defs
    assert last < 2_147_352_576  # systemd's foreign ids


@pytest.mark.parametrize(
    ("network", "count", "ports", "words"),
    [
        (NETWORK, 16, 20, "not enough blocks of 20 ports: 16 requested, 15 available"),
        (NETWORK, 31, 1, "not enough addresses: 31 requested, 30 available"),
        (
            dataclasses.replace(NETWORK, addresses="10.0.0.0/16", ports_last=30000),
            4095,
            1,
            "uid ranges: 4095 requested, 4094",
        ),
    ],
)
def test_what_ran_out_is_named_with_what_is_left(network: NetworkConfig, count: int, ports: int, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        allocate.allocate(network, [], Cursors(), count, ports)
    assert caught.value.code is Code.QUOTA
    allocate.allocate(network, [], Cursors(), count - 1, ports)


@pytest.mark.parametrize(("addresses", "usable"), [("10.0.0.0/24", 254), ("10.0.0.4/31", 2), ("10.0.0.4/32", 1)])
def test_address_pool(addresses: str, usable: int) -> None:
    pool = allocate.address_pool(NetworkConfig(addresses=addresses))
    assert list(pool) == list(ipaddress.IPv4Network(addresses).hosts())
    assert len(pool) == usable


def test_guarantees_are_never_overcommitted() -> None:
    node = allocate.Node("node1", 4, 8 * GIB, None)
    limits = LimitsConfig(memory_overcommit=100.0, memory_reserve=Size(GIB))
    wanted = Limits(memory=4 * GIB, disk=MIB, pids=8, cpu=1, memory_guarantee=2 * GIB)
    given = [Given("10.0.0.1", PortBlock(10000, 1), 0, 4 * GIB, MIB, GIB)]
    allocate.check_capacity(node, limits, given, 3, wanted)
    with pytest.raises(
        Refused, match=r"not enough memory to guarantee.* 8\.0 GiB requested, 6\.0 GiB available"
    ) as caught:
        allocate.check_capacity(node, limits, given, 4, wanted)
    assert (caught.value.code, caught.value.field) == (Code.QUOTA, "memory_guarantee")
    none = dataclasses.replace(wanted, memory_guarantee=0)
    full = [dataclasses.replace(given[0], memory_guarantee=8 * GIB)]
    allocate.check_capacity(node, limits, full, 4, none)
    allocate.check_capacity(dataclasses.replace(node, memory=None), limits, full, 4, wanted)
    assert allocate.guaranteed(GIB // 2, limits) == 0, "a node with less than its reserve guarantees nothing"


@pytest.mark.parametrize(("field", "total"), [("memory", 8 * GIB), ("disk", 100 * GIB)])
def test_capacity(field: str, total: int) -> None:
    node = allocate.Node("node1", 4, 8 * GIB, 100 * GIB)
    limits = LimitsConfig(memory_overcommit=2.0, disk_overcommit=2.0)
    fine = Limits(memory=MIB, disk=MIB, pids=8, cpu=1)

    def check(size: int, count: int, used: int) -> None:
        taken = [Given("10.0.0.1", PortBlock(10000, 1), 0, *((used, 0) if field == "memory" else (0, used)))]
        allocate.check_capacity(node, limits, taken, count, dataclasses.replace(fine, **{field: size}))

    check(total, 1, total)
    for size, count, used, words in (
        (total + 1, 1, 0, "exceed the capacity of node node1"),
        (total, 2, 1, f"not enough {field} on node node1"),
        (1, 1, 2 * total, "0 MiB available"),
    ):
        with pytest.raises(Refused, match=words) as caught:
            check(size, count, used)
        assert (caught.value.code, caught.value.field) == (Code.QUOTA, field)


def test_what_the_node_does_not_know_does_not_bound() -> None:
    node = allocate.Node("node1", None, None, None)
    allocate.check_capacity(node, LimitsConfig(), [], 9, Limits(memory=1 << 50, disk=1 << 50, pids=8, cpu=1))
