"""Capture rings: the ledger, the program's encoding, the kernel's answers; doctor's checks of socket memory."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.agent.checks.kernel import socket_memory
from slicemgr.agent.chores.capture_rings import SETTLED, Ledger
from slicemgr.drivers.kernel import bpf, capture_rings, cgroup, netlink, packet_sockets
from slicemgr.drivers.kernel.packet_sockets import Found
from slicemgr.model import MIB

LIMIT = 8


class Kernel:
    """One network namespace: a ring is granted first and made later, within SETTLED; it may be closed at any time.

    others: packet sockets without rings.
    """

    def __init__(self) -> None:
        self.granted, self.returned, self.now = 0, 0, 0.0
        self.coming: list[tuple[float, int]] = []
        self.there: list[int] = []
        self.others = 0
        self.ledger = Ledger()

    def ask(self, size: int, delay: float) -> None:
        if self.granted + size - self.returned <= LIMIT:
            self.granted += size
            self.coming.append((self.now + delay, size))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.there += [size for when, size in self.coming if when <= self.now]
        self.coming = [one for one in self.coming if one[0] > self.now]

    def look(self, _: int) -> Found:
        return Found(len(self.coming) + len(self.there) + self.others, sum(self.there))

    def settle(self) -> None:
        due = self.ledger.settle(self.now, {1: self.granted}, {1: self.returned}, self.look)
        self.returned = due.get(1, self.returned)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, LIMIT), st.floats(0, SETTLED * 0.99)),
        st.tuples(st.just("wait"), st.floats(0, 2 * SETTLED), st.none()),
        st.tuples(st.just("close"), st.none(), st.none()),
        st.tuples(st.just("others"), st.integers(0, 1), st.none()),
        st.tuples(st.just("settle"), st.none(), st.none()),
    ),
    max_size=60,
)


@given(steps)
def test_rings_never_pass_the_limit_whenever_they_are_made_closed_and_counted(
    taken: list[tuple[str, int, float]],
) -> None:
    kernel = Kernel()
    for step, amount, delay in taken:
        if step == "ask":
            kernel.ask(amount, delay)
        elif step == "wait":
            kernel.wait(amount)
        elif step == "close" and kernel.there:
            kernel.there.pop()
        elif step == "others":
            kernel.others = amount
        elif step == "settle":
            kernel.settle()
        assert sum(kernel.there) + sum(size for _, size in kernel.coming) <= LIMIT


@pytest.mark.parametrize(("others", "wait"), [(0, 0), (1, SETTLED)])
def test_what_is_closed_is_returned_at_once_or_once_it_is_settled(others: int, wait: float) -> None:
    kernel = Kernel()
    kernel.ask(LIMIT, 1)
    kernel.wait(1)
    kernel.settle()
    kernel.there.clear()
    kernel.others = others
    kernel.settle()
    assert kernel.returned == (0 if others else LIMIT)
    kernel.wait(wait)
    kernel.settle()
    assert kernel.returned == LIMIT


def test_a_ledger_that_counts_at_once_would_let_rings_pass_the_limit() -> None:
    """The control: without the time between note and count, a ring in creation would count as deleted."""
    kernel = Kernel()
    kernel.ask(LIMIT, 1)
    kernel.returned = kernel.granted - sum(kernel.there)
    kernel.ask(LIMIT, 1)
    kernel.wait(1)
    assert sum(kernel.there) > LIMIT


def test_a_namespace_that_cannot_be_counted_gets_nothing_back() -> None:
    ledger = Ledger()
    for now in (0, SETTLED, 3 * SETTLED):
        assert ledger.settle(now, {1: 5}, {}, lambda _: None) == {}


def test_instructions_are_encoded_as_the_kernel_defines_them() -> None:
    code = bpf.Program()
    code.jump_if_value(bpf.JEQ, bpf.R2, 5, "end")
    code.map(bpf.R1, 7)
    code.load(bpf.W, bpf.R3, bpf.R1, 4)
    code.label("end")
    code.end()
    assert code.encode() == bytes.fromhex(
        "15 02 0300 0500000018 11 0000 0700000000 00 0000 0000000061 13 0400 0000000095 00 0000 00000000"
    )


def test_the_program_is_short_and_its_name_depends_on_nothing_but_its_content() -> None:
    one, other = (capture_rings.judge(capture_rings.Maps(*maps)).encode() for maps in ((1, 2, 3), (1, 2, 3)))
    assert one == other
    assert len(one) // 8 < 4096  # the limit of older kernels


def test_rings_are_read_from_the_kernels_description_of_a_socket() -> None:
    def attribute(kind: int, content: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(content), kind) + content + bytes(-len(content) % 4)

    ring = struct.pack("=7I", 4096, 16, 2048, 32, 0, 0, 0)
    body = bytes(16) + attribute(0, b"xyz") + attribute(2, ring) + attribute(3, ring)
    assert list(packet_sockets.rings(body)) == [65536, 65536]
    assert list(packet_sockets.rings(body[:20])) == []
    message = struct.pack("=IHHII", 16 + len(body), 20, 0, 1, 0) + body
    assert [kind for kind, _ in netlink.messages(message + struct.pack("=IHHII", 16, 3, 0, 1, 0))] == [20, 3]


@pytest.mark.parametrize(
    ("version", "options", "limited", "ok"),
    [
        ("v2", ["quiet"], False, True),
        ("v2", ["cgroup.memory=nokmem,nosocket"], False, False),
        ("v1", ["cgroup.memory=nobpf"], True, None),
        ("v1", [], False, False),
    ],
)
def test_doctor_says_what_bounds_socket_memory(
    version: str, options: list[str], limited: bool, ok: bool | None
) -> None:
    check = socket_memory(version, options, limited=limited)
    assert check.ok is ok
    assert bool(check.remedy) == (ok is not True)


def test_socket_memory_of_v1_is_a_part_of_the_slivers_memory_in_whole_pages() -> None:
    assert cgroup.socket_memory(32 * MIB) == 8 * MIB
    assert cgroup.socket_memory(512 * MIB) == 64 * MIB
    assert cgroup.socket_memory(100 * MIB + 12345) % 4096 == 0
