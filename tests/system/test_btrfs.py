"""The pool on a real btrfs: limits that a tenant tries to escape, and trees that a tenant made hard to delete."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import demo
import pytest
from tiny_sliver import in_box

from slicemgr import names
from slicemgr.agent import kept_disks
from slicemgr.agent.checks import storage
from slicemgr.agent.kept_disks import KeptDisks
from slicemgr.agent.publisher import Publisher
from slicemgr.config import Config, NodeConfig
from slicemgr.drivers import command
from slicemgr.drivers.guest.identity import Identity, new_host_key, write_identity
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.storage import btrfs_ioctl, btrfs_space, btrfs_step, quota_groups, read_ahead
from slicemgr.drivers.storage.btrfs import Pool, QuotaMode
from slicemgr.errors import Failed

MIB = 1 << 20
LIMIT = 16 * MIB
SERIALS = itertools.count(7)  # like the service's, never used twice


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with in_box(f"btrfs-{demo.CLONE}"):
        made = Pool(Path("/var/lib/slicemgr/pool"))
        made.ensure_layout()
        assert made.enable_quota() is QuotaMode.SIMPLE
        made.create_subvolume(made.path / "bases" / "empty")
        yield made


@pytest.fixture
def group() -> int:
    return names.qgroup(next(SERIALS))


@pytest.fixture
def sliver(pool: Pool, group: int) -> Iterator[Path]:
    """A sliver's subvolume with its root, limited as the agent does it."""
    directory = pool.path / "slivers" / "one"
    pool.create_group(group)
    pool.limit_group(group, LIMIT)
    pool.create_subvolume(directory, qgroup=group)
    pool.snapshot(pool.path / "bases" / "empty", directory / "root", qgroup=group)
    yield directory
    pool.delete_tree(directory, group)


def fill(file: Path, most: int = 4 * LIMIT) -> int:
    """Write until the kernel refuses or `most` bytes are there; the bytes written."""
    written = 0
    with file.open("wb", buffering=0) as stream:
        try:
            while written < most:
                stream.write(os.urandom(MIB))
                os.fsync(stream.fileno())
                written += MIB
        except OSError as error:
            assert error.errno == errno.EDQUOT
    return written


def test_the_limit_counts_what_lies_in_a_subvolume_of_the_tenants(pool: Pool, sliver: Path) -> None:
    pool.create_subvolume(sliver / "root" / "mine")
    assert fill(sliver / "root" / "mine" / "file") <= LIMIT


def test_a_limit_on_the_roots_own_group_is_escaped_that_way(pool: Pool) -> None:
    directory = pool.path / "slivers" / "weak"
    pool.snapshot(pool.path / "bases" / "empty", directory)
    pool.limit_subvolume(directory, LIMIT)
    try:
        pool.create_subvolume(directory / "mine")
        assert fill(directory / "mine" / "file") > LIMIT
        assert fill(directory / "file") <= LIMIT
    finally:
        pool.delete_tree(directory)


def test_a_sliver_over_its_limit_with_all_it_made_is_deleted(pool: Pool, sliver: Path, group: int) -> None:
    root = sliver / "root"
    fill(root / "file")
    pool.limit_group(group, 64 * MIB)
    for name in (b"line\nbreak", b"\xff\xfe", b"." * 3, b"x" * 255):
        pool.create_subvolume(Path(os.fsdecode(os.fsencode(root) + b"/" + name)))
    deep = root / "/".join(["d" * 200] * 15)
    deep.mkdir(parents=True)
    pool.create_subvolume(deep / "deep")
    pool.snapshot(root, root / "copy", readonly=True)
    pool.create_subvolume(root / "holder")
    pool.create_subvolume(root / "holder" / "inner")
    pool.set_readonly(root / "holder", True)
    (root / "link").symlink_to(pool.path / "bases" / "empty")
    pool.limit_group(group, MIB)
    pool.delete_tree(sliver, group)
    assert not sliver.exists()
    assert pool.is_subvolume(pool.path / "bases" / "empty")
    assert pool.wait_cleaned(60)
    pool.collect_groups(())
    assert group not in pool.groups()


def test_the_group_of_a_deleted_sliver_is_not_in_use(pool: Pool, sliver: Path, group: int) -> None:
    """Whether the cleaner has yet to free its subvolumes or has freed them: the group waits only for its removal."""
    assert pool.in_use({group, 1 << 49}) == {group}
    pool.delete_tree(sliver / "root")
    assert pool.in_use({group}) == {group}
    pool.delete_tree(sliver)
    assert group in pool.groups() and pool.in_use({group}) == frozenset()
    assert pool.wait_cleaned(60)
    assert pool.in_use({group}) == frozenset()


def test_the_group_of_a_freed_subvolume_is_removed_after_a_commit(
    pool: Pool, sliver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the kernel misses it when it counts the freed blocks, and the file system becomes read-only."""
    calls = []

    def recorded(name: str) -> Callable[..., None]:
        real = getattr(btrfs_ioctl, name)

        def call(*words: object) -> None:
            calls.append(name)
            real(*words)

        return call

    for name in ("sync", "destroy_group"):
        monkeypatch.setattr(btrfs_ioctl, name, recorded(name))
    with btrfs_step.directory(pool.path) as fd:
        alive, freed = pool.subvolume_id(sliver), 1 << 40
        assert quota_groups.remove_freed(fd, [alive]) == []
        assert calls == []
        assert quota_groups.remove_freed(fd, [alive, freed]) == []
    assert calls == ["sync", "destroy_group"]


def test_metadata_that_small_files_take_is_seen(pool: Pool, sliver: Path) -> None:
    pool.sync()
    before = btrfs_space.metadata(pool.path)
    for number in range(2000):
        (sliver / "root" / f"{number}").write_bytes(b"x" * 1000)
    pool.sync()
    after = btrfs_space.metadata(pool.path)
    assert after.used - before.used > 2000 * 1000, "small files lie in metadata"
    assert 0 < after.room < before.room


def trap(root: Path, outside: Path) -> None:
    """A root whose files that the agent writes lead outside."""
    (root / "etc").mkdir()
    for name in ("hostname", "hosts", "resolv.conf"):
        (root / "etc" / name).symlink_to(outside / name)
        (outside / name).write_text("precious\n")


def identity() -> Identity:
    private, public = new_host_key()
    return Identity("exp-0", "10.77.0.1", "169.254.1.1", ("192.0.2.53",), ("ssh-ed25519 AAAA",), private, public)


def test_identity_is_written_without_being_led_outside(sliver: Path, tmp_path: Path) -> None:
    trap(sliver / "root", tmp_path)
    with Root(sliver / "root") as root:
        write_identity(root, identity())
    assert {path.read_text() for path in tmp_path.iterdir()} == {"precious\n"}
    assert (sliver / "root/etc/hostname").read_text() == "exp-0\n"


@pytest.mark.parametrize("place", ["etc/ssh", "root/.ssh", "etc"])
def test_a_directory_that_leads_outside_is_refused(sliver: Path, tmp_path: Path, place: str) -> None:
    link = sliver / "root" / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path)
    with Root(sliver / "root") as root, contextlib.suppress(Failed):
        write_identity(root, identity())
    assert list(tmp_path.iterdir()) == []
    if link.is_symlink():  # /root/.ssh is replaced by a real one
        with Root(sliver / "root") as root, pytest.raises(Failed, match="symbolic link"):
            write_identity(root, identity())


def test_a_naive_writer_is_led_outside(sliver: Path, tmp_path: Path) -> None:
    trap(sliver / "root", tmp_path)
    (sliver / "root/etc/hostname").write_text("exp-0\n")
    assert (tmp_path / "hostname").read_text() == "exp-0\n"


def test_doctor_looks_at_the_size_of_nodes(pool: Pool, tmp_path: Path) -> None:
    """The control: a pool that mkfs.btrfs made with its default node size."""
    assert storage.pool(pool).ok is True and "nodes of 4 KiB" in storage.pool(pool).detail
    disk, place = tmp_path / "disk", tmp_path / "pool"
    place.mkdir()
    with disk.open("wb") as stream:
        stream.truncate(256 * MIB)
    command.run(["mkfs.btrfs", "--quiet", disk], timeout=60)
    command.run(["mount", "-o", "loop", disk, place], timeout=60)
    try:
        said = storage.pool(Pool(place))
    finally:
        command.run(["umount", place], timeout=60)
    assert said.ok is None and "nodes of 16 KiB" in said.detail and "--nodesize 4k" in said.remedy


def test_the_disk_of_an_earlier_copy_is_kept_for_a_day(pool: Pool, group: int, sliver: Path) -> None:
    """It no longer counts against the limit of the copy that replaces it, and is deleted with all in it."""
    one, config = "abcdefgh-0", Config(node=NodeConfig(pool=pool.path, run_dir=pool.path.parent / "run"))
    disks = KeptDisks(config, Hypervisor(config.libvirt), pool, Publisher(Firewall(config.network)))
    sliver.rename(names.sliver_dir(pool.path, one))
    pool.create_subvolume(names.root_dir(pool.path, one) / "inner")
    fill(names.root_dir(pool.path, one) / "data", LIMIT // 2)
    before = int(time.time())
    kept = disks.keep(one, group)
    assert kept is not None and kept.path.parent == names.kept_dir(pool.path) and before <= kept.at <= time.time()
    assert (kept.path / "root" / "data").stat().st_size and not names.sliver_dir(pool.path, one).exists()
    assert [found.sliver for found in kept_disks.found(pool.path)] == [one]
    pool.create_group(group)
    pool.create_subvolume(names.sliver_dir(pool.path, one), qgroup=group)
    pool.sync()
    assert pool.usage()[group] < MIB, "what is kept does not count"
    disks.sweep()
    assert kept.path.exists()
    aged = kept.path.rename(kept.path.with_name(f"{one}.{kept.at - kept_disks.TIME}"))
    foreign = names.kept_dir(pool.path) / "notes"
    foreign.mkdir()
    disks.sweep()
    assert not aged.exists() and foreign.exists()
    foreign.rmdir()
    assert disks.keep("abcdefgh-1", None) is None, "there is nothing of it"
    pool.delete_tree(names.sliver_dir(pool.path, one), group)


def read_with_ahead(file: Path) -> int:
    """Bytes of a fresh file that are in memory after its first page has been read through a mapping."""
    with file.open("wb") as made:
        made.write(os.urandom(8 * MIB))
        os.fsync(made.fileno())
        os.posix_fadvise(made.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[4 * MIB] >= 0
    told = command.run(["fincore", "--bytes", "--noheadings", "--output", "RES", str(file)], timeout=30)
    return int(told)


def test_programs_are_not_read_as_a_whole(pool: Pool, sliver: Path) -> None:
    file, kernels = sliver / "root" / "library", int(read_ahead.setting(pool.path).read_text()) << 10
    try:
        read_ahead.limit(pool.path, 32 << 10)
        assert read_with_ahead(file) <= 64 << 10
        read_ahead.limit(pool.path, 4 * MIB)  # the control, as btrfs has it
        assert read_with_ahead(file) >= 2 * MIB
    finally:
        read_ahead.limit(pool.path, kernels)


def test_a_directory_elsewhere_has_no_such_setting() -> None:
    with pytest.raises(OSError, match="Inappropriate ioctl"):
        read_ahead.limit(Path("/proc"), 32 << 10)
