"""Tell the agent to look at the rows: one datagram, no content, no delivery promised.

A lost one costs only time, since the agent also looks by itself.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from slicemgr.ipc import unix_socket


def wake(path: Path) -> None:
    """Wake the listener at `path`, if there is one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with contextlib.suppress(OSError):  # nobody listens, or it has been told often enough
            sender.sendto(b"\0", str(path))


class Listener:
    """The agent's end. root and `user`, the web process, may send: all they can cause is a look at the rows."""

    def __init__(self, path: Path, user: str = "") -> None:
        self._path = path
        self._user = user

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._socket = unix_socket.bind(socket.SOCK_DGRAM, self._path, self._user)
        return self

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; True if woken. However many were sent, they are one."""
        self._socket.settimeout(timeout)
        try:
            self._socket.recv(16)
        except (TimeoutError, BlockingIOError):  # the latter if there was no time at all
            return False
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(16)
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)
