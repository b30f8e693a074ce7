"""The base of an image as a compressed btrfs send stream: one node extracts a base, and others receive it.

A stream is untrusted: the node that made it may be hostile. zstd decompresses it as the importer's user, and
stream_receiver writes it with the capabilities that tar has, in a confinement that can write only to the target.
Streams of version 1 have no compressed extents, so their bytes bound what they write.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.importer import confinement, disk_image, image_findings, unpack
from slicemgr.drivers.importer.confinement import Bounds, User, View
from slicemgr.drivers.importer.unpack import Meter
from slicemgr.errors import Failed

VERSION = 1  # of the extraction; a stream of another version is not used
LOOK = 1 << 20  # bytes of a stream between checks of the free space: an empty file has few bytes in it

_SECONDS = 1800.0
_WINDOW = 27  # the window of zstd is at most 2^27 bytes
_BOUNDS = Bounds(memory=1 << 30, data=512 << 20, cpu=3600, file=1 << 20)  # its errors go to a file
_HEAD = b"btrfs-stream\0" + (1).to_bytes(4, "little")  # linux/fs/btrfs/send.h
_SEND = f'btrfs send --quiet --proto 1 "$1" | zstd --quiet --force --threads=0 --long={_WINDOW} -o "$2"'
_DECOMPRESS = f'zstd --decompress --quiet --stdout --long={_WINDOW} <&"$1" >&"$2" && echo complete'
_PROGRAM = "/import/stream_receiver.py"  # its path inside the confinement
_SOURCE = Path(__file__).with_name("stream_receiver.py")
_COMMAND = struct.Struct("<IHI")  # as in stream_receiver
_UUID, _TRANSID = 1, 2
_LARGEST_HEAD = 4096  # bytes of the first command, which has a path


@dataclass(frozen=True, slots=True)
class Origin:
    """The subvolume that was sent: its UUID and the transaction, by which later streams refer to it."""

    uuid: bytes
    transaction: int


def write(base: Path, target: Path) -> tuple[str, int]:
    """Write the stream of a read-only subvolume to a file: its sha256 and size in bytes. Raises Failed.

    The name of the subvolume is in the stream.
    """
    unfinished = target.with_suffix(".new")
    try:
        words = ["bash", "-o", "pipefail", "-c", _SEND, "bash", str(base), str(unfinished)]
        command.run(words, timeout=_SECONDS)
        unfinished.chmod(0o600)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
            digest, size = hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size
        unfinished.rename(target)
    except (CommandFailed, OSError) as error:
        unfinished.unlink(missing_ok=True)
        raise Failed(f"the base cannot be sent: {error}") from error
    return digest, size


def receive(file: Path, target: Path, who: User, meter: Meter) -> Origin:
    """Write the files of a stream into the empty subvolume `target`.

    who: the importer's user, which decompresses the stream. Raises Refused if it is too large, Failed if it is not the
    stream of one whole subvolume. The caller removes `target` then.
    """
    words = f"{disk_image.SYSTEM_PYTHON} -I -B {_PROGRAM} /target"
    try:
        with _decompressed(file, who) as (stream, talk):
            checked = _Begun(stream)
            unpack.unpack(checked, target, meter, lambda: _complete(talk), words, {_PROGRAM: _SOURCE})
    except CommandFailed as error:
        text = image_findings.shown(error.stderr.strip()[-300:], 300)
        raise Failed(f"the stream of the base cannot be received: {text}") from error
    return checked.origin


@contextmanager
def _decompressed(file: Path, who: User) -> Iterator[tuple[FileIO, command.Conversation]]:
    with file.open("rb") as compressed, unpack.pipe() as (stream, sink):
        descriptors = (compressed.fileno(), sink.fileno())
        words = ["bash", "-c", _DECOMPRESS, "bash", *map(str, descriptors)]
        view = View({}, {})
        with confinement.converse(words, who, _BOUNDS, view, timeout=_SECONDS, env={}, keep=descriptors) as talk:
            sink.close()
            yield stream, talk


def _complete(talk: command.Conversation) -> None:
    talk.until("complete")


class _Begun:
    """A stream of which the version and the first command were read. origin: of the subvolume."""

    def __init__(self, stream: FileIO) -> None:
        """Raises Failed if it is not a stream of version 1."""
        self._stream = stream
        head = self._exactly(len(_HEAD))
        if head != _HEAD:
            raise Failed("the file is not a btrfs send stream of version 1")
        first = self._exactly(_COMMAND.size)
        length = _COMMAND.unpack(first)[0] if len(first) == _COMMAND.size else 0
        body = self._exactly(min(length, _LARGEST_HEAD))
        fields, at = {}, 0
        while at + 4 <= len(body):
            kind, size = struct.unpack_from("<HH", body, at)
            fields[kind] = body[at + 4 : at + 4 + size]
            at += 4 + size
        self.origin = Origin(fields.get(_UUID, b""), int.from_bytes(fields.get(_TRANSID, b"")[:8], "little"))
        if len(self.origin.uuid) != 16:
            raise Failed("the stream of the base does not begin with a subvolume")
        self._begin = head + first + body

    def read(self, size: int, /) -> bytes:
        if self._begin:
            begin, self._begin = self._begin, b""
            return begin
        return self._stream.read(size) or b""

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size and (more := self._stream.read(size - len(found))):
            found += more
        return found
