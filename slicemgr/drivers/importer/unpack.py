"""Count the stream of an image's files and unpack it in a confinement that can write only to the target.

The stream is of tar, or of another program that a caller names (base_stream). tar runs as root because it sets owners.
It has few capabilities, no network, and limits, and is confined as importers are, because the stream is untrusted. The
extended attributes that it unpacks are user attributes and file capabilities: `trusted` attributes are slicemgr's own,
and other `security` attributes the node's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed, Conversation
from slicemgr.drivers.importer import confinement
from slicemgr.drivers.importer.confinement import Bounds, View
from slicemgr.errors import Code, Failed, Refused

Progress = Callable[[str, int | None], None]

_CHUNK = 1 << 20
_SECONDS = 1800.0
_LOOK = 16 << 20  # bytes of the stream between checks of the pool's free space: empty files use space, too
_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",  # set-id bits of files whose owner was changed
    "CAP_MKNOD",
    "CAP_SETFCAP",
)
TAR = (
    "tar --extract --file=- --numeric-owner --same-owner --same-permissions --acls"
    " --xattrs --xattrs-include='user.*' --xattrs-include=security.capability --directory=/target"
)


class Readable(Protocol):
    """The read end of a stream."""

    def read(self, size: int, /) -> bytes | None: ...


class Meter:
    """Counts the bytes of a stream; interrupts it when it is too large or was cancelled.

    expected, limit: bytes of the stream. reserve: bytes of the target's file system that must stay free. step: for the
    progress. look: bytes of the stream between checks of the free space.
    """

    def __init__(
        self,
        progress: Progress,
        target: Path,
        *,
        expected: int,
        limit: int,
        reserve: int,
        cancelled: threading.Event,
        step: str = "extract",
        look: int = _LOOK,
    ) -> None:
        self._progress = progress
        self._step, self._look = step, look
        self._target = target
        self._expected = expected
        self.limit = limit
        self._reserve = reserve
        self._cancelled = cancelled
        self._told = -1
        self._looked = 0
        self.count = 0

    def add(self, amount: int) -> None:
        """Count bytes and report progress. Raises Refused if the files do not fit, Failed if it was cancelled."""
        self.count += amount
        if self.count > self.limit:
            raise _outgrown(f"{self.limit >> 20} MiB are free for it")
        if self.count >= self._looked + self._look:
            self._looked = self.count
            space = os.statvfs(self._target)
            if space.f_bavail * space.f_frsize < self._reserve:
                raise _outgrown("the pool is full")
        if self._cancelled.is_set():
            raise Failed("the import was interrupted", hint="the import restarts with the agent")
        percent = min(99, self.count * 100 // self._expected)
        if percent != self._told:
            self._told = percent
            self._progress(self._step, percent)


def _outgrown(hint: str) -> Refused:
    return Refused(Code.INVALID, "the files of the image do not fit into the pool", hint=hint, field="file")


@contextmanager
def prepared(
    target: Path, largest: int, words: str = TAR, reads: Mapping[str, Path] = MappingProxyType({})
) -> Iterator[tuple[list[str], int]]:
    """The command line that unpacks standard input into `target`, and the file descriptor that it must inherit.

    largest: size limit of each file in bytes, holes included. words: of the program, for a shell. reads: what it can
    read, see View.
    """
    bounds = Bounds(memory=2 << 30, data=1 << 30, cpu=3600, file=largest)
    program = ["sh", "-c", f"{words} && echo unpacked"]
    with confinement.prepared(program, None, bounds, View(reads, {"/target": target}), keep_caps=_CAPABILITIES) as (
        line,
        fd,
    ):
        yield line, fd


def unpack(
    stream: Readable,
    target: Path,
    meter: Meter,
    complete: Callable[[], None],
    words: str = TAR,
    reads: Mapping[str, Path] = MappingProxyType({}),
) -> int:
    """Pass the stream to a program, by default tar, and return its size in bytes.

    complete: called at the stream's end; raises if the stream is incomplete. Raises Refused, Failed or CommandFailed.
    """
    with (
        pipe() as (for_tar, from_us),
        prepared(target, meter.limit, words, reads) as (line, fd),
        command.converse(line, timeout=_SECONDS, stdin=for_tar, keep=(fd,)) as tar,
    ):
        for_tar.close()
        try:
            _pump(stream, from_us, meter, tar)
            complete()
            from_us.close()
            tar.until("unpacked")
        except CommandFailed as error:
            if error.status == 128 + signal.SIGXFSZ or "No space left" in error.stderr:
                raise _outgrown(f"{meter.limit >> 20} MiB are free for it") from error
            raise
    return meter.count


def _pump(source: Readable, sink: FileIO, meter: Meter, tar: Conversation) -> None:
    while chunk := source.read(_CHUNK):
        meter.add(len(chunk))
        view = memoryview(chunk)
        try:
            while view:
                view = view[sink.write(view) :]
        except BrokenPipeError as error:
            raise tar.failure() from error


@contextmanager
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """A new pipe: its read end and its write end."""
    source, sink = os.pipe()
    with FileIO(source, "r") as reader, FileIO(sink, "w") as writer:
        yield reader, writer
