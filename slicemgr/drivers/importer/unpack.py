"""The tar stream of an image on its way into a base: counted, and unpacked where nothing else can be written.

tar is root, for it gives files to owners; but it has a few capabilities only, no network and limits, and is confined as
importers are: what the stream says was said by a stranger. Extended attributes are those of users and the capabilities
of files: `trusted` ones are this program's own, other `security` ones the node's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed, Conversation
from slicemgr.drivers.importer import confinement
from slicemgr.drivers.importer.confinement import Bounds, View
from slicemgr.errors import Code, Failed, Refused

Progress = Callable[[str, int | None], None]

_CHUNK = 1 << 20
_SECONDS = 1800.0
_LOOK = 16 << 20  # bytes of the stream between two looks at the pool: files without content take room, too
_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",  # set-id bits of files that were given away
    "CAP_MKNOD",
    "CAP_SETFCAP",
)
_TAR = (
    "tar --extract --file=- --numeric-owner --same-owner --same-permissions --acls"
    " --xattrs --xattrs-include='user.*' --xattrs-include=security.capability --directory=/target"
)


class Meter:
    """Counts what streams by; stops it when it is too much or no longer wanted.

    expected, limit: bytes of the stream. reserve: bytes that the target's file system must keep.
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
    ) -> None:
        self._progress = progress
        self._target = target
        self._expected = expected
        self.limit = limit
        self._reserve = reserve
        self._cancelled = cancelled
        self._told = -1
        self._looked = 0
        self.count = 0

    def add(self, amount: int) -> None:
        self.count += amount
        if self.count > self.limit:
            raise _outgrown(f"{self.limit >> 20} MiB are free for it")
        if self.count >= self._looked + _LOOK:
            self._looked = self.count
            space = os.statvfs(self._target)
            if space.f_bavail * space.f_frsize < self._reserve:
                raise _outgrown("the pool is full")
        if self._cancelled.is_set():
            raise Failed("the import was interrupted", hint="the import restarts with the agent")
        percent = min(99, self.count * 100 // self._expected)
        if percent != self._told:
            self._told = percent
            self._progress("extract", percent)


def _outgrown(hint: str) -> Refused:
    return Refused(Code.INVALID, "the files of the image do not fit into the pool", hint=hint, field="file")


@contextmanager
def prepared(target: Path, largest: int) -> Iterator[tuple[list[str], int]]:
    """The words that unpack standard input into `target`, and the descriptor that they need.

    largest: bytes of a file, holes included.
    """
    bounds = Bounds(memory=2 << 30, data=1 << 30, cpu=3600, file=largest)
    program = ["sh", "-c", f"{_TAR} && echo unpacked"]
    with confinement.prepared(program, None, bounds, View({}, {"/target": target}), keep_caps=_CAPABILITIES) as (
        line,
        fd,
    ):
        yield line, fd


def unpack(stream: FileIO, target: Path, meter: Meter, complete: Callable[[], None]) -> int:
    """From the stream through us into tar; the bytes of the stream.

    complete: called at its end; raises if that is no good end. Raises Refused, Failed, CommandFailed.
    """
    with (
        pipe() as (for_tar, from_us),
        prepared(target, meter.limit) as (line, fd),
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


def _pump(source: FileIO, sink: FileIO, meter: Meter, tar: Conversation) -> None:
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
    """Where bytes come out, and where they go in."""
    source, sink = os.pipe()
    with FileIO(source, "r") as reader, FileIO(sink, "w") as writer:
        yield reader, writer
