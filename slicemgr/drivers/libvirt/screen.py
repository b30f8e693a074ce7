"""The screen of a virtual machine: QEMU's VNC server on a unix socket. The bytes are passed on unread.

The socket's directory belongs to QEMU. A guest that has broken out of its QEMU could put another socket there, so the
process that listens is checked before any byte is sent.
"""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack

from slicemgr.drivers.libvirt.console import read_some, write_some
from slicemgr.errors import Failed

_CONNECT = 5.0  # seconds
_PEER = struct.Struct("3i")  # pid, uid, gid


class Screen:
    """A non-blocking connection to the screen; poll `fileno()`. A context manager; the machine keeps running.

    It has the methods of Console.
    """

    def __init__(self, path: str) -> None:
        with ExitStack() as stack:
            self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._socket.settimeout(_CONNECT)
            try:
                self._socket.connect(path)
            except OSError as error:
                raise Failed(f"cannot open the screen {path}: {error.strerror or error}") from error
            self._socket.setblocking(False)
            stack.pop_all()

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, most: int) -> bytes:
        """Up to `most` bytes of the VNC server's output, b"" if there is none yet. Raises ConsoleEnded."""
        return read_some(self.fileno(), most)

    def write(self, data: bytes) -> int:
        """Send as much of `data` as the socket accepts; the number of bytes. Raises ConsoleEnded."""
        return write_some(self.fileno(), data)

    def belongs_to(self, pid: int) -> bool:
        """Whether process `pid` listens on the socket."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return bool(_PEER.unpack(credentials)[0] == pid)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
