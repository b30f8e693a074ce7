"""Uploaded disk images: counted and hashed while they are written, removed again unless they are kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flask import request

from slicemgr.config import Config, Size
from slicemgr.errors import Code, Refused, invalid
from slicemgr.web.state import principal, state
from slicemgr.web.thread_limits import Kind

_CHUNK = 1 << 20
_WHAT = {"max_image": "a disk image", "max_report": "the report as a tar archive"}
_RESERVE = 64 << 20  # bytes of the file system that uploads leave free


@dataclass(frozen=True, slots=True)
class Received:
    """A spooled file, its sha256 and size in bytes."""

    path: Path
    sha256: str
    size: int

    def keep(self, target: Path) -> None:
        """Move the file to its destination."""
        self.path.rename(target)


@contextmanager
def receive(config: Config, setting: str = "max_image") -> Iterator[Received]:
    """The body of this request as a file; removed at the end unless it was kept.

    Refused if it is empty, larger than that setting of `web` or the free space, truncated, or too slow; Busy if there
    are too many uploads.
    """
    expected = expect(config, setting)
    with place(), spooled(config, _body(expected)) as received:
        if received.size != expected:
            raise invalid("file", f"was interrupted after {received.size} of {expected} bytes", "send it again")
        yield received


@contextmanager
def body(config: Config, most: int) -> Iterator[Received]:
    """The body of a request of a node, of at most so many bytes, as a file; removed at the end unless it was kept.

    Refused as by `receive`.
    """
    expected = expect(config)
    if expected > most:
        raise invalid("file", f"has {expected} bytes", f"send at most {most} bytes")
    with spooled(config, _body(expected)) as received:
        if received.size != expected:
            raise invalid("file", f"was interrupted after {received.size} of {expected} bytes", "send it again")
        yield received


def place() -> AbstractContextManager[None]:
    """A thread for an upload of the user. Busy if there is none."""
    return state().thread_limits.held(Kind.UPLOAD, principal().user)


def expect(config: Config, setting: str = "max_image") -> int:
    """The announced size in bytes. Refused if there is none, or not enough space."""
    expected = request.content_length
    if expected is None:
        raise invalid("Content-Length", "is missing", "send the size of the file")
    _check_size(config, expected, setting)
    request.max_content_length = expected + 1
    return expected


def _body(expected: int) -> Iterator[bytes]:
    left = expected
    while left and (chunk := request.stream.read(min(_CHUNK, left))):
        left -= len(chunk)
        yield chunk


@contextmanager
def spooled(config: Config, chunks: Iterable[bytes]) -> Iterator[Received]:
    """Data in chunks as a file; removed at the end unless it was kept."""
    descriptor, name = tempfile.mkstemp(dir=config.uploads_dir, prefix="incoming-")
    path = Path(name)
    try:
        digest, size = hashlib.sha256(), 0
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        yield Received(path, digest.hexdigest(), size)
    finally:
        path.unlink(missing_ok=True)


def _check_size(config: Config, size: int, setting: str) -> None:
    most: Size = getattr(config.web, setting)
    if size == 0:
        raise invalid("file", "is empty", f"send {_WHAT[setting]}")
    if size > most.bytes:
        raise invalid("file", f"has {size} bytes", f"send at most {most.bytes} bytes (web.{setting})")
    free = shutil.disk_usage(config.uploads_dir).free
    if size + _RESERVE > free:
        raise Refused(Code.QUOTA, f"the disk of the service has no space for {size} bytes", field="file")
