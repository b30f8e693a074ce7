"""Quota charges for data that snapshots and clones share, on a real btrfs with simple quotas, full quotas, none."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import demo
import pytest
from tiny_sliver import in_box

from slicemgr import names
from slicemgr.agent import observe
from slicemgr.agent.roots import Roots
from slicemgr.config import Config, LibvirtConfig, NodeConfig
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.storage import btrfs_files, btrfs_ioctl
from slicemgr.drivers.storage.btrfs import Pool, QuotaMode
from slicemgr.errors import Failed
from slicemgr.model import Boot, Desired, Limits, PortBlock, Sliver, SliverSnapshot, SliverType

MIB = 1 << 20
SHA = "ab" * 32
COMMANDS = {QuotaMode.SIMPLE: btrfs_ioctl.QUOTA_ENABLE_SIMPLE, QuotaMode.FULL: btrfs_ioctl.QUOTA_ENABLE}
SNAP, OTHER = "aaaaaaaa", "bbbbbbbb"


@pytest.fixture(scope="module", params=list(QuotaMode))
def config(request: pytest.FixtureRequest) -> Iterator[Config]:
    mode: QuotaMode = request.param
    with in_box(f"snapquota-{demo.CLONE}"):
        pool = Pool(Path("/var/lib/slicemgr/pool"))
        pool.ensure_layout()
        if mode in COMMANDS:
            fd = os.open(pool.path, os.O_RDONLY)
            btrfs_ioctl.quota_ctl(fd, COMMANDS[mode])
            os.close(fd)
        assert pool.quota_mode() is mode
        base = names.base_dir(pool.path, SHA)
        pool.create_subvolume(base)
        fill(base / "program", 5)
        pool.set_readonly(base, True)
        yield Config(node=NodeConfig(pool=pool.path))


@pytest.fixture
def roots(config: Config) -> Roots:
    no_place: Callable[[], Any] = dict
    return Roots(config, Pool(config.node.pool), Hypervisor(LibvirtConfig()), no_place)


@pytest.fixture(autouse=True)
def nothing_left(config: Config) -> Iterator[None]:
    yield
    pool = Pool(config.node.pool)
    for number in (1, 2):
        pool.delete_tree(names.sliver_dir(pool.path, sliver(number).id), names.qgroup(number))
    assert pool.wait_cleaned(60)
    pool.collect_groups(())
    assert pool.groups() == frozenset()


def sliver(number: int, **more: Any) -> Sliver:
    return Sliver(
        id=f"aaaaaaa{'abcd'[number]}-0",
        serial=number,
        tag="aaaaaaaa",
        slice_name="exp",
        index=0,
        type=SliverType.LXC,
        desired=Desired.RUNNING,
        image=SHA,
        arch="x86_64",
        address="10.77.0.1",
        ports=PortBlock(10000, 20),
        uid_first=0x70000000,
        limits=Limits(64 * MIB, 48 * MIB, 512, 1.0),
        ssh_keys=(),
        boot=Boot.DIRECT,
        **more,
    )


def fill(path: Path, mib: int) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
            os.fsync(file.fileno())


def fails(path: Path, mib: int) -> bool:
    """Whether the limit stops a write of this size; the written file is removed."""
    try:
        fill(path, mib)
    except OSError as error:
        assert error.errno == errno.EDQUOT
        return True
    finally:
        path.unlink()
    return False


def root_of(config: Config, one: Sliver) -> Path:
    return names.root_dir(config.node.pool, one.id)


def held(one: Sliver, size: int) -> Sliver:
    return replace(one, snapshots=(SliverSnapshot(SNAP, True, size),))


def taken(roots: Roots, one: Sliver) -> Sliver:
    """With its snapshot, and the limit as the agent sets it then."""
    size, _ = roots.snapshot(one, SNAP)
    one = held(one, size)
    roots.limit(one)
    return one


def test_the_launch_file_names_the_counts_of_the_group_that_limits(config: Config, roots: Roots) -> None:
    one, mode = sliver(1), Pool(config.node.pool).quota_mode()
    roots.make(one)
    names.launch_file(config.node.run_dir, one.id).parent.mkdir(parents=True, exist_ok=True)
    roots.launch(one)
    lines = names.launch_file(config.node.run_dir, one.id).read_text().splitlines()
    shown = [Path(value) for key, _, value in (line.partition("=") for line in lines) if key == "quota_group"]
    launch.remove(config, one.id)
    assert [int((path / "max_exclusive").read_text()) for path in shown] == [48 * MIB] * (mode is not QuotaMode.NONE)


def test_a_size_is_what_was_written_beyond_the_image(config: Config, roots: Roots) -> None:
    one = sliver(1)
    roots.make(one)
    fill(root_of(config, one) / "file", 20)
    (size,) = (snap.size for snap in taken(roots, one).snapshots)
    assert 20 * MIB <= size < 21 * MIB, "the base's 5 MiB do not count"


def test_deleted_files_that_a_snapshot_has_are_paid_for(config: Config, roots: Roots) -> None:
    one = sliver(1)
    roots.make(one)
    root = root_of(config, one)
    fill(root / "file", 30)
    one = taken(roots, one)
    (root / "file").unlink()
    os.sync()
    limited = Pool(config.node.pool).quota_mode() is not QuotaMode.NONE
    assert fails(root / "more", 30) is limited
    roots.discard(replace(one, snapshots=()))
    roots.limit(replace(one, snapshots=()))
    assert Pool(config.node.pool).wait_cleaned(60)
    assert observe.snapshots(config.node.pool, one.id) == frozenset()
    assert not fails(root / "more", 30)


def test_a_full_sliver_can_be_restored(config: Config, roots: Roots) -> None:
    """A full sliver needs a restore most."""
    one = sliver(1)
    roots.make(one)
    root = root_of(config, one)
    (root / "kept").write_text("old")
    one = taken(roots, one)
    (root / "kept").write_text("new")
    if Pool(config.node.pool).quota_mode() is not QuotaMode.NONE:
        with pytest.raises(OSError, match="quota"):
            fill(root / "all", 60)
    one = replace(one, epoch=1, origin=names.origin(one.id, SNAP))
    roots.make(one)
    assert (root / "kept").read_text() == "old" and not (root / "all").exists()
    assert btrfs_files.epoch(root) == 1
    assert not names.unfinished_root(config.node.pool, one.id).exists()
    assert Pool(config.node.pool).wait_cleaned(60)
    assert not fails(root / "more", 30)


def test_a_clone_pays_as_if_it_had_copied_and_outlives_its_original(config: Config, roots: Roots) -> None:
    one, pool = sliver(1), Pool(config.node.pool)
    roots.make(one)
    fill(root_of(config, one) / "file", 20)
    one = taken(roots, one)
    clone = sliver(2, origin=names.origin(one.id, SNAP), inherited=one.snapshots[0].size)
    roots.make(clone)
    root = root_of(config, clone)
    assert btrfs_files.epoch(root) == 0
    if pool.quota_mode() is QuotaMode.SIMPLE:
        assert fails(root / "more", 30)
        pool.sync()
        assert pool.usage()[names.qgroup(2)] < 4 * MIB, "but nothing was copied"
    assert not fails(root / "more", 20)
    pool.delete_tree(names.sliver_dir(pool.path, one.id), names.qgroup(1))
    assert pool.wait_cleaned(60)
    pool.collect_groups({names.qgroup(2)})
    assert names.qgroup(1) not in pool.groups(), "what the clone uses of it does not hold the original's group"
    assert (root / "file").stat().st_size == 20 * MIB
    size, _ = roots.snapshot(clone, OTHER)
    assert 20 * MIB <= size < 22 * MIB, "what it began with is part of what it has"


def test_without_the_charge_a_chain_of_clones_would_escape(config: Config, roots: Roots) -> None:
    """The control: a clone charged only for its own writes exceeds its limit after its original is deleted."""
    pool = Pool(config.node.pool)
    if pool.quota_mode() is not QuotaMode.SIMPLE:
        return
    one = sliver(1)
    roots.make(one)
    fill(root_of(config, one) / "file", 40)
    one = taken(roots, one)
    clone = sliver(2, origin=names.origin(one.id, SNAP))
    roots.make(clone)
    fill(root_of(config, clone) / "more", 40)
    pool.delete_tree(names.sliver_dir(pool.path, one.id), names.qgroup(1))
    files = sum(path.stat().st_size for path in root_of(config, clone).iterdir())
    assert files > clone.limits.disk + 30 * MIB


def test_full_quotas_refuse_what_would_not_fit(config: Config, roots: Roots) -> None:
    if Pool(config.node.pool).quota_mode() is not QuotaMode.FULL:
        return
    one = sliver(1)
    roots.make(one)
    fill(root_of(config, one) / "file", 30)
    one = taken(roots, one)
    with pytest.raises(Failed, match="no room"):
        roots.snapshot(one, OTHER)
    assert observe.snapshots(config.node.pool, one.id) == {SNAP}
