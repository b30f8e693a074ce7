"""How much a btrfs file system reads beyond what a program asks for.

Its own default is 4 MiB, so a program and its libraries are read as a whole. Snapshots share their data on the disk,
but each has its own pages in memory: what two slivers read is in memory twice.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from slicemgr.drivers.storage import btrfs_ioctl

_SYSFS = Path("/sys/fs/btrfs")


def setting(directory: Path) -> Path:
    """The file with the setting of the file system of a directory, in KiB (Linux 5.9 or later). Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        filesystem = uuid.UUID(bytes=btrfs_ioctl.filesystem_id(descriptor))
    finally:
        os.close(descriptor)
    return _SYSFS / str(filesystem) / "bdi" / "read_ahead_kb"


def limit(directory: Path, size: int) -> None:
    """Limit it for files that are opened from now on, to `size` bytes. Raises OSError."""
    file, kibibytes = setting(directory), size >> 10
    if int(file.read_text()) != kibibytes:
        file.write_text(str(kibibytes))
