"""Netlink messages as bytes."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from slicemgr.drivers.kernel import netlink

VALUES = st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)))


@given(VALUES)
def test_attributes_are_read_as_written(values: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.attribute(kind, value) for kind, value in values)
    assert list(netlink.attributes(data)) == values


def test_a_nested_attribute_has_its_type_without_the_flag() -> None:
    inner = netlink.attribute(3, b"abc")
    ((kind, value),) = netlink.attributes(netlink.attribute(7 | netlink.NESTED, inner))
    assert (kind, dict(netlink.attributes(value))) == (7, {3: b"abc"})


@given(st.binary(max_size=200))
def test_anything_ends(data: bytes) -> None:
    assert sum(len(value) for _, value in netlink.attributes(data)) <= len(data)
    assert sum(len(payload) for _, payload in netlink.messages(data)) <= len(data)


def test_a_length_of_nothing_ends_the_reading() -> None:
    whole = netlink.message(20, netlink.DUMP, b"abcd")
    assert list(netlink.messages(whole + struct.pack("=IHHII", 0, 3, 0, 1, 0))) == [(20, b"abcd")]


def test_an_error_has_its_number() -> None:
    assert netlink.error(struct.pack("=i", -19)) == 19
