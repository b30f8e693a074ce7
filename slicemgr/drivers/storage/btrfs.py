"""The pool: subvolumes, snapshots and quota groups on btrfs.

Layout: `bases/SHA256` (read-only) and `slivers/ID` (a subvolume; `root` in it is a snapshot of a base, and
`snapshots/ID` are snapshots that the sliver keeps of it). Bases and containers lie in directories of root with mode
0700, because they contain setuid files that the host's users must not reach. `slivers` itself has mode 0711, so that
QEMU reaches the files of its own sliver.

With simple quotas a sliver's limit is set on its own parent group `1/SERIAL`: nested subvolumes would escape a limit on
a subvolume's own group. Full quotas cannot count a snapshot in a parent group without a rescan of the whole file
system, and limit nothing until it ends. With them, the limit is set on the root's own group, and slivers may not create
subvolumes. All functions are thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slicemgr.drivers.storage import btrfs_ioctl as ioctl
from slicemgr.drivers.storage import quota_groups
from slicemgr.drivers.storage.btrfs_ioctl import Ref
from slicemgr.drivers.storage.btrfs_step import PoolFailed, directory, inode, step, tolerate
from slicemgr.errors import Code, Refused

log = logging.getLogger(__name__)

_LEVEL_1 = 1 << 48
_DELETE_PASSES = 8  # attempts to delete a tree in which a process still creates subvolumes, before an error
_CLEANER_LOOK = 0.1  # seconds between checks of the cleaner's progress


class QuotaMode(StrEnum):
    """The quota mode: `simple` charges what a sliver writes, `full` is slow, `none` limits nothing."""

    SIMPLE = "simple"
    FULL = "full"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Space:
    """The size of the pool's file system in bytes; free: what can still be written."""

    total: int
    used: int
    free: int


@dataclass(frozen=True, slots=True)
class Subvolume:
    """A subvolume. path: relative to the top of the file system, which need not be the pool's directory."""

    id: int
    parent: int
    path: Path


def quota_modes_to_try(current: QuotaMode) -> tuple[QuotaMode, ...]:
    """The modes to try, best first. A mode that is on is kept: a change would remove its groups and limits."""
    return () if current is not QuotaMode.NONE else (QuotaMode.SIMPLE, QuotaMode.FULL)


def inner_first(top: int, children: Callable[[int], list[Ref]]) -> list[Ref]:
    """All subvolumes below `top`, each before the subvolume that contains it."""
    found: list[Ref] = []
    waiting = [top]
    while waiting:
        below = children(waiting.pop())
        found += below
        waiting += [ref.id for ref in below]
    return found[::-1]


class Pool:
    """The directory on btrfs that contains all bases and slivers of a node."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Raise Refused unless the pool is a directory on a writable btrfs that runs programs, and we are root."""
        try:
            with directory(self.path) as fd:
                ioctl.filesystem_id(fd)
                ioctl.subvolume_id(fd)
                mount = os.fstatvfs(fd).f_flag
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP):
                raise _unusable(self.path, "is not on btrfs", "mount a btrfs file system there") from error
            if error.errno == errno.EPERM:
                raise _unusable(self.path, "needs root to be managed", "run the agent as root") from error
            raise _unusable(self.path, f"cannot be opened: {error.strerror}", "make it a directory") from error
        for flag, word in ((os.ST_RDONLY, "ro"), (os.ST_NOEXEC, "noexec"), (os.ST_NOSUID, "nosuid")):
            if mount & flag:
                raise _unusable(self.path, f"is mounted {word}", f"remount it without {word}")

    def ensure_layout(self) -> None:
        """Create `bases` with mode 0700 and `slivers` with mode 0711, so that QEMU reaches its own sliver's files.

        Owner and mode of existing directories are changed only if they differ. Raises PoolFailed.
        """
        for name, mode in (("bases", 0o700), ("slivers", 0o711)):
            where = self.path / name
            with step(f"make {where}"):
                with contextlib.suppress(FileExistsError):
                    where.mkdir(mode=mode)
                with directory(where) as fd:
                    held = os.fstat(fd)
                    if (held.st_uid, held.st_gid) != (0, 0):
                        os.fchown(fd, 0, 0)
                    if stat.S_IMODE(held.st_mode) != mode:
                        os.fchmod(fd, mode)

    def quota_mode(self) -> QuotaMode:
        """The file system's quota mode, read from its quota tree, so that /sys need not be mounted."""
        with step(f"read the quota mode of {self.path}"), directory(self.path) as fd:
            try:
                flags = ioctl.quota_status(fd)
            except FileNotFoundError:
                return QuotaMode.NONE
        if not flags & ioctl.STATUS_ON:
            return QuotaMode.NONE
        return QuotaMode.SIMPLE if flags & ioctl.STATUS_SIMPLE else QuotaMode.FULL

    def enable_quota(self) -> QuotaMode:
        """Enable the best quota mode that this kernel supports, log the result, and return the mode in effect."""
        commands = {QuotaMode.SIMPLE: ioctl.QUOTA_ENABLE_SIMPLE, QuotaMode.FULL: ioctl.QUOTA_ENABLE}
        for mode in quota_modes_to_try(self.quota_mode()):
            with directory(self.path) as fd:
                try:
                    ioctl.quota_ctl(fd, commands[mode])
                except OSError as error:
                    log.warning("%s quotas cannot be enabled on %s: %s", mode, self.path, error.strerror)
                    continue
            log.info("%s quotas enabled on %s", mode, self.path)
            break
        return self.quota_mode()

    def create_subvolume(self, path: Path, *, qgroup: int | None = None) -> None:
        """Create an empty subvolume, charged to `qgroup` from its first byte. PoolFailed (EEXIST) if it exists."""
        with step(f"make the subvolume {path}"), directory(path.parent) as parent:
            ioctl.create_subvolume(parent, os.fsencode(path.name), qgroup)

    def snapshot(self, source: Path, target: Path, *, qgroup: int | None = None, readonly: bool = False) -> None:
        """Create `target` as a snapshot of the subvolume `source`; `qgroup` is charged for what it will write."""
        with (
            step(f"snapshot {source} to {target}"),
            directory(source) as fd,
            directory(target.parent) as parent,
        ):
            ioctl.snapshot(parent, os.fsencode(target.name), fd, qgroup, readonly)

    def set_readonly(self, path: Path, flag: bool) -> None:
        """Set or clear the read-only flag of the subvolume `path`. Raises PoolFailed."""
        with step(f"set {path} {'read-only' if flag else 'writable'}"), directory(path) as fd:
            ioctl.set_readonly(fd, flag)

    def set_received(self, path: Path, origin: bytes, transaction: int) -> None:
        """Record that the subvolume `path` is a copy of another one, by the UUID and transaction of that one."""
        with step(f"mark {path} as received"), directory(path) as fd:
            ioctl.set_received(fd, origin, transaction)

    def is_subvolume(self, path: Path) -> bool:
        """Whether `path` itself (not a symlink's target) is a subvolume; False if it does not exist."""
        try:
            with directory(path) as fd:
                return _is_subvolume(fd)
        except OSError:
            return False

    def create_group(self, group: int) -> None:
        """Create the quota group. No effect if it exists or quotas are off."""
        with step(f"make the quota group {name_of(group)}"), directory(self.path) as fd:
            tolerate((errno.EEXIST, errno.ENOTCONN), ioctl.create_group, fd, group)

    def limit_group(self, group: int, max_bytes: int | None) -> None:
        """Limit the exclusive bytes of the group to `max_bytes`; None removes the limit. No effect without quotas."""
        with step(f"limit the quota group {name_of(group)}"), directory(self.path) as fd:
            tolerate((errno.ENOTCONN,), ioctl.limit_group, fd, group, max_bytes)

    def limit_subvolume(self, path: Path, max_bytes: int | None) -> None:
        """Limit the subvolume's own group, without nested subvolumes. No effect without quotas."""
        with step(f"limit {path}"), directory(path) as fd:
            tolerate((errno.ENOTCONN,), ioctl.limit_group, fd, ioctl.subvolume_id(fd), max_bytes)

    def own_usage(self, path: Path) -> int | None:
        """Bytes of the subvolume's own group, as of the last commit; None without quotas."""
        with step(f"measure {path}"), directory(path) as fd:
            own = ioctl.subvolume_id(fd)
            try:
                return ioctl.group_usage(fd, own, own).get(own)
            except FileNotFoundError:
                return None

    def destroy_group(self, group: int) -> bool:
        """Remove the group; False if the kernel's cleaner has yet to free members of it. True if it is absent."""
        with step(f"remove the quota group {name_of(group)}"), directory(self.path) as fd:
            return self._destroy_group(fd, group)

    def release_group(self, group: int) -> bool:
        """Remove the group of subvolumes that remain: nothing limits them then. False if the kernel refuses."""
        with step(f"release the quota group {name_of(group)}"), directory(self.path) as fd:
            tolerate((errno.ENOENT, errno.ENOTCONN), ioctl.limit_group, fd, group, None)
            try:
                members = [one for one in ioctl.related_groups(fd, group) if one < _LEVEL_1]
            except FileNotFoundError:
                return True  # without quotas
            for member in members:
                tolerate((errno.ENOENT, errno.ENOTCONN), ioctl.assign_group, fd, member, group, False)
            return self._destroy_group(fd, group)

    def groups(self) -> frozenset[int]:
        """All quota groups of level 1, by id."""
        return frozenset(self.usage())

    def in_use(self, groups: Collection[int]) -> frozenset[int]:
        """Those of the level-1 groups that have a subvolume which is not deleted."""
        with step(f"read the members of quota groups of {self.path}"), directory(self.path) as fd:
            alive = {ref.id for ref in ioctl.all_subvolumes(fd)} if groups else set()
            return frozenset(one for one in groups if not alive.isdisjoint(ioctl.related_groups(fd, one)))

    def usage(self) -> dict[int, int]:
        """Bytes charged to each group of level 1, as of the last commit (every 30 s by default; `sync` commits)."""
        with step(f"read the quota groups of {self.path}"), directory(self.path) as fd:
            try:
                return ioctl.group_usage(fd, _LEVEL_1, 2 * _LEVEL_1 - 1)
            except FileNotFoundError:
                return {}

    def charges(self) -> dict[int, tuple[int, int]]:
        """Referenced and exclusive bytes of each quota group of level 0 or 1; {} without quotas."""
        with step(f"read the quota groups of {self.path}"), directory(self.path) as fd:
            try:
                return ioctl.group_charges(fd, 0, 2 * _LEVEL_1 - 1)
            except FileNotFoundError:
                return {}

    def subvolume_id(self, path: Path) -> int:
        """The id of the subvolume, which is also the id of its level-0 group."""
        with step(f"read the subvolume id of {path}"), directory(path) as fd:
            return ioctl.subvolume_id(fd)

    def group_directory(self, group: int) -> Path:
        """The directory in which the kernel (5.9 or later) shows limit and use of the quota group, if it exists."""
        with step(f"read the UUID of {self.path}"), directory(self.path) as fd:
            return ioctl.sysfs(fd) / "qgroups" / name_of(group).replace("/", "_")

    def limits(self) -> dict[int, int | None]:
        """The limit of each group of level 1 in bytes; None if unlimited."""
        with step(f"read the quota limits of {self.path}"), directory(self.path) as fd:
            try:
                found = ioctl.group_limits(fd, _LEVEL_1, 2 * _LEVEL_1 - 1)
            except FileNotFoundError:
                return {}
        return {limit.group: limit.max_bytes for limit in found}

    def subvolumes(self) -> list[Subvolume]:
        """Every subvolume of the file system, by id."""
        with step(f"list the subvolumes of {self.path}"), directory(self.path) as fd:
            refs = {ref.id: ref for ref in ioctl.all_subvolumes(fd)}
            walk = ioctl.Paths(fd, refs)
            return [Subvolume(ref.id, ref.parent, Path(os.fsdecode(walk.path(ref)))) for ref in refs.values()]

    def nested_below(self, path: Path) -> list[Path]:
        """All subvolumes below the subvolume `path`, inner ones first; their names may contain any bytes."""
        with step(f"list the subvolumes below {path}"), directory(path) as fd:
            top = ioctl.subvolume_id(fd)
            refs = inner_first(top, lambda parent: ioctl.children(fd, parent))
            walk = ioctl.Paths(fd, {ref.id: ref for ref in refs})
            return [path / os.fsdecode(walk.path(ref)) for ref in refs]

    def delete_tree(self, path: Path, group: int | None = None) -> bool:
        """Delete the subvolume `path` with all below it, then its group; absent ones are skipped.

        False if the group must wait for the kernel's cleaner; `collect_groups` removes it later. The limit is removed
        first, since a subvolume of a full group cannot be deleted. Subvolumes are found by id and opened by handle, so
        a tenant's names, depth or symlinks cannot redirect the deletion. Raises PoolFailed.
        """
        with step(f"delete {path}"), directory(self.path) as fd:
            if group is not None:
                tolerate((errno.ENOENT, errno.ENOTCONN), ioctl.limit_group, fd, group, None)
            with contextlib.suppress(FileNotFoundError), directory(path.parent) as parent:
                self._delete_from(parent, path, fd)
            return group is None or self._destroy_group(fd, group)

    def collect_groups(self, wanted: Collection[int]) -> frozenset[int]:
        """Remove the level-1 groups that are neither in `wanted` nor have a live subvolume; the ids removed.

        It never waits for the cleaner. The usage of a group is ignored: full quotas may keep counts of deleted data.
        Group 1/0 is kept: serials begin at 1, and other programs use a group of that id.
        """
        unwanted = self.groups() - set(wanted) - {_LEVEL_1}
        self.collect_subvolume_groups()
        return frozenset(group for group in sorted(unwanted) if self.destroy_group(group))

    def collect_subvolume_groups(self) -> None:
        """Remove groups of deleted subvolumes: Linux before 6.11 keeps them, any while the data is still shared."""
        if self.quota_mode() is QuotaMode.NONE:
            return
        with step(f"tidy the quota groups of {self.path}"), directory(self.path) as fd:
            alive = {ref.id for ref in ioctl.all_subvolumes(fd)}
            quota_groups.remove_freed(fd, ioctl.group_usage(fd, ioctl.FIRST_FREE_ID, _LEVEL_1 - 1).keys() - alive)

    def space(self) -> Space:
        """The size of the pool's file system. Raises PoolFailed."""
        with step(f"measure {self.path}"):
            held = os.statvfs(self.path)
        total = held.f_blocks * held.f_frsize
        return Space(total, total - held.f_bfree * held.f_frsize, held.f_bavail * held.f_frsize)

    def node_size(self) -> int:
        """The size of a node of the file system's trees in bytes."""
        with step(f"read the node size of {self.path}"), directory(self.path) as fd:
            return ioctl.node_size(fd)

    def sync(self) -> None:
        """Commit all writes, which also wakes the cleaner of deleted subvolumes."""
        with step(f"sync {self.path}"), directory(self.path) as fd:
            ioctl.sync(fd)

    def wait_cleaned(self, timeout: float) -> bool:
        """Wait until the space of all deleted subvolumes is free; False after `timeout` seconds."""
        end = time.monotonic() + timeout
        with step(f"wait for the cleaner of {self.path}"), directory(self.path) as fd:
            while ioctl.deleted_subvolumes(fd):
                if time.monotonic() > end:
                    return False
                ioctl.sync(fd)
                time.sleep(_CLEANER_LOOK)
        return True

    def _delete_from(self, parent: int, path: Path, pool: int) -> None:
        name = os.fsencode(path.name)
        with directory(path.name, parent) as fd:
            if not _is_subvolume(fd):
                raise PoolFailed(f"{path} is not a subvolume", errno.EINVAL, hint="remove it by hand")
            top = ioctl.subvolume_id(fd)
        for ref in (Ref(top, 0, 0, b""), *inner_first(top, lambda subvolume: ioctl.children(pool, subvolume))):
            tolerate((errno.ENOENT, errno.ENOTCONN), ioctl.limit_group, pool, ref.id, None)
        for left in reversed(range(_DELETE_PASSES)):
            for ref in inner_first(top, lambda subvolume: ioctl.children(pool, subvolume)):
                _destroy_nested(pool, ref)
            try:
                ioctl.destroy(parent, name)
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not left:
                    raise

    def _destroy_group(self, fd: int, group: int) -> bool:
        try:
            members = [one for one in ioctl.related_groups(fd, group) if one < _LEVEL_1]
            for member in quota_groups.remove_freed(fd, members):
                ioctl.assign_group(fd, member, group, False)
            ioctl.destroy_group(fd, group)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            if error.errno not in (errno.ENOENT, errno.ENOTCONN):
                raise
        return True


def name_of(group: int) -> str:
    """The name of a quota group as in btrfs-progs, such as `1/57`."""
    return f"{group >> 48}/{group & (_LEVEL_1 - 1)}"


def _destroy_nested(pool: int, ref: Ref) -> None:
    """Delete a nested subvolume through its directory. A subvolume that has gone or is not empty is skipped."""
    try:
        with inode(pool, ref.parent, ref.dirid) as folder:
            try:
                ioctl.destroy(folder, ref.name)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                with inode(pool, ref.parent) as holder:
                    ioctl.set_readonly(holder, False)
                ioctl.destroy(folder, ref.name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE, errno.ENOTEMPTY):
            raise


def _is_subvolume(fd: int) -> bool:
    if os.fstat(fd).st_ino != ioctl.FIRST_FREE_ID:
        return False
    try:
        ioctl.filesystem_id(fd)
    except OSError:
        return False
    return True


def _unusable(path: Path, what: str, hint: str) -> Refused:
    return Refused(Code.INVALID, f"{path} {what}", hint=hint, field="node.pool")
