"""A cable with a delay, for kernels without netem: two tap devices, and a process that passes frames on later.

    nodebox_delay.py SWITCH-PID PORT BOX-PID DEVICE MILLISECONDS

The process ends with either of the two processes, whose network namespaces get the devices.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

from nodebox_linux import CLONE_NEWNET, setns

_TUNSETIFF = 0x400454CA
_TAP, _NO_INFORMATION = 0x0002, 0x1000  # IFF_TAP, IFF_NO_PI
_LARGEST = 65536  # bytes of a frame
_MOST = 20_000  # frames under way in one direction; more are lost, as in netem
_AT_ONCE = 64
_BUSY = 3.0  # seconds in which the kernel may still be removing a device of that name


def tap(pid: int, name: str) -> int:
    """The descriptor of a new tap device in the network namespace of a process. Raises OSError."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    setns(namespace, CLONE_NEWNET)
    os.close(namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), _TAP | _NO_INFORMATION)
    end = time.monotonic() + _BUSY
    while True:
        try:
            fcntl.ioctl(descriptor, _TUNSETIFF, request)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return descriptor


class Way:
    """One direction: frames from `source` are written to `target` after `delay` seconds."""

    def __init__(self, source: int, target: int, delay: float) -> None:
        self.source, self._target, self._delay = source, target, delay
        self._frames: deque[tuple[float, bytes]] = deque()

    def read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                frame = os.read(self.source, _LARGEST)
                if len(self._frames) < _MOST:
                    self._frames.append((time.monotonic() + self._delay, frame))

    def write(self) -> float | None:
        """Write what is due. Returns the seconds until the next frame is due; None: there is none."""
        while self._frames and self._frames[0][0] <= time.monotonic():
            with suppress(OSError):  # the device is down, or its queue is full: the frame is lost
                os.write(self._target, self._frames[0][1])
            self._frames.popleft()
        return max(0.0, self._frames[0][0] - time.monotonic()) if self._frames else None


def main() -> None:
    switch, port, box, device = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    ends = [os.pidfd_open(pid) for pid in (switch, box)]
    one, other = tap(switch, port), tap(box, device)
    delay = float(sys.argv[5]) / 1000
    ways = {one: Way(one, other, delay), other: Way(other, one, delay)}
    while True:
        waits = [wait for way in ways.values() if (wait := way.write()) is not None]
        ready, _, _ = select.select([*ways, *ends], [], [], min(waits, default=None))
        for descriptor in ready:
            if descriptor in ends:
                return
            ways[descriptor].read()


if __name__ == "__main__":
    main()
