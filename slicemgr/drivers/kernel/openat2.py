"""openat2(2), which neither Python nor glibc offers: resolve a path as if a directory were `/`."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time

NO_MAGICLINKS = 0x02
IN_ROOT = 0x10

_SYSCALL = 437  # the same on every architecture
_TRIES = 16  # before the first pause
_PATIENCE = 2.0  # seconds; a rename anywhere on the node during the resolution of `..` makes the kernel return EAGAIN
_PAUSE = 0.001  # seconds

_libc = ctypes.CDLL(None, use_errno=True)


def open_in_root(root: int, path: str, flags: int) -> int:
    """Open `path` below the open directory `root`; absolute symlinks and `..` stay inside. Raises OSError.

    The function never creates a file: to be safe, callers create by the descriptor of the directory. EAGAIN, which
    openat2(2) returns for a path with `..` if any process renames a file meanwhile, is retried for about 2 s.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, NO_MAGICLINKS | IN_ROOT)
    number, tries, end = 0, 0, time.monotonic() + _PATIENCE
    while tries < _TRIES or time.monotonic() < end:
        if tries >= _TRIES:
            time.sleep(_PAUSE)
        tries += 1
        fd = int(_libc.syscall(_SYSCALL, root, ctypes.c_char_p(os.fsencode(path)), how, ctypes.c_size_t(len(how))))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)
