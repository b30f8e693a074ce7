"""Messages of AMQP whose properties no library writes."""

from __future__ import annotations

from struct import pack

import amqp

_TYPE, _HEADERS = 0x8000, 0x2000  # flags of properties


def _table(content: bytes) -> bytes:
    return pack(">I", len(content)) + content


def _nested(depth: int) -> bytes:
    found = _table(b"")
    for _ in range(depth):
        found = _table(b"\x01xF" + found)
    return found


# By what they do to a program that decodes them.
HARMFUL = {
    "a content type that is no UTF-8": pack(">HB", _TYPE, 2) + b"\xff\xfe",
    "a time beyond all calendars": pack(">H", _HEADERS) + _table(b"\x01xT" + b"\x7f" * 8),
    "tables in tables": pack(">H", _HEADERS) + _nested(3000),
}


class RawMessage(amqp.Message):  # type: ignore[misc]
    """raw: the properties as they are sent."""

    def __init__(self, body: str | bytes, raw: bytes) -> None:
        super().__init__(body)
        self.raw = raw

    def _serialize_properties(self) -> bytes:
        return self.raw


def delivery(key: bytes, raw: bytes, body: bytes) -> list[tuple[int, int, bytes]]:
    """The frames in which a broker delivers a message."""
    method = pack(">HH", 60, 60) + b"\x08consumer" + pack(">QB", 7, 0) + b"\x06from.x" + pack(">B", len(key)) + key
    return [(1, 1, method), (2, 1, pack(">HHQ", 60, 0, len(body)) + raw), (3, 1, body)]
