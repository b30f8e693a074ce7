"""How a sliver's root is made, one way for each kind: a snapshot of the image's files, or a disk over the image.

Both lie in the sliver's own subvolume, so that one quota group limits and measures them alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from slicemgr import names
from slicemgr.config import Config
from slicemgr.drivers import launch, login_keys, machine_disk, seed, whole_file
from slicemgr.drivers.btrfs import Pool, QuotaMode
from slicemgr.drivers.hypervisor import Hypervisor
from slicemgr.drivers.identity import Identity, write_identity
from slicemgr.drivers.login_keys import Note
from slicemgr.drivers.place import Place
from slicemgr.drivers.rootfs import Root
from slicemgr.errors import Code, Failed, SlicemgrError
from slicemgr.model import Boot, Kind, Sliver


class Preparation(Protocol):
    """What one kind needs before its domain starts. Every method may be called again after a crash."""

    def make(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        """The root, complete or not at all. group: the quota group that limits it, if groups do."""

    def limit(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        """Let it write as much as the sliver's limit says. Without a root yet: what it is made in."""

    def grow(self, sliver: Sliver) -> None:
        """Let the guest see a limit that was raised."""

    def identify(self, sliver: Sliver, identity: Identity) -> None:
        """Name, keys, address, user data."""

    def keys(self, sliver: Sliver, note: Note) -> None:
        """Other ssh keys while it runs. Raises Failed if it cannot be told."""

    def launch(self, sliver: Sliver) -> None:
        """The last thing before the domain starts."""


def preparation(
    kind: Kind, config: Config, pool: Pool, hypervisor: Hypervisor, place: Callable[[], Place]
) -> Preparation:
    match kind:
        case Kind.LXC:
            return _Container(config, pool)
        case Kind.KVM:
            return _Machine(config, pool, hypervisor, place)


class Roots:
    """Makes the roots of both kinds. Thread-safe for different slivers."""

    def __init__(self, config: Config, pool: Pool, hypervisor: Hypervisor, place: Callable[[], Place]) -> None:
        self._config = config
        self._pool = pool
        self._kinds = {kind: preparation(kind, config, pool, hypervisor, place) for kind in Kind}

    def make(self, sliver: Sliver) -> None:
        """The quota group, the sliver's subvolume and its root."""
        directory, group = names.sliver_dir(self._config.node.pool, sliver.id), self._group(sliver)
        if group is not None:
            self._pool.create_group(group)
        if not directory.exists():
            self._pool.create_subvolume(directory, qgroup=group)
            directory.chmod(0o700)
        its = self._kinds[sliver.kind]
        its.limit(sliver, directory, group)
        its.make(sliver, directory, group)
        self._note_limit(sliver)

    def resize(self, sliver: Sliver) -> None:
        """Give a root that is there the sliver's disk limit."""
        directory, its = names.sliver_dir(self._config.node.pool, sliver.id), self._kinds[sliver.kind]
        its.limit(sliver, directory, self._group(sliver))
        its.grow(sliver)
        self._note_limit(sliver)

    def _note_limit(self, sliver: Sliver) -> None:
        """The limit as it is applied: see observe."""
        note = names.limit_file(self._config.node.pool, sliver.id)
        whole_file.write(note, str(sliver.limits.disk))

    def identify(self, sliver: Sliver, identity: Identity) -> None:
        """With the keys that the sliver shall have; those that it had go, the tenant's own stay."""
        pool, want = self._config.node.pool, sliver.ssh_keys
        note = login_keys.read_note(pool, sliver.id)
        before = () if note is None else note.put
        if note is not None:
            login_keys.write_note(pool, sliver.id, (*before, *want), note.now)
        self._kinds[sliver.kind].identify(sliver, replace(identity, keys_put=None if note is None else before))
        login_keys.write_note(pool, sliver.id, (*before, *want), want)

    def give_keys(self, sliver: Sliver) -> str:
        """The keys that a running sliver shall have; why it has not got them, or ""."""
        pool, want = self._config.node.pool, sliver.ssh_keys
        note = login_keys.read_note(pool, sliver.id) or Note((), ())
        login_keys.write_note(pool, sliver.id, (*note.put, *want), note.now)
        try:
            self._kinds[sliver.kind].keys(sliver, note)
        except SlicemgrError as error:
            if error.code is Code.UNAVAILABLE:
                raise
            return f"its ssh keys change with its next start (`slicectl restart {sliver.slice_name}`): {error.message}"
        login_keys.write_note(pool, sliver.id, (*note.put, *want), want)
        return ""

    def launch(self, sliver: Sliver) -> None:
        self._kinds[sliver.kind].launch(sliver)

    def _group(self, sliver: Sliver) -> int | None:
        return names.qgroup(sliver.serial) if self._pool.quota_mode() is QuotaMode.SIMPLE else None


class _Container:
    def __init__(self, config: Config, pool: Pool) -> None:
        self._config = config
        self._pool = pool

    def make(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        base = names.base_dir(self._config.node.pool, sliver.image)
        if not base.is_dir():
            raise Failed(f"the base of image {sliver.image[:12]} is gone", hint="import the image again")
        root = names.root_dir(self._config.node.pool, sliver.id)
        unfinished = root.with_name("root.new")
        self._pool.delete_tree(unfinished, None)
        self._pool.snapshot(base, unfinished, qgroup=group)
        if self._pool.quota_mode() is QuotaMode.FULL:
            self._pool.limit_subvolume(unfinished, sliver.limits.disk)
        unfinished.rename(root)

    def limit(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        root = names.root_dir(self._config.node.pool, sliver.id)
        if group is not None:
            self._pool.limit_group(group, sliver.limits.disk)
        elif self._pool.quota_mode() is QuotaMode.FULL and root.exists():
            self._pool.limit_subvolume(root, sliver.limits.disk)

    def grow(self, sliver: Sliver) -> None:
        pass

    def identify(self, sliver: Sliver, identity: Identity) -> None:
        with Root(names.root_dir(self._config.node.pool, sliver.id)) as root:
            write_identity(root, identity)
            if sliver.user_data:
                seed.write(root, seed.files(identity, sliver.id, sliver.user_data, None))

    def keys(self, sliver: Sliver, note: Note) -> None:
        with Root(names.root_dir(self._config.node.pool, sliver.id)) as root:
            login_keys.write(root, sliver.ssh_keys, note.put)

    def launch(self, sliver: Sliver) -> None:
        launch.write(self._config, sliver, subvolumes=self._pool.quota_mode() is not QuotaMode.FULL)


class _Machine:
    def __init__(self, config: Config, pool: Pool, hypervisor: Hypervisor, place: Callable[[], Place]) -> None:
        self._config = config
        self._pool = pool
        self._hypervisor = hypervisor
        self._place = place

    def make(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        image = names.image_file(self._config.images_dir, sliver.image, sliver.image_format)
        if not image.exists():
            raise Failed(f"the file of image {sliver.image[:12]} is gone", hint="import the image again")
        facts, base = sliver.boot_facts, names.base_dir(self._config.node.pool, sliver.image)
        if sliver.boot is Boot.DIRECT:
            machine_disk.copy_from_tree(base, facts.kernel, directory / names.KERNEL)
            if facts.initrd:
                machine_disk.copy_from_tree(base, facts.initrd, directory / names.INITRD)
        size = _disk_size(sliver)
        machine_disk.make_overlay(names.disk_file(self._config.node.pool, sliver.id), image, sliver.image_format, size)

    def limit(self, sliver: Sliver, directory: Path, group: int | None) -> None:
        most = sliver.limits.disk + machine_disk.allowance(_disk_size(sliver))
        if group is not None:
            self._pool.limit_group(group, most)
        elif self._pool.quota_mode() is QuotaMode.FULL:
            self._pool.limit_subvolume(directory, most)

    def grow(self, sliver: Sliver) -> None:
        """A disk in use is QEMU's to resize."""
        disk = names.disk_file(self._config.node.pool, sliver.id)
        if self._hypervisor.domain(sliver.id) is not None:
            self._hypervisor.grow_disk(sliver.id, _disk_size(sliver))
        elif (machine_disk.virtual_size(disk) or 0) < _disk_size(sliver):
            machine_disk.grow(disk, _disk_size(sliver))

    def identify(self, sliver: Sliver, identity: Identity) -> None:
        files = seed.files(identity, sliver.id, sliver.user_data, names.mac(sliver.id))
        machine_disk.make_seed(names.seed_file(self._config.node.pool, sliver.id), files)

    def keys(self, sliver: Sliver, note: Note) -> None:
        """By the guest agent; one that has none gets them by its seed, as it starts."""
        gone = list(note.gone(sliver.ssh_keys))
        self._hypervisor.set_guest_keys(sliver.id, list(sliver.ssh_keys), gone)

    def launch(self, sliver: Sliver) -> None:
        """QEMU runs as the sliver's own user: what it opens is that user's, the rest of the directory root's."""
        pool, gid = self._config.node.pool, self._place().machine_gid
        machine_disk.give_to(names.disk_file(pool, sliver.id), sliver.uid_first, gid, 0o600)
        machine_disk.give_to(names.seed_file(pool, sliver.id), sliver.uid_first, gid, 0o400)
        names.sliver_dir(pool, sliver.id).chmod(0o711)


def _disk_size(sliver: Sliver) -> int:
    """Bytes that the guest sees: of an image that is larger than the limit, not all can be written."""
    return max(sliver.image_size, sliver.limits.disk)
