"""The size of the terminal of a container's console.

libvirt_lxc joins two terminals, the node's and the container's, and carries no size from one to the other: it is set
on the container's own, in the container's own /dev.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios
from contextlib import closing

from slicemgr.drivers.kernel import openat2

_CONSOLE = "dev/pts/0"  # libvirt_lxc makes it first
_PTS_MAJORS = range(136, 144)


class TerminalSize:
    """The terminal of the container whose init is `pid`. A context manager. Raises OSError if that is gone.

    It keeps no file of the container open: a login hangs the terminal up, so each call opens it again.
    """

    def __init__(self, pid: int) -> None:
        self._process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # not who gets its number

    def resize(self, rows: int, columns: int) -> None:
        """Set the size and notify its programs. Raises OSError if the container or its console does not exist."""
        root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._process)
        try:
            terminal = openat2.open_in_root(root, _CONSOLE, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW)
        finally:
            os.close(root)
        with closing(os.fdopen(terminal, "rb", buffering=0)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISCHR(found.st_mode) or os.major(found.st_rdev) not in _PTS_MAJORS:
                raise FileNotFoundError(f"{_CONSOLE} is not a terminal")
            fcntl.ioctl(file.fileno(), termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def close(self) -> None:
        os.close(self._process)

    def __enter__(self) -> TerminalSize:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
