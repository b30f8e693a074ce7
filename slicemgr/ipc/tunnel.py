"""The packets of a local socket over a WebSocket, both ways: how the service reaches the agent of another host.

The node opens the WebSocket. At its end the link passes the packets on to a socket of the agent, and at the other end
the web process to the thread that serves the user. A packet is four bytes with its length, then its bytes.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from slicemgr.errors import Code, Failed
from slicemgr.ipc.console_socket import CHUNK
from slicemgr.ipc.websocket import Channel

PROTOCOL = "slicemgr.dial.v1"
PATH = "/api/v1/node-dials"
LARGEST = CHUNK + 1  # bytes of a packet
_LENGTH = struct.Struct("!I")
_PING, _SILENT = 20.0, 60.0  # seconds between pings, and until a silent connection counts as lost
_LAST = 2.0  # seconds for the other side to accept the last packets
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR

Check = Callable[[bytes], bytes]


class Packets:
    """Splits received bytes into packets."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> list[bytes]:
        """The packets that are complete now. ValueError for one that is empty or too large."""
        self._data += data
        found = []
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if not 0 < length <= LARGEST:
                raise ValueError(f"a packet of {length} bytes")
            end = _LENGTH.size + length
            if len(self._data) < end:
                break
            found.append(bytes(self._data[_LENGTH.size : end]))
            del self._data[:end]
        return found


def frame(packet: bytes) -> bytes:
    return _LENGTH.pack(len(packet)) + packet


def splice(channel: Channel, stream: socket.socket, check: Check = bytes) -> None:
    """Pass packets on until one side ends, then close the WebSocket. A slow side slows the other one down.

    check: returns a received packet as it is passed on; ValueError ends the connection.
    """
    stream.setblocking(False)
    waiting: deque[bytes] = deque()
    try:
        _splice(channel, stream, waiting, check)
    except ValueError as error:
        channel.close(Failed(f"not valid: {error}"[:100], code=Code.INVALID))
    except OSError:  # the process on this side has closed its socket
        channel.close()
    channel.drain(_LAST)
    stream.settimeout(_LAST)
    with suppress(OSError):
        for packet in waiting:
            stream.send(packet)


def _splice(channel: Channel, stream: socket.socket, waiting: deque[bytes], check: Check) -> None:
    packets = Packets()
    pinged = time.monotonic()

    def receive() -> None:
        waiting.extend(check(one) for one in packets.add(channel.receive()))

    receive()
    while channel.ended is None:
        with suppress(BlockingIOError):
            while waiting:
                stream.send(waiting[0])
                waiting.popleft()
        from_channel, from_stream = _wait(channel, stream, bool(waiting))
        if from_channel & select.POLLOUT:
            channel.flush()
        if from_channel & select.POLLIN:
            receive()
        elif from_channel & _GONE:
            return
        if from_stream & ~select.POLLOUT and not channel.pending:
            with suppress(BlockingIOError):
                packet = stream.recv(LARGEST)
                if not packet:
                    channel.close()
                    return
                channel.send(frame(packet))
        now = time.monotonic()
        if not waiting and now - channel.heard > _SILENT:
            return
        if now - pinged > _PING:
            pinged = now
            channel.ping()


def _wait(channel: Channel, stream: socket.socket, full: bool) -> tuple[int, int]:
    """The poll events of both. full: the stream has not accepted all packets yet."""
    poll = select.poll()
    wanted = (select.POLLOUT if channel.pending else 0) | (0 if full else select.POLLIN)
    poll.register(channel, wanted | select.POLLRDHUP)
    wanted = (select.POLLOUT if full else 0) | (0 if channel.pending else select.POLLIN)
    if wanted:
        poll.register(stream, wanted)
    ready = dict(poll.poll(_PING * 1000))
    return ready.get(channel.fileno(), 0), ready.get(stream.fileno(), 0)
