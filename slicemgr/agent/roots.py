"""Create the roots of slivers, in one way per type: a snapshot of the image's files, or a disk over the image.

Both lie in the sliver's own subvolume, so that one quota group limits and measures them alike, as it does the sliver's
snapshots. A root that begins as a snapshot is created in the same way, and replaces the earlier root atomically.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from slicemgr import names
from slicemgr.agent import observe
from slicemgr.config import Config
from slicemgr.drivers.guest import authorized_keys, seed
from slicemgr.drivers.guest.authorized_keys import Note
from slicemgr.drivers.guest.identity import Identity, write_identity, write_names
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.importer import confinement
from slicemgr.drivers.kernel import namespaces
from slicemgr.drivers.libvirt import launch, machine_xml
from slicemgr.drivers.libvirt.host import Host
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.storage import atomic_file, btrfs_files, machine_disk
from slicemgr.drivers.storage.btrfs import Pool, QuotaMode
from slicemgr.errors import Code, Failed, SlicemgrError
from slicemgr.model import MIB, Boot, Sliver, SliverType
from slicemgr.policy.allocate import size_text

_NO_SNAPSHOT = "the snapshot for its root no longer exists"
_HINT = "restore another one, or delete the slice"
_CRASH = "as after a power cut"
_BLOCK = 512  # bytes per unit of st_blocks
_ROOM = 16 * MIB
_CLEANED = 30.0  # seconds


class Preparation(Protocol):
    """The operations on a root that depend on the type. Every method may be called again after a crash."""

    def make(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        """Create the root atomically, in place of an existing one.

        group: the quota group that limits it, or None if no group does.
        """

    def snapshot(self, sliver: Sliver, target: Path, group: int | None) -> str:
        """Snapshot the root atomically; a detail for the operation, or ""."""

    def size(self, sliver: Sliver, snapshot: Path) -> int | None:
        """Bytes that the snapshot has beyond the image; None if they cannot be counted quickly."""

    def limit(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        """Apply the sliver's disk limit. If there is no root yet, it applies to the directory."""

    def grow(self, sliver: Sliver) -> None:
        """Announce a raised limit to the guest."""

    def identify(self, sliver: Sliver, identity: Identity) -> None:
        """Write host name, keys, address and user data."""

    def keys(self, sliver: Sliver, note: Note) -> None:
        """Replace the ssh keys of a running sliver. Raises Failed if the guest does not accept them."""

    def rename(self, sliver: Sliver, identity: Identity) -> None:
        """Give a running sliver another host name. Raises Failed if the guest does not take it."""

    def launch(self, sliver: Sliver) -> None:
        """Prepare the root as the last step before the domain starts."""


def preparation(
    sliver_type: SliverType, config: Config, pool: Pool, hypervisor: Hypervisor, place: Callable[[], Host]
) -> Preparation:
    """The implementation for a type. place: returns the node's properties with its acceleration."""
    match sliver_type:
        case SliverType.LXC:
            return _Container(config, pool, hypervisor)
        case SliverType.KVM:
            return _Machine(config, pool, hypervisor, place)


class Roots:
    """Creates and changes the roots of both types. Thread-safe for different slivers."""

    def __init__(self, config: Config, pool: Pool, hypervisor: Hypervisor, place: Callable[[], Host]) -> None:
        self._config = config
        self._pool = pool
        self._types = {one: preparation(one, config, pool, hypervisor, place) for one in SliverType}

    def make(self, sliver: Sliver) -> None:
        """Create the quota group, the sliver's subvolume and its root."""
        directory, group = names.sliver_dir(self._config.node.pool, sliver.id), self._group(sliver)
        if group is not None:
            self._pool.create_group(group)
        if not directory.exists():
            self._pool.create_subvolume(directory, qgroup=group)
            directory.chmod(0o700)
        its = self._types[sliver.type]
        its.limit(sliver, directory, group)
        with self._room(sliver) if sliver.origin else nullcontext():
            its.make(sliver, directory, group)
            self._note_limit(sliver)
            if sliver.origin and group is not None:
                self._await_room(sliver, group)

    def _await_room(self, sliver: Sliver, group: int) -> None:
        """Wait for the kernel's cleaner if the sliver is nearly full: it frees the root that was replaced."""
        self._pool.sync()
        if self._pool.usage().get(group, 0) + _ROOM > _own_limit(sliver, whole=True):
            self._pool.wait_cleaned(_CLEANED)

    @contextmanager
    def _room(self, sliver: Sliver) -> Iterator[None]:
        """Raise the limit by 16 MiB meanwhile, since deletion and replacement need space in a full sliver."""
        directory, group = names.sliver_dir(self._config.node.pool, sliver.id), self._group(sliver)
        limit = self._types[sliver.type].limit
        limit(replace(sliver, limits=replace(sliver.limits, disk=sliver.limits.disk + _ROOM)), directory, group)
        try:
            yield
        finally:
            limit(sliver, directory, group)

    def resize(self, sliver: Sliver) -> None:
        """Apply the sliver's disk limit to an existing root."""
        directory, its = names.sliver_dir(self._config.node.pool, sliver.id), self._types[sliver.type]
        its.limit(sliver, directory, self._group(sliver))
        its.grow(sliver)
        self._note_limit(sliver)

    def _note_limit(self, sliver: Sliver) -> None:
        """Record the limit that is applied, for observe."""
        note = names.limit_file(self._config.node.pool, sliver.id)
        atomic_file.write(note, str(sliver.limits.disk))

    def snapshot(self, sliver: Sliver, snapshot: str) -> tuple[int, str]:
        """Make the snapshot unless it exists; its bytes beyond the image, and a detail for the operation."""
        pool, its = self._config.node.pool, self._types[sliver.type]
        target, detail = names.snapshot_dir(pool, sliver.id, snapshot), ""
        if not observe.has_root(self._config, sliver.id):
            raise Failed("there is no root to make a snapshot of")
        if not target.exists():
            with self._room(sliver):
                target.parent.mkdir(mode=0o700, exist_ok=True)
                detail = its.snapshot(sliver, target, self._group(sliver))
        size = its.size(sliver, target)
        size = self._held(sliver) if size is None else size
        self._check_room(sliver, target, size)
        return size, detail

    def _check_room(self, sliver: Sliver, target: Path, size: int) -> None:
        """Refuse a snapshot above the limit: full quotas do not limit the data that only a snapshot has."""
        others = sum(one.size for one in sliver.snapshots)
        if self._pool.quota_mode() is QuotaMode.FULL and size + others > sliver.limits.disk:
            self._pool.delete_tree(target, None)
            text = f"the disk limit has no room for another {size_text(size)} in a snapshot"
            raise Failed(text, hint="delete a snapshot, or raise the limit with `slicectl resize`", code=Code.QUOTA)

    def _held(self, sliver: Sliver) -> int:
        """An upper bound in bytes: all data of the sliver."""
        return self._pool.usage().get(names.qgroup(sliver.serial), sliver.limits.disk) + sliver.inherited

    def discard(self, sliver: Sliver) -> int:
        """Delete the snapshots that are not in the row, and a root that was replaced; the number of snapshots."""
        pool = self._config.node.pool
        unwanted = observe.snapshots(pool, sliver.id) - {one.id for one in sliver.snapshots}
        with self._room(sliver):
            for one in sorted(unwanted):
                self._pool.delete_tree(names.snapshot_dir(pool, sliver.id, one), None)
            self._pool.delete_tree(names.unfinished_root(pool, sliver.id), None)
        return len(unwanted)

    def limit(self, sliver: Sliver) -> None:
        """Apply the disk limit again, because full quotas count a root and its snapshots separately."""
        if self._pool.quota_mode() is QuotaMode.FULL:
            directory = names.sliver_dir(self._config.node.pool, sliver.id)
            self._types[sliver.type].limit(sliver, directory, None)

    def identify(self, sliver: Sliver, identity: Identity) -> None:
        """Write the identity with the sliver's keys. Its earlier keys are removed, the tenant's own are kept."""
        pool, want = self._config.node.pool, sliver.ssh_keys
        note = authorized_keys.read_note(pool, sliver.id)
        before = () if note is None else note.put
        if note is not None:
            authorized_keys.write_note(pool, sliver.id, (*before, *want), note.now)
        self._types[sliver.type].identify(sliver, replace(identity, keys_put=None if note is None else before))
        authorized_keys.write_note(pool, sliver.id, (*before, *want), want)
        self._note_hostname(sliver)

    def give_keys(self, sliver: Sliver) -> str:
        """Replace the keys of a running sliver; the reason if it does not accept them, or ""."""
        pool, want = self._config.node.pool, sliver.ssh_keys
        note = authorized_keys.read_note(pool, sliver.id)
        if note is not None and set(note.now) == set(want):
            return ""
        note = note or Note((), ())
        authorized_keys.write_note(pool, sliver.id, (*note.put, *want), note.now)
        try:
            self._types[sliver.type].keys(sliver, note)
        except SlicemgrError as error:
            if error.code is Code.UNAVAILABLE:
                raise
            return f"its ssh keys change with its next start (`slicectl restart {sliver.slice_name}`): {error.message}"
        authorized_keys.write_note(pool, sliver.id, (*note.put, *want), want)
        return ""

    def rename(self, sliver: Sliver, identity: Identity) -> None:
        """Give a running sliver another host name. Raises Failed if it does not take it."""
        self._types[sliver.type].rename(sliver, identity)
        self._note_hostname(sliver)

    def _note_hostname(self, sliver: Sliver) -> None:
        atomic_file.write(names.hostname_file(self._config.node.pool, sliver.id), sliver.hostname)

    def launch(self, sliver: Sliver) -> None:
        """Prepare the root as the last step before the domain starts."""
        self._types[sliver.type].launch(sliver)

    def _group(self, sliver: Sliver) -> int | None:
        return names.qgroup(sliver.serial) if self._pool.quota_mode() is QuotaMode.SIMPLE else None


class _Container:
    def __init__(self, config: Config, pool: Pool, hypervisor: Hypervisor) -> None:
        self._config = config
        self._pool = pool
        self._hypervisor = hypervisor

    def make(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        pool = self._config.node.pool
        unfinished = names.unfinished_root(pool, sliver.id)
        self._pool.delete_tree(unfinished, None)
        self._pool.snapshot(self._begin(sliver), unfinished, qgroup=group)
        if self._pool.quota_mode() is QuotaMode.FULL:
            self._pool.limit_subvolume(unfinished, _own_limit(sliver, whole=False))
        if sliver.epoch:
            btrfs_files.set_epoch(unfinished, sliver.epoch)
        btrfs_files.put(unfinished, names.root_dir(pool, sliver.id))
        self._pool.delete_tree(unfinished, None)

    def _begin(self, sliver: Sliver) -> Path:
        source = _origin(self._config, sliver)
        if source is not None:
            return source
        base = names.base_dir(self._config.node.pool, sliver.image)
        if not base.is_dir():
            raise Failed(f"the base of image {sliver.image[:12]} no longer exists", hint="import the image again")
        return base

    def snapshot(self, sliver: Sliver, target: Path, group: int | None) -> str:
        """The snapshot includes data that is still in memory, but no subvolume that was created inside."""
        root = names.root_dir(self._config.node.pool, sliver.id)
        inner = len(self._pool.nested_below(root))
        self._pool.snapshot(root, target, qgroup=group, readonly=True)
        return f"without the {inner} subvolumes made inside" if inner else ""

    def size(self, sliver: Sliver, snapshot: Path) -> int | None:
        return btrfs_files.written_since(snapshot, names.base_dir(self._config.node.pool, sliver.image))

    def limit(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        root = names.root_dir(self._config.node.pool, sliver.id)
        if group is not None:
            self._pool.limit_group(group, _own_limit(sliver, whole=True))
        elif self._pool.quota_mode() is QuotaMode.FULL and root.exists():
            self._pool.limit_subvolume(root, _own_limit(sliver, whole=False))

    def grow(self, sliver: Sliver) -> None:
        pass

    def identify(self, sliver: Sliver, identity: Identity) -> None:
        with self._root(sliver) as root:
            write_identity(root, identity)
            if sliver.user_data:
                seed.write(root, seed.files(identity, sliver.id, sliver.user_data, None))

    def keys(self, sliver: Sliver, note: Note) -> None:
        with self._root(sliver) as root:
            authorized_keys.write(root, sliver.ssh_keys, note.put)

    def rename(self, sliver: Sliver, identity: Identity) -> None:
        with self._root(sliver) as root:
            write_names(root, identity)
        pid = self._hypervisor.init_pid(sliver.id)
        try:
            with namespaces.inside(pid, "uts"):
                socket.sethostname(identity.hostname)
        except OSError as error:
            raise Failed(f"its host name cannot be changed: {error.strerror}") from error

    def _root(self, sliver: Sliver) -> Root:
        """The root, set writable: the tenant owns the subvolume and can set it read-only."""
        path = names.root_dir(self._config.node.pool, sliver.id)
        self._pool.set_readonly(path, False)
        return Root(path)

    def launch(self, sliver: Sliver) -> None:
        mode = self._pool.quota_mode()
        shown = self._pool.group_directory(self._limited(sliver, mode)) if mode is not QuotaMode.NONE else None
        launch.write(self._config, sliver, subvolumes=mode is not QuotaMode.FULL, quota_group=shown)

    def _limited(self, sliver: Sliver, mode: QuotaMode) -> int:
        """The quota group to which the disk limit applies."""
        if mode is QuotaMode.SIMPLE:
            return names.qgroup(sliver.serial)
        return self._pool.subvolume_id(names.root_dir(self._config.node.pool, sliver.id))


class _Machine:
    def __init__(self, config: Config, pool: Pool, hypervisor: Hypervisor, place: Callable[[], Host]) -> None:
        self._config = config
        self._pool = pool
        self._hypervisor = hypervisor
        self._place = place

    def make(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        image = names.image_file(self._config.images_dir, sliver.image, sliver.image_format)
        if not image.exists():
            raise Failed(f"the file of image {sliver.image[:12]} no longer exists", hint="import the image again")
        facts, base = sliver.boot_facts, names.base_dir(self._config.node.pool, sliver.image)
        if sliver.boot is Boot.DIRECT:
            machine_disk.copy_from_tree(base, facts.kernel, directory / names.KERNEL)
            if facts.initrd:
                machine_disk.copy_from_tree(base, facts.initrd, directory / names.INITRD)
        size, source = _disk_size(sliver), _origin(self._config, sliver)
        if source is None:
            machine_disk.make_overlay(directory / names.DISK, image, sliver.image_format, size, sliver.epoch)
        else:
            machine_disk.copy_variables(source / names.FIRMWARE_VARIABLES, directory / names.FIRMWARE_VARIABLES)
            who = confinement.user(self._config.importer.user)
            machine_disk.copy_overlay(source / names.DISK, directory / names.DISK, size, sliver.epoch, who)

    def snapshot(self, sliver: Sliver, target: Path, group: int | None) -> str:
        """Snapshot the whole directory. While QEMU is paused, the file contains all that the guest has sent."""
        domain, directory = self._hypervisor.domain(sliver.id), names.sliver_dir(self._config.node.pool, sliver.id)
        keep = partial(self._pool.snapshot, directory, target, qgroup=group, readonly=True)
        if domain is None or domain.paused:
            keep()
            return "" if domain is None else _CRASH
        began = time.monotonic()
        self._hypervisor.pause(sliver.id)
        try:
            keep()
        finally:
            self._hypervisor.resume(sliver.id)
        return f"{_CRASH}; it was paused for {(time.monotonic() - began) * 1000:.0f} ms"

    def size(self, sliver: Sliver, snapshot: Path) -> int | None:
        return (snapshot / names.DISK).stat().st_blocks * _BLOCK

    def limit(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        more = machine_disk.allowance(_disk_size(sliver))
        if group is not None:
            self._pool.limit_group(group, _own_limit(sliver, whole=True) + more)
        elif self._pool.quota_mode() is QuotaMode.FULL:
            self._pool.limit_subvolume(directory, _own_limit(sliver, whole=False) + more)

    def grow(self, sliver: Sliver) -> None:
        """Enlarge the disk; QEMU has to do it if the disk is in use."""
        disk = names.disk_file(self._config.node.pool, sliver.id)
        if self._hypervisor.domain(sliver.id) is not None:
            self._hypervisor.grow_disk(sliver.id, _disk_size(sliver))
        elif (machine_disk.virtual_size(disk) or 0) < _disk_size(sliver):
            machine_disk.grow(disk, _disk_size(sliver), confinement.user(self._config.importer.user))

    def identify(self, sliver: Sliver, identity: Identity) -> None:
        clone = sliver.origin.partition("/")[0] not in ("", sliver.id)
        grows = machine_xml.growth(sliver) > 0
        mac = names.mac(sliver.id)
        files = seed.files(identity, sliver.id, sliver.user_data, mac, clone=clone, grows=grows)
        machine_disk.make_seed(names.seed_file(self._config.node.pool, sliver.id), files)

    def rename(self, sliver: Sliver, identity: Identity) -> None:
        """Set the name by the guest agent, and write a seed with it for the next start."""
        self._hypervisor.set_guest_name(sliver.id, identity.hostname)
        self.identify(sliver, identity)
        gid = self._place().machine_gid
        machine_disk.give_to(names.seed_file(self._config.node.pool, sliver.id), sliver.uid_first, gid, 0o400)

    def keys(self, sliver: Sliver, note: Note) -> None:
        """Set the keys by the guest agent; a guest without one gets them by its seed at its next start."""
        gone = list(note.gone(sliver.ssh_keys)) if note.put else None
        self._hypervisor.set_guest_keys(sliver.id, list(sliver.ssh_keys), gone)

    def launch(self, sliver: Sliver) -> None:
        """Give QEMU's user the files that QEMU opens; the rest of the directory belongs to root."""
        pool, gid = self._config.node.pool, self._place().machine_gid
        machine_disk.give_to(names.disk_file(pool, sliver.id), sliver.uid_first, gid, 0o600)
        machine_disk.give_to(names.seed_file(pool, sliver.id), sliver.uid_first, gid, 0o400)
        names.sliver_dir(pool, sliver.id).chmod(0o711)


def _origin(config: Config, sliver: Sliver) -> Path | None:
    """The snapshot that the root begins as; None if it begins as the image. Raises Failed if it does not exist."""
    if not sliver.origin:
        return None
    owner, _, snapshot = sliver.origin.partition("/")
    path = names.snapshot_dir(config.node.pool, owner, snapshot)
    if not path.is_dir():
        raise Failed(_NO_SNAPSHOT, hint=_HINT)
    return path


def _own_limit(sliver: Sliver, *, whole: bool) -> int:
    """The bytes that may be written. whole: the limit applies to root and snapshots together.

    A clone counts its origin's data as a copy would: if the original is deleted, no other sliver is charged for it.
    If the limit applies to the root alone, the sizes of the snapshots are subtracted.
    """
    if whole:
        return max(0, sliver.limits.disk - sliver.inherited)
    return max(0, sliver.limits.disk - sum(one.size for one in sliver.snapshots))


def _disk_size(sliver: Sliver) -> int:
    """The size of the guest's disk in bytes. If the image is larger than the limit, not all of it can be written."""
    return max(sliver.image_size, sliver.limits.disk)
