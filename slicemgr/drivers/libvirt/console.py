"""The console of a domain: the terminal that libvirt made for it, opened by its path.

That is what libvirtd does for virDomainOpenConsole, and then sends everything through a stream. The kernel's terminal
is better at waiting: a reader that is slow slows the sliver down, while libvirt keeps for it what comes without a
limit, and a write to a sliver that does not read comes back, while a stream's never does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from slicemgr.errors import Failed


class ConsoleEnded(Exception):
    """The domain that had the console is gone."""


class Console:
    """A terminal, never waited for: poll `fileno()`. A context manager; the domain goes on after it."""

    def __init__(self, path: str) -> None:
        try:
            self._terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Failed(f"cannot open the console {path}: {error.strerror}") from error
        self.path = path

    def fileno(self) -> int:
        return self._terminal

    def read(self, most: int) -> bytes:
        """Up to `most` bytes of what the sliver said, b"" if there is nothing yet. Raises ConsoleEnded."""
        try:
            data = os.read(self._terminal, most)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise ConsoleEnded from error
        if not data:
            raise ConsoleEnded
        return data

    def write(self, data: bytes) -> int:
        """How many bytes of `data` the sliver has room for. Raises ConsoleEnded."""
        try:
            return os.write(self._terminal, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConsoleEnded from error

    def belongs_to(self, pid: int) -> bool:
        """Whether that process has the other end: a number of a terminal is given again once it is free."""
        index = self.path.rpartition("/")[2]
        with suppress(FileNotFoundError, ProcessLookupError):
            for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
                with suppress(FileNotFoundError):
                    if f"tty-index:\t{index}" in entry.read_text().splitlines():
                        return True
        return False

    def close(self) -> None:
        os.close(self._terminal)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
