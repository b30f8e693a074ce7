"""Enter a namespace of a process with the calling thread alone, for what no program does."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TYPES = {"net": 0x40000000, "uts": 0x04000000}  # CLONE_NEW*
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def inside(pid: int, kind: str) -> Iterator[None]:
    """Work in the namespace of the process `pid`: `net` or `uts`. Raises OSError."""
    home = os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(f"/proc/{pid}/ns/{kind}", kind)
        try:
            yield
        finally:
            _enter(f"/proc/self/fd/{home}", kind)
    finally:
        os.close(home)


@contextmanager
def root(pid: int) -> Iterator[int]:
    """A descriptor of the root directory of the process `pid`. Raises OSError."""
    descriptor = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(path: str, kind: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, _TYPES[kind]) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)
