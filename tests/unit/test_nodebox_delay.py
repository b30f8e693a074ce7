"""The process that passes the frames of a cable on later: their order, and how long they take."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator

import nodebox_delay
import pytest
from nodebox_delay import Way

DELAY = 0.5  # seconds; longer than a busy machine needs to read what a test sends


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket, Way]]:
    """Where frames enter and leave, and the way between."""
    kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
    entry, source = socket.socketpair(socket.AF_UNIX, kind)
    target, leaves = socket.socketpair(socket.AF_UNIX, kind)
    with entry, source, target, leaves:
        yield entry, leaves, Way(source.fileno(), target.fileno(), DELAY)


def test_frames_keep_their_order_and_are_late(ends: tuple[socket.socket, socket.socket, Way]) -> None:
    entry, leaves, way = ends
    began = time.monotonic()
    for number in range(200):  # more than are read at once
        entry.send(b"%d" % number)
        way.read()
    assert 0 < (way.write() or 0) <= DELAY and not select.select([leaves], [], [], 0)[0]
    found: list[bytes] = []
    while len(found) < 200:
        time.sleep(way.write() or 0)
        while select.select([leaves], [], [], 0)[0]:
            found.append(os.read(leaves.fileno(), 100))
    assert time.monotonic() - began >= DELAY and found == [b"%d" % number for number in range(200)]
    assert way.write() is None


def test_frames_beyond_the_limit_are_lost(
    ends: tuple[socket.socket, socket.socket, Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodebox_delay, "_MOST", 2)
    entry, leaves, way = ends
    for number in range(5):
        entry.send(b"%d" % number)
    way.read()
    time.sleep(way.write() or 0)
    way.write()
    assert [os.read(leaves.fileno(), 100) for _ in range(2)] == [b"0", b"1"]
    assert not select.select([leaves], [], [], 0)[0]
