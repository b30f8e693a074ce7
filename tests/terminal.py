"""A program in a separate terminal, controlled by its input and output."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self


class Terminal:
    """A context manager that kills the program at the end. Its standard error is captured separately."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._master, self.slave = pty.openpty()
        self.process = subprocess.Popen(
            argv, stdin=self.slave, stdout=self.slave, stderr=subprocess.PIPE, env=environment, start_new_session=True
        )
        self.shown = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self._master)
        os.close(self.slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def paste(self, text: str) -> None:
        """Type as much of a text as the program reads, and read its output meanwhile."""
        data = text.encode()
        os.set_blocking(self._master, False)
        while data and select.select([], [self._master], [], 2)[1]:
            data = data[os.write(self._master, data[:65536]) :]
            with suppress(BlockingIOError):
                self.shown += os.read(self._master, 65536)
        os.set_blocking(self._master, True)

    def see(self, text: str, seconds: float = 30) -> None:
        """Wait until a text appears after the text of the last call. seconds: timeout."""
        wanted = text.encode()
        deadline = time.monotonic() + seconds
        looked = 0
        while (at := self.shown.find(wanted, max(0, looked - len(wanted)))) < 0:
            looked = len(self.shown)
            left = deadline - time.monotonic()
            assert left > 0, f"not within {seconds:g} s: {text!r} in {looked} bytes that end in {self.shown[-300:]!r}"
            if select.select([self._master], [], [], left)[0]:
                self.shown += os.read(self._master, 65536)
        del self.shown[: at + len(wanted)]

    def heard(self, text: str, seconds: float = 30) -> None:
        """Wait for a line on standard error that contains a text. seconds: timeout."""
        stderr: Any = self.process.stderr
        deadline = time.monotonic() + seconds
        heard = ""
        while text not in (line := stderr.readline().decode()):
            heard += line
            assert line and time.monotonic() < deadline, f"stderr ended without {text!r}: {heard}"

    def end(self, seconds: float = 30) -> tuple[int, str]:
        """Wait for the end. Returns the exit status and the rest of standard error."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self._master], [], [], 0.05)[0]:  # otherwise its last output would block
                self.shown += os.read(self._master, 65536)
        stderr: Any = self.process.stderr
        return self.process.wait(0.1), stderr.read().decode()
