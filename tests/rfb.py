"""A minimal VNC client for tests of a screen (RFB 3.8, RFC 6143)."""

from __future__ import annotations

import select
import struct
import time

from slicemgr.ipc.websocket import Channel

_NO_AUTHENTICATION = 1
_UPDATE = 0


class Viewer:
    """A screen over the channel of a console. size: width and height in pixels, after `start`."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.size = (0, 0)
        self._heard = b""

    def start(self) -> str:
        """Perform the handshake. Returns the name of the screen."""
        assert self._read(12) == b"RFB 003.008\n"
        self.channel.send(b"RFB 003.008\n")
        kinds = self._read(self._read(1)[0])
        assert _NO_AUTHENTICATION in kinds
        self.channel.send(bytes([_NO_AUTHENTICATION]))
        assert self._read(4) == bytes(4)
        self.channel.send(b"\1")  # shared
        width, height = struct.unpack("!HH", self._read(4))
        self._read(16)
        self.size = (width, height)
        return self._read(struct.unpack("!I", self._read(4))[0]).decode()

    def key(self, code: int) -> None:
        """Press and release a key. code: an X keysym."""
        for down in (1, 0):
            self.channel.send(struct.pack("!BBxxI", 4, down, code))

    def pixels(self) -> bytes:
        """The pixels of the first update, 4 bytes each."""
        self.channel.send(struct.pack("!BxHI", 2, 1, 0))  # raw encoding only
        self.channel.send(struct.pack("!BBHHHH", 3, 0, 0, 0, *self.size))
        while (kind := self._read(1)[0]) != _UPDATE:
            assert kind == 2, kind  # a bell
        pixels = b""
        (rectangles,) = struct.unpack("!xH", self._read(3))
        for _ in range(rectangles):
            _, _, width, height, encoding = struct.unpack("!HHHHi", self._read(12))
            assert encoding == 0
            pixels += self._read(width * height * 4)
        return pixels

    def _read(self, amount: int) -> bytes:
        deadline = time.monotonic() + 60
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        while len(self._heard) < amount:
            assert self.channel.ended is None and time.monotonic() < deadline, self.channel.ended
            said = self.channel.receive()
            self._heard += said
            if not said:
                poll.poll(1000)
        found, self._heard = self._heard[:amount], self._heard[amount:]
        return found
