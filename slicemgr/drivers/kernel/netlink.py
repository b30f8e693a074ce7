"""Netlink messages and their attributes as bytes: linux/netlink.h. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

ERROR, DONE = 2, 3  # types of messages
REQUEST, ACK, DUMP = 0x001, 0x004, 0x300  # flags of requests
NESTED = 0x8000  # flag of an attribute that contains attributes
_FLAGS = 0xC000
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")


def message(kind: int, flags: int, body: bytes) -> bytes:
    """A request. kind: its type. flags: in addition to REQUEST. body: what follows the header."""
    return _HEADER.pack(_HEADER.size + len(body), kind, REQUEST | flags, 1, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type and payload of each message."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[(length + 3) & ~3 :]


def error(payload: bytes) -> int:
    """The error number of an ERROR message, which is 0 in an acknowledgement."""
    return -int(struct.unpack_from("=i", payload)[0])


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to the boundary of the next one."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type, without flags, and the value of each attribute."""
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & ~_FLAGS, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
