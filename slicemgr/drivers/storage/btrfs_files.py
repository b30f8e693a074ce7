"""Functions of btrfs that roots need beside subvolumes: epochs, exchange, shared blocks and bytes written.

The epoch is an extended attribute of the root itself, in the `trusted` namespace, which tenants cannot access. It moves
with the root in one rename, so it identifies a root at any time.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from pathlib import Path

from slicemgr.drivers.storage import btrfs_ioctl as ioctl
from slicemgr.errors import Failed

_EPOCH = "trusted.slicemgr.epoch"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_FICLONE, _SET_FLAGS, _NO_COW = 0x40049409, 0x40086602, 0x00800000
_EXTENT_DATA = 108
_EXTENT = struct.Struct("=QQBBHBQQ")  # generation, decoded size, 3 × encoding, type, disk address, disk size
_INLINE = 0
_ROOT_GENERATION = struct.Struct("=160xQ")
_ITEM_HEAD = 25  # bytes of a tree node per item, without its data
_MOST_ITEMS = 400_000

_libc = ctypes.CDLL(None, use_errno=True)


def epoch(root: Path) -> int:
    """The number of a sliver's root; 0 for its first, or if there is no root."""
    try:
        return int(os.getxattr(root, _EPOCH, follow_symlinks=False))
    except (OSError, ValueError):
        return 0


def set_epoch(root: Path, number: int) -> None:
    """Write the epoch into a new root. Raises OSError."""
    os.setxattr(root, _EPOCH, str(number).encode(), follow_symlinks=False)


def put(made: Path, place: Path) -> None:
    """Move `made` to `place` atomically. If `place` exists, the two are exchanged. Raises Failed."""
    if not os.path.lexists(place):
        made.rename(place)
        return
    words = _AT_FDCWD, os.fsencode(made), _AT_FDCWD, os.fsencode(place), _RENAME_EXCHANGE
    if _libc.renameat2(*words) < 0:
        raise Failed(f"cannot exchange {made} and {place}: {os.strerror(ctypes.get_errno())}")


def share(source: Path, target: Path) -> None:
    """Create the file `target`, which shares all blocks with `source`, both without copy on write. Raises Failed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # QEMU may own the file
    with os.fdopen(os.open(source, flags), "rb") as old, target.open("xb") as new:
        fcntl.ioctl(new, _SET_FLAGS, struct.pack("=l", _NO_COW))
        try:
            fcntl.ioctl(new, _FICLONE, old.fileno())
        except OSError as error:
            raise Failed(f"cannot share {source}: {error.strerror}") from error


def written_since(tree: Path, base: Path) -> int | None:
    """Bytes of the subvolume `tree`, which began as a snapshot of `base`, that `base` does not have.

    Only tree nodes newer than the base are read. None if there are too many items to count quickly.
    """
    with _opened(base) as fd:
        since = _generation(fd, ioctl.subvolume_id(fd))
    with _opened(tree) as fd:
        return _newer(fd, ioctl.subvolume_id(fd), since)


def _newer(fd: int, tree: int, since: int) -> int | None:
    metadata, extents = 0, dict[int, int]()
    span = (0, 0, 0), (ioctl.MAX_U64, 255, ioctl.MAX_U64)
    for number, item in enumerate(ioctl.search(fd, tree, *span, since=since + 1)):
        if number > _MOST_ITEMS:
            return None
        metadata += _ITEM_HEAD + len(item.data)
        if item.type == _EXTENT_DATA and len(item.data) >= _EXTENT.size:
            generation, _, _, _, _, kind, where, size = _EXTENT.unpack_from(item.data)
            if kind != _INLINE and where and generation > since:
                extents[where] = size
    return metadata + sum(extents.values())


def _generation(fd: int, subvolume: int) -> int:
    """The last transaction that changed a subvolume."""
    for item in ioctl.search(
        fd, ioctl.ROOT_TREE, (subvolume, ioctl.ROOT_ITEM, 0), (subvolume, ioctl.ROOT_ITEM, ioctl.MAX_U64)
    ):
        return int(_ROOT_GENERATION.unpack_from(item.data)[0])
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), f"subvolume {subvolume}")


class _opened:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
