"""Steps on the pool: open its directories and inodes, and translate the kernel's errors."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from slicemgr.drivers.storage import btrfs_ioctl as ioctl
from slicemgr.errors import Code, Failed

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PoolFailed(Failed):
    """The kernel refused a step. `errno` is its error number, and `__cause__` its OSError."""

    def __init__(self, message: str, number: int, *, hint: str = "", code: Code = Code.FAILED) -> None:
        super().__init__(message, hint=hint, code=code)
        self.errno = number


class PoolFull(PoolFailed):
    """ENOSPC: the pool is full."""


class OverLimit(PoolFailed):
    """EDQUOT: a quota group has reached its limit."""


def tolerate(numbers: Collection[int], call: Callable[..., None], *arguments: object) -> None:
    """Call a function and ignore an OSError with one of these numbers."""
    try:
        call(*arguments)
    except OSError as error:
        if error.errno not in numbers:
            raise


@contextlib.contextmanager
def directory(path: Path | str, parent: int | None = None) -> Iterator[int]:
    """A file descriptor of a directory. A symbolic link as the last part of the path is refused. Raises OSError."""
    fd = os.open(path, _DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def inode(mount: int, subvolume: int, inode: int = ioctl.FIRST_FREE_ID) -> Iterator[int]:
    """A file descriptor of an inode by number, by default the subvolume's top directory. Raises OSError."""
    fd = ioctl.open_inode(mount, subvolume, inode)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Translate an OSError into an error that names the failed step and the remedy. Raises PoolFailed."""
    try:
        yield
    except OSError as error:
        number = error.errno or errno.EIO
        message = f"cannot {what}: {os.strerror(number)}"
        if number == errno.ENOSPC:
            hint = "the pool is full: delete slices or images, or enlarge it"
            raise PoolFull(message, number, hint=hint, code=Code.QUOTA) from error
        if number == errno.EDQUOT:
            raise OverLimit(message, number, hint="its disk limit is reached", code=Code.QUOTA) from error
        raise PoolFailed(message, number) from error
