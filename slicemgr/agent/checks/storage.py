"""The pool: its file system, quotas and space."""

from __future__ import annotations

import os

from slicemgr.agent.checks.result import Check
from slicemgr.drivers.storage import btrfs_space
from slicemgr.drivers.storage.btrfs import Pool, QuotaMode
from slicemgr.errors import SlicemgrError
from slicemgr.human import size

_NODES = 4096  # bytes of a tree node of the pool: see docs/how-to/install.md
_METADATA_LEFT = 0.1  # share of the space for metadata; with less, the node needs attention
_OLD_KERNEL = (6, 7)


def pool(pool: Pool) -> Check:
    try:
        pool.check()
        nodes = pool.node_size()
    except SlicemgrError as error:
        return Check("pool", False, str(error), "mount a btrfs filesystem there (see docs/how-to/install.md)")
    detail = f"btrfs at {pool.path}, nodes of {nodes >> 10} KiB"
    if nodes > _NODES:
        detail += "; slivers use more than twice the disk space, and creating many of them is slower"
        return Check(
            "pool", None, detail, "use `mkfs.btrfs --nodesize 4k` for a new pool; an existing pool cannot be changed"
        )
    return Check("pool", True, detail)


def quota(pool: Pool) -> Check:
    try:
        mode = pool.quota_mode()
    except (SlicemgrError, OSError) as error:
        return Check("disk quota", False, str(error), "mount the pool first")
    release = os.uname().release
    match mode:
        case QuotaMode.SIMPLE:
            return Check("disk quota", True, "simple quotas")
        case QuotaMode.FULL:
            return Check(
                "disk quota",
                None,
                f"full quota groups on Linux {release}: snapshots become slower as slivers grow, and tenants cannot "
                "create subvolumes",
                f"Linux {_OLD_KERNEL[0]}.{_OLD_KERNEL[1]} or newer supports simple quotas",
            )
        case QuotaMode.NONE:
            return Check(
                "disk quota",
                None,
                "not available; the disk limits of slivers are not enforced",
                "restart the agent after `btrfs quota enable` works on the pool",
            )


def space(pool: Pool) -> Check:
    try:
        space = pool.space()
    except (SlicemgrError, OSError) as error:
        return Check("pool space", False, str(error), "mount the pool first")
    share = space.free / space.total if space.total else 0.0
    return Check("pool space", None if share < 0.1 else True, f"{share:.0%} free", "delete slices or grow the pool")


def metadata(pool: Pool) -> Check:
    name, remedy = "pool metadata", "grow the pool, or delete slices with many small files"
    try:
        found = btrfs_space.metadata(pool.path)
    except OSError as error:
        return Check(name, False, f"cannot be read: {error.strerror}", "mount the pool first")
    share = found.room / ((found.used + found.room) or 1)
    detail = f"{size(found.used)} in use, {size(found.room)} available"
    return Check(name, None if share < _METADATA_LEFT else True, detail, remedy)
