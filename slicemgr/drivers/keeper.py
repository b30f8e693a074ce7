"""Programs that set back what the agent has set, when it ends or is killed; see tools/keeper/keeper.h.

A program holds its lock until that is done, and the next agent waits for it: what is set back late could be beyond what
has been set since.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed, Conversation
from slicemgr.errors import Failed

ENDS = 60.0  # seconds, longer than the program of an earlier agent takes, and than libvirt waits for QEMU
_LIFE = 86400.0  # seconds after which the program is started again
_LOOK = 0.1  # seconds


class Keeper:
    """One such program, which runs while it has anything to set back. Not thread-safe.

    Waits for the program of an earlier agent, which holds the lock. Raises Failed if that does not end.
    """

    def __init__(self, program: Path, lock: Path, *arguments: str) -> None:
        self._words: tuple[str | Path, ...] = (program, lock, *arguments)
        self._noted: dict[str, int] = {}
        self._stack = ExitStack()
        self._program: Conversation | None = None
        _await(program, lock)

    def note(self, name: str, value: int) -> None:
        """Remember what is to be set back, before it is set otherwise. Raises Failed."""
        if self._noted.get(name) == value and self._program is not None and not self._program.ended:
            return
        self._noted[name] = value
        try:
            if self._program is None or self._program.ended:
                self._start()
            else:
                self._program.say(f"{name} {value}")
        except CommandFailed as error:
            raise Failed(f"{Path(self._words[0]).name} does not run: {error}") from error

    def forget(self, name: str) -> None:
        """It has been set back. A program with nothing to set back ends."""
        if self._noted.pop(name, None) is None or self._program is None:
            return
        with suppress(CommandFailed):  # it has ended, and sets nothing back
            self._program.say(f"{name} 0")
        if not self._noted:
            self.close()

    def close(self) -> None:
        """Have it set back what is noted, and wait for that."""
        self._stack.close()
        self._program = None
        self._noted.clear()

    def _start(self) -> None:
        self._stack.close()
        self._program = self._stack.enter_context(command.converse(self._words, timeout=_LIFE))
        self._program.line()  # it has its lock
        for name, value in self._noted.items():
            self._program.say(f"{name} {value}")


def _await(program: Path, lock: Path) -> None:
    deadline = time.monotonic() + ENDS
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > deadline:
                raise Failed(f"{program.name} of an earlier agent does not end", hint=f"it holds {lock}")
            time.sleep(_LOOK)
    finally:
        os.close(descriptor)
