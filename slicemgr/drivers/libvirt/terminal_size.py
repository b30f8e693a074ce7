"""The size of the terminal of a container's console.

libvirt_lxc connects two terminals, the node's and the container's, and does not pass the size on. The size is
therefore set on the container's terminal, in the container's /dev.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios
from contextlib import closing

from slicemgr.drivers.kernel import openat2

_CONSOLE = "dev/pts/0"  # the first pty that libvirt_lxc creates
_PTS_MAJORS = range(136, 144)


class TerminalSize:
    """The terminal of the container whose init is `pid`. A context manager. Raises OSError if the init has ended.

    No file of the container stays open: a login hangs up the terminal, so each call opens it again.
    """

    def __init__(self, pid: int) -> None:
        self._process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # survives pid reuse

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
