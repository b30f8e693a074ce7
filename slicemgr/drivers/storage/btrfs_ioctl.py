"""The kernel's btrfs calls (linux/btrfs.h, btrfs_tree.h) on open file descriptors; all raise OSError.

A slice is created in milliseconds, so no program is started for these calls. Request numbers are computed from the
sizes of the structs, as the kernel's macros _IOW and _IOR do. All calls but `sync` need CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = 0x94
_NONE, _WRITE, _READ = 0, 1, 2

FIRST_FREE_ID = 256  # the smallest subvolume id, and the inode number of every subvolume's top directory
MAX_U64 = (1 << 64) - 1

ROOT_TREE, QUOTA_TREE, ORPHANS = 1, 8, MAX_U64 - 4
INODE_ITEM, INODE_REF, ORPHAN_ITEM, ROOT_ITEM, ROOT_BACKREF, ROOT_REF = 1, 12, 48, 132, 144, 156
QGROUP_STATUS, QGROUP_INFO, QGROUP_LIMIT, QGROUP_RELATION = 240, 242, 244, 246
QUOTA_ENABLE, QUOTA_DISABLE, QUOTA_ENABLE_SIMPLE = 1, 2, 4
STATUS_ON, STATUS_SIMPLE = 1 << 0, 1 << 3

_READONLY = 1 << 1
_INHERIT = 1 << 2
_LIMIT_EXCLUSIVE = 1 << 1
_HANDLE_WITHOUT_PARENT = 0x4D

VOL_ARGS = struct.Struct("=q4088s")
VOL_ARGS_V2 = struct.Struct("=qQQQQ16x4040s")
INHERIT = struct.Struct("=QQQQ5Q")
QUOTA_CTL = struct.Struct("=QQ")
GROUP_CREATE = struct.Struct("=QQ")
GROUP_ASSIGN = struct.Struct("=QQQ")
GROUP_LIMIT = struct.Struct("=QQQQQQ")
SEARCH_KEY = struct.Struct("=7Q4I4Q")
SEARCH_ARGS = struct.Struct("=104sQ")
SEARCH_HEADER = struct.Struct("=QQQII")
INO_LOOKUP_ARGS = struct.Struct("=QQ4080s")
_SYSFS = Path("/sys/fs/btrfs")
FS_INFO_ARGS = struct.Struct("=QQ16sIIIHHQQ16s944s")
FLAGS = struct.Struct("=Q")
FILE_HANDLE = struct.Struct("=IiQQI")

RECEIVED_ARGS = struct.Struct("=16sQQ16x16xQ128x")

_ROOT_REF_HEAD = struct.Struct("=QQH")  # inode number of the directory, sequence, length of the name
_INODE_ITEM_HEAD = struct.Struct("=Q")  # generation
_INODE_REF_HEAD = struct.Struct("=QH")
_STATUS_HEAD = struct.Struct("=QQQQ")
_INFO_ITEM = struct.Struct("=5Q")  # generation, referenced, referenced compressed, exclusive, exclusive compressed
_LIMIT_ITEM = struct.Struct("=5Q")

_SEARCH_BUFFER = 1 << 17
_LARGEST_ITEM = 1 << 16  # an item fits into a tree node, which has at most 64 KiB


def request(direction: int, number: int, size: int) -> int:
    """The number of a btrfs ioctl: direction _IO (0), _IOW (1), _IOR (2) or _IOWR (3), argument of `size` bytes."""
    return direction << 30 | size << 16 | _MAGIC << 8 | number


SYNC = request(_NONE, 8, 0)
SNAP_DESTROY = request(_WRITE, 15, VOL_ARGS.size)
TREE_SEARCH_V2 = request(_READ | _WRITE, 17, SEARCH_ARGS.size)
INO_LOOKUP = request(_READ | _WRITE, 18, INO_LOOKUP_ARGS.size)
SNAP_CREATE_V2 = request(_WRITE, 23, VOL_ARGS_V2.size)
SUBVOL_CREATE_V2 = request(_WRITE, 24, VOL_ARGS_V2.size)
SUBVOL_GETFLAGS = request(_READ, 25, FLAGS.size)
SUBVOL_SETFLAGS = request(_WRITE, 26, FLAGS.size)
FS_INFO = request(_READ, 31, FS_INFO_ARGS.size)
SET_RECEIVED = request(_READ | _WRITE, 37, RECEIVED_ARGS.size)
QUOTA_CTL_CALL = request(_READ | _WRITE, 40, QUOTA_CTL.size)
QGROUP_ASSIGN = request(_WRITE, 41, GROUP_ASSIGN.size)
QGROUP_CREATE = request(_WRITE, 42, GROUP_CREATE.size)
QGROUP_LIMIT_CALL = request(_READ, 43, GROUP_LIMIT.size)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a b-tree."""

    objectid: int
    type: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Ref:
    """The location of a subvolume: its name in the directory with inode `dirid` of the subvolume `parent`."""

    id: int
    parent: int
    dirid: int
    name: bytes


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """The limit of a quota group's exclusive bytes; None if unlimited."""

    group: int
    max_bytes: int | None


def call(fd: int, number: int, argument: bytes = b"") -> bytes:
    """Do one ioctl and return the argument as the kernel changed it. Raises OSError.

    fcntl.ioctl is not used: for arguments of more than 1024 bytes it holds the interpreter lock during the call. A
    snapshot waits for a commit, and all other threads would wait with it.
    """
    buffer = ctypes.create_string_buffer(argument, len(argument))
    if _libc.ioctl(fd, ctypes.c_ulong(number), buffer) < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return buffer.raw


def sync(fd: int) -> None:
    """Commit the running transaction, which also wakes the cleaner of deleted subvolumes."""
    call(fd, SYNC)


def create_subvolume(parent: int, name: bytes, group: int | None) -> None:
    """Create an empty subvolume in the open directory `parent`; it joins the quota group `group`, if any."""
    _create(parent, SUBVOL_CREATE_V2, 0, name, 0, group)


def snapshot(parent: int, name: bytes, source: int, group: int | None, readonly: bool) -> None:
    """Create a snapshot of the open subvolume `source` in `parent`; it joins the quota group `group`, if any."""
    _create(parent, SNAP_CREATE_V2, source, name, _READONLY if readonly else 0, group)


def _create(parent: int, number: int, source: int, name: bytes, flags: int, group: int | None) -> None:
    inherit = b"" if group is None else pack_inherit([group])
    pointed = ctypes.create_string_buffer(inherit, len(inherit)) if inherit else None
    address = ctypes.addressof(pointed) if pointed is not None else 0
    call(parent, number, VOL_ARGS_V2.pack(source, 0, flags | (_INHERIT if inherit else 0), len(inherit), address, name))


def pack_inherit(groups: Sequence[int]) -> bytes:
    """struct btrfs_qgroup_inherit with the groups that a new subvolume joins."""
    return INHERIT.pack(0, len(groups), *([0] * 7)) + struct.pack(f"={len(groups)}Q", *groups)


def destroy(parent: int, name: bytes) -> None:
    """Delete the subvolume `name` in the open directory `parent`. The cleaner frees its space later."""
    call(parent, SNAP_DESTROY, VOL_ARGS.pack(0, name))


def is_readonly(subvolume: int) -> bool:
    """Whether the open subvolume has the read-only flag."""
    return bool(FLAGS.unpack(call(subvolume, SUBVOL_GETFLAGS, bytes(FLAGS.size)))[0] & _READONLY)


def set_received(subvolume: int, origin: bytes, transaction: int) -> None:
    """Record of which subvolume, by its UUID, and of which transaction of it, the open subvolume is a copy."""
    call(subvolume, SET_RECEIVED, RECEIVED_ARGS.pack(origin, transaction, 0, 0))


def set_readonly(subvolume: int, readonly: bool) -> None:
    """Set or clear the read-only flag. A subvolume that already has this value is not changed."""
    flags = FLAGS.unpack(call(subvolume, SUBVOL_GETFLAGS, bytes(FLAGS.size)))[0]
    if bool(flags & _READONLY) is readonly:
        return
    call(subvolume, SUBVOL_SETFLAGS, FLAGS.pack(flags | _READONLY if readonly else flags & ~_READONLY))


def subvolume_id(fd: int) -> int:
    """The id of the subvolume that contains an open file."""
    answer = INO_LOOKUP_ARGS.unpack(call(fd, INO_LOOKUP, INO_LOOKUP_ARGS.pack(0, FIRST_FREE_ID, b"")))
    return int(answer[0])


def filesystem_id(fd: int) -> bytes:
    """The file system's UUID, 16 bytes. Raises OSError ENOTTY if it is not btrfs."""
    return bytes(_fs_info(fd)[2])


def sysfs(fd: int) -> Path:
    """The directory in which the kernel shows the file system. Raises OSError ENOTTY if it is not btrfs."""
    return _SYSFS / str(uuid.UUID(bytes=filesystem_id(fd)))


def node_size(fd: int) -> int:
    """The size of a node of the file system's trees in bytes."""
    return int(_fs_info(fd)[3])


def devices(fd: int) -> tuple[int, int]:
    """The highest device number of the file system, and its number of devices."""
    info = _fs_info(fd)
    return int(info[0]), int(info[1])


def _fs_info(fd: int) -> tuple[Any, ...]:
    return FS_INFO_ARGS.unpack(call(fd, FS_INFO, bytes(FS_INFO_ARGS.size)))


def quota_ctl(fd: int, command: int) -> None:
    """Enable or disable quotas. command: one of the constants QUOTA_*."""
    call(fd, QUOTA_CTL_CALL, QUOTA_CTL.pack(command, 0))


def create_group(fd: int, group: int) -> None:
    """Create a quota group. Raises OSError EEXIST if it exists."""
    call(fd, QGROUP_CREATE, GROUP_CREATE.pack(1, group))


def destroy_group(fd: int, group: int) -> None:
    """Remove a quota group. Raises OSError EBUSY if it is still in use."""
    call(fd, QGROUP_CREATE, GROUP_CREATE.pack(0, group))


def assign_group(fd: int, member: int, group: int, present: bool) -> None:
    """Add `member` to `group`, or remove it if `present` is False."""
    call(fd, QGROUP_ASSIGN, GROUP_ASSIGN.pack(int(present), member, group))


def limit_group(fd: int, group: int, max_bytes: int | None) -> None:
    """Limit the group's exclusive bytes. Under simple quotas these equal its referenced bytes."""
    value = MAX_U64 if max_bytes is None else max_bytes
    call(fd, QGROUP_LIMIT_CALL, GROUP_LIMIT.pack(group, _LIMIT_EXCLUSIVE, 0, value, 0, 0))


def open_inode(mount: int, subvolume: int, inode: int = FIRST_FREE_ID) -> int:
    """Open a directory by its inode number, independently of names and symlinks.

    mount: any open file of the file system. Needs CAP_DAC_READ_SEARCH. Raises OSError ESTALE or ENOENT if the
    directory does not exist.
    """
    handle = FILE_HANDLE.pack(20, _HANDLE_WITHOUT_PARENT, inode, subvolume, _generation(mount, subvolume, inode))
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = int(_libc.open_by_handle_at(mount, ctypes.create_string_buffer(handle, len(handle)), flags))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"subvolume {subvolume} inode {inode}")
    return fd


def _generation(fd: int, subvolume: int, inode: int) -> int:
    """The generation of an inode number, which Linux 6.1 requires in a file handle."""
    for item in search(fd, subvolume, (inode, INODE_ITEM, 0), (inode, INODE_ITEM, 0)):
        return int(_INODE_ITEM_HEAD.unpack_from(item.data)[0]) & 0xFFFFFFFF
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), f"subvolume {subvolume} inode {inode}")


def search(
    fd: int, tree: int, first: tuple[int, int, int], last: tuple[int, int, int], since: int = 0
) -> Iterator[Item]:
    """The items of a tree whose keys (objectid, type, offset) lie between two keys, both included.

    since: only items in nodes that this transaction or a later one wrote.
    """
    while True:
        key = SEARCH_KEY.pack(
            tree, first[0], last[0], first[2], last[2], since, MAX_U64, first[1], last[1], 0xFFFFFFFF, 0, 0, 0, 0, 0
        )
        answer = call(fd, TREE_SEARCH_V2, SEARCH_ARGS.pack(key, _SEARCH_BUFFER) + bytes(_SEARCH_BUFFER))
        count = SEARCH_KEY.unpack_from(answer)[9]
        items, used = parse_items(answer, SEARCH_ARGS.size, count)
        yield from items
        if not items or used < _SEARCH_BUFFER - _LARGEST_ITEM - SEARCH_HEADER.size:
            return
        end = items[-1]
        after = next_key((end.objectid, end.type, end.offset))
        if after is None or after > last:
            return
        first = after


def parse_items(buffer: bytes, start: int, count: int) -> tuple[list[Item], int]:
    """`count` items from offset `start` of a search result, and the number of bytes that they occupy."""
    items, at = [], start
    for _ in range(count):
        _, objectid, offset, kind, length = SEARCH_HEADER.unpack_from(buffer, at)
        at += SEARCH_HEADER.size
        items.append(Item(objectid, kind, offset, bytes(buffer[at : at + length])))
        at += length
    return items, at - start


def next_key(key: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """The smallest key above `key`; None if `key` is the largest."""
    objectid, kind, offset = key
    if offset < MAX_U64:
        return objectid, kind, offset + 1
    if kind < 255:
        return objectid, kind + 1, 0
    return (objectid + 1, 0, 0) if objectid < MAX_U64 else None


def children(fd: int, subvolume: int) -> list[Ref]:
    """The subvolumes that lie directly in `subvolume`."""
    span = (subvolume, ROOT_REF, 0), (subvolume, ROOT_REF, MAX_U64)
    return [_ref(item.offset, subvolume, item.data) for item in search(fd, ROOT_TREE, *span)]


def all_subvolumes(fd: int) -> list[Ref]:
    """Every subvolume of the file system except the top one."""
    span = (FIRST_FREE_ID, ROOT_BACKREF, 0), (MAX_U64 - 255, ROOT_BACKREF, MAX_U64)
    found = (item for item in search(fd, ROOT_TREE, *span) if item.type == ROOT_BACKREF)
    return [_ref(item.objectid, item.offset, item.data) for item in found]


def _ref(child: int, parent: int, data: bytes) -> Ref:
    dirid, _, length = _ROOT_REF_HEAD.unpack_from(data)
    return Ref(child, parent, dirid, data[_ROOT_REF_HEAD.size : _ROOT_REF_HEAD.size + length])


def directory_name(fd: int, subvolume: int, inode: int) -> tuple[int, bytes] | None:
    """The parent inode and the name of a directory; None if the directory does not exist."""
    for item in search(fd, subvolume, (inode, INODE_REF, 0), (inode, INODE_REF, MAX_U64)):
        _, length = _INODE_REF_HEAD.unpack_from(item.data)
        return item.offset, item.data[_INODE_REF_HEAD.size : _INODE_REF_HEAD.size + length]
    return None


class Paths:
    """Paths of subvolumes, built from directory entries by inode number, so that their length is not limited."""

    def __init__(self, fd: int, refs: dict[int, Ref]) -> None:
        self._fd = fd
        self._refs = refs
        self._known: dict[tuple[int, int], bytes] = {}

    def path(self, ref: Ref) -> bytes:
        """The path below the top of the file system, or below the first ancestor that is not among the refs."""
        parts: list[bytes] = []
        at: Ref | None = ref
        while at is not None:
            parts += [at.name, self._directory(at.parent, at.dirid)]
            at = self._refs.get(at.parent)
        return b"/".join(part for part in reversed(parts) if part)

    def _directory(self, subvolume: int, inode: int) -> bytes:
        start = (subvolume, inode)
        if start not in self._known:
            names: list[bytes] = []
            while inode != FIRST_FREE_ID:
                step = directory_name(self._fd, subvolume, inode)
                if step is None:
                    break
                inode, name = step
                names.append(name)
            self._known[start] = b"/".join(reversed(names))
        return self._known[start]


def quota_status(fd: int) -> int:
    """The status flags of the quota tree. Raises OSError ENOENT if there is none."""
    for item in search(fd, QUOTA_TREE, (0, QGROUP_STATUS, 0), (0, QGROUP_STATUS, 0)):
        return int(_STATUS_HEAD.unpack_from(item.data)[2])
    return 0


def deleted_subvolumes(fd: int) -> int:
    """The number of deleted subvolumes that the cleaner has not freed yet."""
    span = (ORPHANS, ORPHAN_ITEM, 0), (ORPHANS, ORPHAN_ITEM, MAX_U64)
    return sum(1 for _ in search(fd, ROOT_TREE, *span))


def group_usage(fd: int, first: int, last: int) -> dict[int, int]:
    """The exclusive bytes of the groups `first`..`last`, as of the last commit."""
    return {group: own for group, (_, own) in group_charges(fd, first, last).items()}


def group_charges(fd: int, first: int, last: int) -> dict[int, tuple[int, int]]:
    """The referenced and exclusive bytes of the groups `first`..`last`, as of the last commit."""
    span = (0, QGROUP_INFO, first), (0, QGROUP_INFO, last)
    found = ((item.offset, _INFO_ITEM.unpack_from(item.data)) for item in search(fd, QUOTA_TREE, *span))
    return {group: (info[1], info[3]) for group, info in found}


def group_limits(fd: int, first: int, last: int) -> list[GroupLimit]:
    """The limits of the groups `first`..`last`."""
    found = []
    for item in search(fd, QUOTA_TREE, (0, QGROUP_LIMIT, first), (0, QGROUP_LIMIT, last)):
        flags, _, exclusive, _, _ = _LIMIT_ITEM.unpack_from(item.data)
        found.append(GroupLimit(item.offset, exclusive if flags & _LIMIT_EXCLUSIVE else None))
    return found


def related_groups(fd: int, group: int) -> list[int]:
    """The parents and members of `group`; the level (bits 48 and up) distinguishes them."""
    span = (group, QGROUP_RELATION, 0), (group, QGROUP_RELATION, MAX_U64)
    return [item.offset for item in search(fd, QUOTA_TREE, *span)]
