"""How much a btrfs file system reads beyond what a program asks for.

Its own default is 4 MiB, so a program and its libraries are read as a whole. Snapshots share their data on the disk,
but each has its own pages in memory: what two slivers read is in memory twice.
"""

from __future__ import annotations

from pathlib import Path

from slicemgr.drivers.storage import btrfs_ioctl, btrfs_step


def setting(path: Path) -> Path:
    """The file with the setting of the file system of a directory, in KiB (Linux 5.9 or later). Raises OSError."""
    with btrfs_step.directory(path) as fd:
        return btrfs_ioctl.sysfs(fd) / "bdi" / "read_ahead_kb"


def limit(path: Path, size: int) -> None:
    """Limit it for files that are opened from now on, to `size` bytes. Raises OSError."""
    file, kibibytes = setting(path), size >> 10
    if int(file.read_text()) != kibibytes:
        file.write_text(str(kibibytes))
