"""What virtual machines wrote to their serial consoles, as virtlogd keeps it (bounded)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slicemgr import names

_TAIL = 4096  # bytes looked at
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\n]")
_LONGEST = 120


def size(pool: Path, sliver: str) -> int:
    """Bytes said so far; 0 where there is no console log (yet)."""
    try:
        return (names.sliver_dir(pool, sliver) / names.CONSOLE_LOG).lstat().st_size
    except OSError:
        return 0


def last_line(pool: Path, sliver: str) -> str:
    """The last line with something on it, without terminal control; "" if there is none."""
    try:
        fd = os.open(names.sliver_dir(pool, sliver) / names.CONSOLE_LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL))
        return last_of(file.read())


def last_of(data: bytes) -> str:
    """Pure part of `last_line`."""
    lines = [line.strip() for line in _CONTROL.sub(b"", data).split(b"\n")]
    return next((line.decode("ascii")[-_LONGEST:] for line in reversed(lines) if line), "")
