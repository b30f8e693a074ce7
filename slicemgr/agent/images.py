"""Disk images: import an uploaded file as a read-only base, and delete it.

A base is created under a temporary name and renamed once, so that an existing base is complete.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
import threading
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from slicemgr import names
from slicemgr.agent.acceleration import Machines
from slicemgr.agent.image_source import Source, Wanted, block_file, partial_file
from slicemgr.agent.journal import Journal
from slicemgr.config import Config
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.importer import base_stream, confinement, disk_image
from slicemgr.drivers.importer.unpack import Meter, Progress
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.storage import atomic_file
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.model import BootFacts, Image, ImageState, NodeImageState, OperationState
from slicemgr.policy import kernel_config
from slicemgr.policy.image_blocks import BASE
from slicemgr.store import Store, pending

log = logging.getLogger(__name__)

_SHA256 = re.compile("[0-9a-f]{64}")
_SYSTEMD = ("usr/lib/systemd/systemd", "lib/systemd/systemd")
_CHUNK = 1 << 20
POOL_RESERVE = 256 << 20  # bytes of the pool that an import must not use
_STREAM_HEADS = 64 << 20  # bytes by which a stream may be larger than twice its files
_LEAST_FREE = 128 << 20  # free bytes below which an import ends: names and inodes use space as well


def incoming_dir(pool: Path, sha256: str) -> Path:
    """The subvolume into which an import extracts the files of an image."""
    return pool / "bases" / f".incoming-{sha256}"


def stream_file(config: Config, sha256: str) -> Path:
    """The file with the stream of an image's base, which other nodes receive."""
    return names.image_file(config.images_dir, sha256, BASE)


def note_file(config: Config, sha256: str) -> Path:
    """The file with the findings of an extraction, for an agent that restarts before they are in the rows."""
    return config.images_dir / f"{sha256}.json"


def read_note(config: Config, sha256: str) -> disk_image.TreeFacts | None:
    """The findings of an extraction that has completed on this node; None if there are none."""
    try:
        known = json.loads(note_file(config, sha256).read_text())
    except FileNotFoundError:
        return None
    return disk_image.TreeFacts(**{**known, "boot": BootFacts(**known["boot"])})


def take_over(upload: Path, disk: Path) -> None:
    """Copy the file that the web process has spooled to a file of root's own.

    It is copied because the web process may still have its file open, and read without following a link because that
    process must not choose what root reads. Raises Failed if it is not a regular file.
    """
    unfinished = disk.with_suffix(".new")
    try:
        with os.fdopen(os.open(upload, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
            held = os.fstat(source.fileno())
            if not stat.S_ISREG(held.st_mode) or held.st_nlink != 1:
                raise Failed("the uploaded file is not a regular file with one link", hint="import the image again")
            unfinished.unlink(missing_ok=True)
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as target:
                shutil.copyfileobj(source, target, _CHUNK)
        unfinished.rename(disk)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise Failed(f"the uploaded file cannot be opened: {error.strerror}", hint="import the image again") from error


def has_systemd(base: Path) -> bool:
    """Whether the files of an image include systemd."""
    try:
        with Root(base) as root:
            return any(root.exists(path) for path in _SYSTEMD)
    except Failed:
        return False


def config_of_kernel(base: Path, kernel: str) -> str:
    """The configuration of an image's kernel, by the path of the kernel; "" if the files have none."""
    path = kernel_config.path(kernel)
    if not path:
        return ""
    try:
        with Root(base) as root:
            return kernel_config.shown(root.read(path, kernel_config.LARGEST) or b"")
    except Failed:
        return ""


def note_findings(config: Config, store: Store, journal: Journal) -> None:
    """Record of images that an earlier version imported whether they have systemd, and the kernel's configuration."""
    with store.read() as c:
        images = [one for one in pending.images(c) if one.systemd is None and one.state is ImageState.READY]
        others = pending.images_without_config(c)
    for one in images:
        base = names.base_dir(config.node.pool, one.sha256)
        if base.is_dir():
            journal.add(pending.ImageSeen(one.sha256, ImageState.READY, systemd=has_systemd(base)))
    for one in others:
        base = names.base_dir(config.node.pool, one.sha256)
        if base.is_dir():
            found = config_of_kernel(base, one.boot.kernel)
            journal.add(pending.ImageSeen(one.sha256, ImageState.READY, kernel_config=found))


class Importer:
    """Carries out `image-import` and `image-delete`. Both are idempotent, so a restarted agent repeats them.

    source: where a node of a testbed gets uploaded files; None: they are on this machine.
    """

    def __init__(
        self,
        config: Config,
        pool: Pool,
        journal: Journal,
        machines: Machines,
        stop: threading.Event,
        source: Source | None = None,
    ) -> None:
        self._config = config
        self._pool = pool
        self._journal = journal
        self._machines = machines
        self._stop = stop
        self._source = source

    def add(self, operation: pending.Operation) -> dict[str, object]:
        """Check the file, copy it, and extract its files into the base.

        Raises Refused for a file that is not a usable image, and Failed if the extraction broke; nothing remains then.
        """
        sha256, format = operation.image, str(operation.params["format"])
        if not _SHA256.fullmatch(sha256) or format not in disk_image.FORMATS:
            raise Refused(Code.INVALID, "the request does not name an uploaded file")
        upload = self._config.uploads_dir / f"{sha256}.{format}"
        steps = Steps(self._journal, operation.id)
        try:
            steps("check", 0)
            result = self._add(operation, sha256, format, upload, steps)
            if result["arch"] and (self._source is not None or self._config.hub.broker):
                self._give_base(sha256, steps)
        except Exception as error:  # an image whose row remains could be neither deleted nor imported again
            if not self._stop.is_set():
                steps.end(OperationState.FAILED, str(error) if isinstance(error, SlicemgrError) else "")
                self._journal.add(pending.ImageGone(sha256))
            raise
        steps.end(OperationState.DONE)
        return result

    def _add(
        self, operation: pending.Operation, sha256: str, format: str, upload: Path, progress: Progress
    ) -> dict[str, object]:
        disk = names.image_file(self._config.images_dir, sha256, format)
        with ExitStack() as revert:
            self.make_folder()
            revert.callback(self._drop, upload, disk)
            if not disk.exists():
                self._take(operation, format, upload, disk, progress)
            upload.unlink(missing_ok=True)
            if disk_image.sha256_of(disk, lambda percent: progress("check", percent)) != sha256:
                raise Failed("the uploaded file has changed", hint="import the image again")
            left = operation.params.get("most")
            facts, tree = self.extract(sha256, format, disk, progress, left if isinstance(left, int) else None)
            revert.pop_all()
        node, base = self._config.node.name, names.base_dir(self._config.node.pool, sha256)
        self._journal.add(
            pending.ImageSeen(
                sha256,
                ImageState.READY,
                arch=tree.arch,
                os=tree.os_name,
                virtual_size=facts.virtual_size,
                boot=tree.boot.to_json(),
                base_size=tree.bytes if tree.arch else 0,
                systemd=bool(tree.arch) and has_systemd(base),
                kernel_config=config_of_kernel(base, tree.boot.kernel) if tree.arch else "",
            ),
            pending.ImageOnNode(
                *(sha256, node, NodeImageState.READY),
                base_size=tree.bytes if tree.arch else 0,
                disk=NodeImageState.READY,
                base=NodeImageState.READY if tree.arch else NodeImageState.ABSENT,
            ),
        )
        return {"sha256": sha256, "arch": tree.arch, "os": tree.os_name, "bytes": tree.bytes}

    def _give_base(self, sha256: str, progress: Progress) -> None:
        """Make the stream of the base, for other nodes; without it they extract the disk image themselves."""
        base, file = names.base_dir(self._config.node.pool, sha256), stream_file(self._config, sha256)
        progress("stream", None)
        try:
            stream, size = base_stream.write(base, file)
            if self._source is None:
                self._journal.add(pending.BaseStreamMade(sha256, stream, size, base_stream.VERSION))
            else:
                self._source.send(Wanted(stream, BASE, size, sha256), file, base_stream.VERSION)
            if not note_file(self._config, sha256).exists():
                raise Failed("the image was deleted")
        except (SlicemgrError, OSError) as error:
            file.unlink(missing_ok=True)
            log.warning("other nodes will extract image %s themselves: %s", sha256[:12], error)
            return
        known, node = read_note(self._config, sha256), self._config.node.name
        here = NodeImageState.READY
        size = known.bytes if known is not None else 0
        self._journal.add(pending.ImageOnNode(sha256, node, here, base_size=size, disk=here, base=here, stream=True))

    def make_folder(self) -> None:
        """The folder of the disk images."""
        self._config.images_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._config.images_dir.chmod(0o711)  # QEMU, which is not root, opens files by their names

    def _take(self, operation: pending.Operation, format: str, upload: Path, disk: Path, progress: Progress) -> None:
        if self._source is None:
            take_over(upload, disk)
            return
        size = operation.params.get("size")
        if not isinstance(size, int):
            raise Refused(Code.INVALID, "the request does not name the size of the file", hint="update the service")
        self._source.fetch(Wanted(operation.image, format, size), disk, progress, alone=True)

    def extract(
        self, sha256: str, format: str, disk: Path, progress: Progress, most: int | None = None
    ) -> tuple[disk_image.DiskFacts, disk_image.TreeFacts]:
        """Check a disk image and extract its files into the base, unless that was done before.

        disk: has that sha256. most: bytes that the files may use; None: as many as the pool has room for. Raises
        Refused for a file that is not a usable image, and Failed if the extraction broke; the disk remains then.
        """
        base, incoming = names.base_dir(self._config.node.pool, sha256), incoming_dir(self._config.node.pool, sha256)
        user = confinement.user(self._config.importer.user)
        facts = self.check(disk, format)
        known = read_note(self._config, sha256)
        if known is None or (known.arch and not base.is_dir()):  # or the base was lost
            with ExitStack() as revert:
                self._pool.delete_tree(incoming, None)
                self._pool.create_subvolume(incoming)
                revert.callback(self._pool.delete_tree, incoming, None)
                known = disk_image.extract(
                    disk,
                    format,
                    incoming,
                    acceleration=self._machines.found.acceleration if self._machines.found else None,
                    who=user,
                    cache=self._config.importer.cache / "appliance",
                    progress=progress,
                    size_limit=self._most(most),
                    reserve=_LEAST_FREE,
                    cancelled=self._stop,
                )
                self._keep(known, incoming, base)
                self.note(sha256, known)
                revert.pop_all()
            log.info("image %s was extracted", sha256[:12])
        self._give_to_machines(disk)
        return facts, known

    def check(self, disk: Path, format: str) -> disk_image.DiskFacts:
        """Check a disk image before any other program reads it. Only the importer's user can read it then."""
        user = confinement.user(self._config.importer.user)
        os.chown(disk, 0, user.gid)
        disk.chmod(0o640)
        return disk_image.detect_and_check(disk, format, max_virtual_size=self._config.web.max_image.bytes, who=user)

    def use_disk(self, disk: Path, format: str) -> None:
        """Check a disk image whose files are not extracted here, and let virtual machines read it."""
        self.check(disk, format)
        self._give_to_machines(disk)

    def _give_to_machines(self, disk: Path) -> None:
        os.chown(disk, 0, launch.machine_gid(self._config))
        disk.chmod(0o640)

    def note(self, sha256: str, known: disk_image.TreeFacts) -> None:
        """Record that this node has files of an image. known: the findings in its base."""
        atomic_file.write(note_file(self._config, sha256), json.dumps({**asdict(known), "boot": known.boot.to_json()}))

    def receive(self, image: Image, file: Path, progress: Progress) -> None:
        """Make the base from its stream, which has the right sha256. Raises Refused or Failed; no base remains then.

        Only what an extraction could have left is kept: see drivers.importer.base_stream.
        """
        sha256, pool = image.sha256, self._config.node.pool
        base, incoming = names.base_dir(pool, sha256), incoming_dir(pool, sha256)
        progress("receive", 0)
        meter = Meter(
            progress,
            incoming,
            expected=max(1, image.base_size),
            limit=min(self._most(None), 2 * image.base_size + _STREAM_HEADS),
            reserve=_LEAST_FREE,
            cancelled=self._stop,
            step="receive",
            look=base_stream.LOOK,
        )
        with ExitStack() as revert:
            self._pool.delete_tree(incoming, None)
            self._pool.create_subvolume(incoming)
            revert.callback(self._pool.delete_tree, incoming, None)
            origin = base_stream.receive(file, incoming, confinement.user(self._config.importer.user), meter)
            known = disk_image.facts_of(incoming, image.base_size, image.boot)
            if (known.arch, known.boot) != (image.arch, image.boot):
                raise Failed("the stream has another system than the image")
            self._pool.set_received(incoming, origin.uuid, origin.transaction)
            self._keep(known, incoming, base)
            self.note(sha256, known)
            revert.pop_all()
        log.info("the base of image %s was received", sha256[:12])

    def _most(self, left: int | None) -> int:
        """The bytes that its files may use, by the free space of the pool and the quota of the image's project."""
        free = max(0, self._pool.space().free - POOL_RESERVE)
        return free if left is None else min(free, left)

    def _keep(self, tree: disk_image.TreeFacts, incoming: Path, base: Path) -> None:
        """Rename the files to their base; an image without Linux has none."""
        self._pool.delete_tree(base, None)  # of an agent that was killed at this point
        if tree.arch:
            self._pool.set_readonly(incoming, True)
            incoming.rename(base)
        else:
            self._pool.delete_tree(incoming, None)

    def remove(self, operation: pending.Operation) -> dict[str, object]:
        """Delete an image's base and disk file. The service has verified that no slice uses it."""
        self.delete_files(operation.image)
        self._journal.add(pending.ImageGone(operation.image))
        return {}

    def delete_files(self, sha256: str) -> None:
        """Delete the base and the disk file of an image that no sliver of this node uses."""
        self._pool.delete_tree(incoming_dir(self._config.node.pool, sha256), None)
        self._pool.delete_tree(names.base_dir(self._config.node.pool, sha256), None)
        for format in (*disk_image.FORMATS, BASE):
            disk = names.image_file(self._config.images_dir, sha256, format)
            disk.unlink(missing_ok=True)
            for incomplete in (partial_file(disk), block_file(disk), disk.with_suffix(".new")):
                incomplete.unlink(missing_ok=True)
        note_file(self._config, sha256).unlink(missing_ok=True)

    def _drop(self, upload: Path, disk: Path) -> None:
        """Remove the files of a failed import; an agent that is stopping keeps them for the next one."""
        if not self._stop.is_set():
            upload.unlink(missing_ok=True)
            disk.unlink(missing_ok=True)


class Steps:
    """Reports the steps of an import to its operation. A step ends when the next one begins."""

    def __init__(self, journal: Journal, operation: str) -> None:
        self._journal = journal
        self._operation = operation
        self._name = ""

    def __call__(self, name: str, percent: int | None) -> None:
        """The step and how much of it is done; None if that is unknown."""
        if name != self._name:
            self.end(OperationState.DONE)
        self._name = name
        self._report(OperationState.RUNNING, "", percent)

    def end(self, state: OperationState, detail: str = "") -> None:
        """End the current step, if there is one."""
        if self._name:
            self._report(state, detail, 100 if state is OperationState.DONE else None)

    def _report(self, state: OperationState, detail: str, percent: int | None) -> None:
        self._journal.add(pending.StepSeen(self._operation, "", self._name, state, detail, percent))
