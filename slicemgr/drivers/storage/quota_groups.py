"""Quota groups that deleted subvolumes leave."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from slicemgr.drivers.storage import btrfs_ioctl as ioctl


def remove_freed(fd: int, members: Iterable[int]) -> list[int]:
    """Remove the groups of subvolumes that the cleaner has freed: kernels before 6.11 leave them behind, empty.

    fd: any open file of the file system. Returns those that still contain data that a clone shares; they outlive their
    parent group, until the clone is deleted. Simple quotas count changes of a freed subvolume's blocks at the end of
    the transaction: if the group is missing then, the kernel aborts the transaction, and the whole file system becomes
    read-only. So the transaction is committed first. Raises OSError.
    """
    freed = [one for one in members if not _exists(fd, one)]
    shared: list[int] = []
    if freed and ioctl.quota_status(fd) & ioctl.STATUS_SIMPLE:
        shared = [one for one in freed if ioctl.group_usage(fd, one, one).get(one)]
        freed = [one for one in freed if one not in shared]
        if freed:
            ioctl.sync(fd)
    for member in freed:
        try:
            ioctl.destroy_group(fd, member)
        except OSError as error:
            if error.errno == errno.EBUSY:
                shared.append(member)
            elif error.errno != errno.ENOENT:
                raise
    return shared


def _exists(fd: int, subvolume: int) -> bool:
    """Whether the subvolume exists, or was deleted and the cleaner has yet to free it."""
    span = (subvolume, ioctl.ROOT_ITEM, 0), (subvolume, ioctl.ROOT_ITEM, ioctl.MAX_U64)
    return any(ioctl.search(fd, ioctl.ROOT_TREE, *span))
