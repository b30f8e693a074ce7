"""Wake the agent, or the hub, to read the rows: one datagram without content, delivery is not guaranteed.

A lost datagram only adds delay, since the agent also reads the rows at intervals.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from slicemgr.ipc import unix_socket

HUB = Path("hub", "hub.sock")  # in the directory of the other sockets; the first belongs to the user of the hub


_here = threading.local()  # the paths to wake at the end of `held`, in the thread inside it


def wake(path: Path) -> None:
    """Wake the listener at `path` and the hub beside it, if they are there; inside `held`, at its end."""
    if (paths := getattr(_here, "paths", None)) is not None:
        paths.add(path)
    else:
        _wake(path)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold wake-ups of this thread back until the transaction inside it is committed; after an error there are none.

    Who is woken earlier does not find the rows, and the next wake-up waits until it has finished looking.
    """
    paths: set[Path] = set()
    _here.paths = paths
    try:
        yield
    finally:
        _here.paths = None
    for path in paths:
        _wake(path)


def _wake(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        for one in (path, path.parent / HUB):
            with contextlib.suppress(OSError):  # there is no listener, or its queue is full
                sender.sendto(b"\0", str(one))


class Listener:
    """The agent's socket. root and `user`, the web process, may send; a datagram only makes the agent read the rows."""

    def __init__(self, path: Path, user: str = "") -> None:
        self._path = path
        self._user = user

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._socket = unix_socket.bind(socket.SOCK_DGRAM, self._path, self._user)
        return self

    def fileno(self) -> int:
        return self._socket.fileno()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; True if woken. Several datagrams count as one."""
        self._socket.settimeout(timeout)
        try:
            self._socket.recv(16)
        except (TimeoutError, BlockingIOError):  # the latter if the timeout is 0
            return False
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(16)
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)
