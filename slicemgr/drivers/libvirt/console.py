"""The console of a domain: the pseudoterminal that libvirt created for it, opened by its path.

virDomainOpenConsole makes libvirtd open the same pseudoterminal and pass its data through a stream. Direct use of the
pseudoterminal bounds both directions: a slow reader slows the sliver down, whereas libvirt buffers its output without
a limit; and a write to a sliver that does not read returns, whereas a write to a stream blocks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from slicemgr.errors import Failed


class ConsoleEnded(Exception):
    """The domain of the console has ended."""


def read_some(descriptor: int, most: int) -> bytes:
    """Up to `most` bytes of a non-blocking descriptor, b"" if there are none yet. Raises ConsoleEnded."""
    try:
        data = os.read(descriptor, most)
    except BlockingIOError:
        return b""
    except OSError as error:
        raise ConsoleEnded from error
    if not data:
        raise ConsoleEnded
    return data


def write_some(descriptor: int, data: bytes) -> int:
    """Write as much of `data` as a non-blocking descriptor accepts; the number of bytes. Raises ConsoleEnded."""
    try:
        return os.write(descriptor, data)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise ConsoleEnded from error


class Console:
    """A non-blocking terminal; poll `fileno()`. A context manager; the domain keeps running when it closes."""

    def __init__(self, path: str) -> None:
        try:
            self._terminal = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Failed(f"cannot open the console {path}: {error.strerror}") from error
        self.path = path

    def fileno(self) -> int:
        return self._terminal

    def read(self, most: int) -> bytes:
        """Up to `most` bytes of the sliver's output, b"" if there is none yet. Raises ConsoleEnded."""
        return read_some(self._terminal, most)

    def write(self, data: bytes) -> int:
        """Write as much of `data` as the terminal accepts; the number of bytes. Raises ConsoleEnded."""
        return write_some(self._terminal, data)

    def belongs_to(self, pid: int) -> bool:
        """Whether process `pid` holds the other end. The kernel reuses the numbers of closed terminals."""
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
