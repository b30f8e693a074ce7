"""Change the size of a mounted tmpfs by fsconfig(2), which Python and glibc 2.36 lack.

`mount -o remount` would also change flags of the mount, and would resolve the path again.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from slicemgr.drivers.kernel import openat2

_FSCONFIG, _FSPICK = 431, 433  # the same on every architecture
_CLOEXEC, _EMPTY_PATH = 0x01, 0x08
_SET_STRING, _RECONFIGURE = 1, 7
_TMPFS = 0x01021994  # in the first field of struct statfs
_STATFS = 256  # bytes, more than the structure has

_libc = ctypes.CDLL(None, use_errno=True)


def resize(root: int, path: str, size: int) -> None:
    """Let the tmpfs at `path` below the open directory `root` hold `size` bytes. Raises OSError.

    EINVAL if it holds more. No effect if another file system is there: that one is the tenant's.
    """
    target = openat2.open_in_root(root, path, os.O_PATH | os.O_DIRECTORY)
    try:
        if _type(target) == _TMPFS:
            with _picked(target) as context:
                _call(_FSCONFIG, context, _SET_STRING, b"size", str(size).encode(), 0)
                _call(_FSCONFIG, context, _RECONFIGURE, None, None, 0)
    finally:
        os.close(target)


@contextmanager
def _picked(target: int) -> Iterator[int]:
    context = _call(_FSPICK, target, b"", _CLOEXEC | _EMPTY_PATH)
    try:
        yield context
    finally:
        os.close(context)


def _type(descriptor: int) -> int:
    found = ctypes.create_string_buffer(_STATFS)
    if _libc.fstatfs(descriptor, found) < 0:
        raise _error()
    return int(struct.unpack_from("@l", found)[0])


def _call(*words: int | bytes | None) -> int:
    """A system call with its number and arguments. Raises OSError."""
    result = int(
        _libc.syscall(*(ctypes.c_char_p(one) if not isinstance(one, int) else ctypes.c_long(one) for one in words))
    )
    if result < 0:
        raise _error()
    return result


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
