"""The free space for btrfs metadata: the trees of files, extents and checksums.

Simple quotas charge a sliver for its own trees, but not for the entries of its extents in the trees of the whole file
system, so slivers together may use more metadata than they are charged for. A pool without space for metadata becomes
read-only, even if it has space for data.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slicemgr.drivers.storage import btrfs_ioctl as ioctl

_METADATA, _RESERVE = 1 << 2, 1 << 49
_TWICE = (1 << 4) | (1 << 5) | (1 << 6)  # RAID1, DUP, RAID10
_HEAD = struct.Struct("=QQ")
_SPACE = struct.Struct("=QQQ")  # kind, bytes allocated to it, bytes of those in use
_DEVICE = struct.Struct("=Q16sQQ3032s1024s")  # number, UUID, bytes used, size
_MOST = 64  # kinds of space requested; there are four
_SPACE_INFO = ioctl.request(3, 20, _HEAD.size)
_DEV_INFO = ioctl.request(3, 30, _DEVICE.size)


@dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata in bytes. room: what can still be used, including space that is not allocated to any kind."""

    used: int
    room: int


def metadata(pool: Path) -> Metadata:
    """The metadata of the file system that contains `pool`. Raises OSError."""
    fd = os.open(pool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return room(_spaces(fd), sum(size - used for used, size in _devices(fd)))
    finally:
        os.close(fd)


def room(spaces: Iterable[tuple[int, int, int]], unallocated: int) -> Metadata:
    """The sums of `metadata`. Pure. spaces: kind, bytes allocated, bytes used. The kernel's reserve does not count."""
    used = left = 0
    copies = 1
    for kind, total, taken in spaces:
        if kind & _RESERVE:
            left -= total
        elif kind & _METADATA:
            used += taken
            left += total - taken
            copies = 2 if kind & _TWICE else copies
    return Metadata(used, max(0, left + unallocated // copies))


def _spaces(fd: int) -> list[tuple[int, int, int]]:
    asked = _HEAD.pack(_MOST, 0) + bytes(_MOST * _SPACE.size)
    answer = ioctl.call(fd, _SPACE_INFO, asked)
    count = min(_MOST, _HEAD.unpack_from(answer)[1])
    return [_SPACE.unpack_from(answer, _HEAD.size + one * _SPACE.size) for one in range(count)]


def _devices(fd: int) -> Iterator[tuple[int, int]]:
    """Used bytes and size of each device. The numbers of removed devices are skipped."""
    highest, count = ioctl.devices(fd)
    for number in range(1, highest + 1):
        if not count:
            return
        try:
            answer = _DEVICE.unpack(ioctl.call(fd, _DEV_INFO, _DEVICE.pack(number, bytes(16), 0, 0, b"", b"")))
        except OSError:
            continue
        count -= 1
        yield answer[2], answer[3]
