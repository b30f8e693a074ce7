"""The structs and numbers against the kernel's ABI (linux/btrfs.h), and the pure parts of the pool."""

from __future__ import annotations

import struct

import pytest

from slicemgr.drivers.storage import btrfs_ioctl as ioctl
from slicemgr.drivers.storage import btrfs_space
from slicemgr.drivers.storage.btrfs import QuotaMode, inner_first, name_of, quota_modes_to_try
from slicemgr.drivers.storage.btrfs_ioctl import Ref
from slicemgr.drivers.storage.btrfs_space import Metadata


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (ioctl.VOL_ARGS, 4096),
        (ioctl.VOL_ARGS_V2, 4096),
        (ioctl.INHERIT, 72),
        (ioctl.QUOTA_CTL, 16),
        (ioctl.GROUP_CREATE, 16),
        (ioctl.GROUP_ASSIGN, 24),
        (ioctl.GROUP_LIMIT, 48),
        (ioctl.SEARCH_KEY, 104),
        (ioctl.SEARCH_ARGS, 112),
        (ioctl.SEARCH_HEADER, 32),
        (ioctl.INO_LOOKUP_ARGS, 4096),
        (ioctl.FS_INFO_ARGS, 1024),
        (ioctl.FILE_HANDLE, 28),
    ],
)
def test_struct_sizes_are_the_kernels(layout: struct.Struct, size: int) -> None:
    assert layout.size == size


@pytest.mark.parametrize(
    ("computed", "known"),
    [
        (ioctl.SYNC, 0x9408),
        (ioctl.SNAP_DESTROY, 0x5000940F),
        (ioctl.TREE_SEARCH_V2, 0xC0709411),
        (ioctl.INO_LOOKUP, 0xD0009412),
        (ioctl.SNAP_CREATE_V2, 0x50009417),
        (ioctl.SUBVOL_CREATE_V2, 0x50009418),
        (ioctl.SUBVOL_GETFLAGS, 0x80089419),
        (ioctl.SUBVOL_SETFLAGS, 0x4008941A),
        (ioctl.FS_INFO, 0x8400941F),
        (ioctl.QUOTA_CTL_CALL, 0xC0109428),
        (ioctl.QGROUP_ASSIGN, 0x40189429),
        (ioctl.QGROUP_CREATE, 0x4010942A),
        (ioctl.QGROUP_LIMIT_CALL, 0x8030942B),
    ],
)
def test_ioctl_numbers_are_the_kernels(computed: int, known: int) -> None:
    assert computed == known


def test_inherit_lists_its_groups_after_the_head() -> None:
    packed = ioctl.pack_inherit([(1 << 48) | 7])
    assert len(packed) == 72 + 8
    assert struct.unpack_from("=QQ", packed) == (0, 1)
    assert struct.unpack_from("=Q", packed, 72) == ((1 << 48) | 7,)


def test_items_are_read_one_after_the_other() -> None:
    one = ioctl.SEARCH_HEADER.pack(9, 5, 300, 156, 3) + b"abc"
    two = ioctl.SEARCH_HEADER.pack(9, 6, 301, 156, 0)
    items, used = ioctl.parse_items(b"####" + one + two + bytes(50), 4, 2)
    assert items == [ioctl.Item(5, 156, 300, b"abc"), ioctl.Item(6, 156, 301, b"")]
    assert used == len(one) + len(two)


@pytest.mark.parametrize(
    ("key", "after"),
    [
        ((5, 156, 7), (5, 156, 8)),
        ((5, 156, ioctl.MAX_U64), (5, 157, 0)),
        ((5, 255, ioctl.MAX_U64), (6, 0, 0)),
        ((ioctl.MAX_U64, 255, ioctl.MAX_U64), None),
    ],
)
def test_next_key_carries_over(key: tuple[int, int, int], after: tuple[int, int, int] | None) -> None:
    assert ioctl.next_key(key) == after


def test_inner_subvolumes_come_before_the_ones_that_hold_them() -> None:
    tree = {1: [2, 3], 2: [4], 3: [5, 6], 4: [7]}
    refs = inner_first(1, lambda top: [Ref(child, top, 256, b"x") for child in tree.get(top, [])])
    order = [ref.id for ref in refs]
    assert sorted(order) == [2, 3, 4, 5, 6, 7]
    assert all(order.index(ref.id) < order.index(ref.parent) for ref in refs if ref.parent != 1)


def test_quotas_that_are_on_stay_as_they_are() -> None:
    assert quota_modes_to_try(QuotaMode.NONE) == (QuotaMode.SIMPLE, QuotaMode.FULL)
    assert quota_modes_to_try(QuotaMode.SIMPLE) == quota_modes_to_try(QuotaMode.FULL) == ()


def test_groups_are_written_as_btrfs_progs_do() -> None:
    assert name_of((1 << 48) | 57) == "1/57"


def test_room_for_metadata_counts_what_is_not_set_aside_and_not_the_kernels_reserve() -> None:
    data, single, twice, reserve = 1 << 0, 1 << 2, (1 << 2) | (1 << 5), 1 << 49
    assert btrfs_space.room([(data, 100, 90), (single, 50, 20), (reserve, 5, 0)], 40) == Metadata(20, 65)
    assert btrfs_space.room([(twice, 50, 20), (reserve, 5, 0)], 40) == Metadata(20, 45)
    assert btrfs_space.room([(single, 50, 48), (reserve, 5, 0)], 0) == Metadata(48, 0)
