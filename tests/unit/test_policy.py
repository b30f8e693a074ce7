"""Decisions without a database: what is given to whom, and when a lease is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.config import LeaseConfig, LimitsConfig, NetworkConfig
from slicemgr.errors import Code, Refused
from slicemgr.model import GIB, Limits, PortBlock
from slicemgr.policy import allocate, leases
from slicemgr.policy.allocate import Cursors, Given, Node
from slicemgr.policy.leases import Clock, Lease, Verdict

SMALL = NetworkConfig(addresses="10.0.0.0/28", ports_first=2000, ports_last=2099)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def as_given(grant: allocate.Grant) -> Given:
    return Given(grant.address, grant.ports, grant.uid_first, GIB, GIB)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 30)), max_size=25))
def test_nothing_is_given_twice(steps: list[tuple[bool, int, int]]) -> None:
    held: list[Given] = []
    cursors = Cursors()
    for give, count, ports in steps:
        if not give:
            held = held[count:]
            continue
        try:
            grants, cursors = allocate.allocate(SMALL, held, cursors, count, ports)
        except Refused as error:
            assert error.code is Code.QUOTA
            continue
        assert len(grants) == count
        held += map(as_given, grants)
    taken = [port for one in held for port in range(one.ports.first, one.ports.last + 1)]
    assert len(set(taken)) == len(taken) and all(2000 <= port <= 2099 for port in taken)
    assert len({one.address for one in held}) == len({one.uid_first for one in held}) == len(held)


def test_the_last_block_is_found_wherever_it_is() -> None:
    whole, _ = allocate.allocate(SMALL, [], Cursors(), 5, 20)
    for free in range(5):
        held = [as_given(one) for number, one in enumerate(whole) if number != free]
        for cursor in (0, 50, 99, 100):
            grants, _ = allocate.allocate(SMALL, held, Cursors(port=cursor), 1, 20)
            assert grants[0].ports == whole[free].ports


def test_what_ran_out_is_named() -> None:
    with pytest.raises(Refused, match="not enough addresses left: 15 wanted, 14 left"):
        allocate.allocate(SMALL, [], Cursors(), 15, 1)
    with pytest.raises(Refused, match="port"):
        allocate.allocate(SMALL, [], Cursors(), 6, 20)


def test_uid_ranges_stay_below_the_sign_bit() -> None:
    last = allocate.UID_FIRST + allocate.UID_RANGES * 65536
    assert last <= 0x7FFE0000 and allocate.UID_FIRST % 65536 == 0


def test_capacity() -> None:
    node = Node("n", 2, 4 * GIB, None)
    limits = LimitsConfig(memory_overcommit=1.0)
    given = [Given("10.0.0.1", PortBlock(2000, 1), allocate.UID_FIRST, 3 * GIB, 0)]
    allocate.check_capacity(node, limits, given, 1, Limits(GIB, 1 << 49, 1, 1.0))
    for count, memory in ((2, GIB), (1, 2 * GIB), (1, 5 * GIB)):
        with pytest.raises(Refused) as caught:
            allocate.check_capacity(node, limits, given, count, Limits(memory, GIB, 1, 1.0))
        assert (caught.value.code, caught.value.field) == (Code.QUOTA, "memory")


def test_leases_are_granted_and_cut() -> None:
    policy = LeaseConfig()
    assert leases.grant(HOUR, NOW, policy) == NOW + HOUR
    assert leases.renew(policy.longest * 2, NOW, policy) == NOW + policy.longest
    for span in (timedelta(0), -HOUR, policy.longest + HOUR):
        with pytest.raises(Refused) as caught:
            leases.grant(span, NOW, policy)
        assert caught.value.field == "lease"


@pytest.mark.parametrize(
    ("lease", "verdict"),
    [
        (Lease("a", NOW + HOUR, None), None),
        (Lease("a", NOW, None), Verdict.STOP),
        (Lease("a", NOW - HOUR, NOW - HOUR), None),
        (Lease("a", NOW - 30 * HOUR, NOW - 24 * HOUR), Verdict.DELETE),
        (Lease("a", NOW + HOUR, NOW - HOUR), Verdict.RESUME_LEASE),
    ],
)
def test_what_is_due(lease: Lease, verdict: Verdict | None) -> None:
    assert leases.due([lease], Clock(NOW, NOW), 24 * HOUR).get("a") is verdict


def test_a_clock_that_jumped_ends_nothing_by_the_dozen() -> None:
    many = [Lease(str(number), NOW, None) for number in range(10)]
    before = leases.tick(None, NOW - 100 * HOUR)
    jumped = leases.tick(before, NOW)
    assert leases.due(many, jumped, HOUR) == {}
    assert len(leases.due(many[:3], jumped, HOUR)) == 3
    assert len(leases.due(many, Clock(NOW, NOW), HOUR)) == 10  # the control: the same look with a trusted clock
    clock = jumped
    for minute in range(1, 70):
        clock = leases.tick(clock, NOW + timedelta(minutes=minute))
    assert len(leases.due(many, clock, HOUR)) == 10
