"""The serial console output of virtual machines, which virtlogd stores in files of bounded size."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slicemgr import names

_TAIL = 4096  # bytes read from the end of the file
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\n]")
_LONGEST = 120


def size(pool: Path, sliver: str) -> int:
    """The size of the console log in bytes; 0 if there is no console log."""
    try:
        return (names.sliver_dir(pool, sliver) / names.CONSOLE_LOG).lstat().st_size
    except OSError:
        return 0


def last_line(pool: Path, sliver: str) -> str:
    """The last line that is not empty, without terminal control sequences; "" if there is none."""
    try:
        fd = os.open(names.sliver_dir(pool, sliver) / names.CONSOLE_LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL))
        return last_of(file.read())


def last_of(data: bytes) -> str:
    """The part of `last_line` that works on the bytes of the log. Pure."""
    lines = [line.strip() for line in _CONTROL.sub(b"", data).split(b"\n")]
    return next((line.decode("ascii")[-_LONGEST:] for line in reversed(lines) if line), "")
