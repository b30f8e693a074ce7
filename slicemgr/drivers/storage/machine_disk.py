"""A virtual machine's disks: the overlay on its image, the seed, and the kernel for a direct boot.

Every qemu-img names both formats: nothing is ever probed, for a guest may write what it likes into its disk
(CVE-2026-24708). QEMU owns a disk that has run, so its header, too, may say anything: what reads one is confined.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path

from slicemgr.drivers import command
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.importer import confinement
from slicemgr.drivers.importer.confinement import Bounds, User, View
from slicemgr.drivers.storage import btrfs_files
from slicemgr.errors import Failed

_TIME = 60.0
_MOST_FILE = 1 << 46  # bytes; a sliver's quota bounds what it takes
_MOST_PROCESSES = 4096  # of a sliver's own user, which may run others
_MAGIC = b"QFI\xfb"
_SEED_BYTES = 1 << 20


def create_argv(overlay: Path, image: Path, image_format: str, size: int) -> list[str]:
    """qemu-img's words for an overlay of `size` bytes. Pure.

    nocow: btrfs does not copy on write below qcow2, which does so itself. extended_l2: a small write takes 2 KiB of the
    disk limit, not 64, and reads nothing of the image. -u: the image itself is not opened.
    """
    return [
        "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", image_format, "-b", str(image),
        "-o", "nocow=on,lazy_refcounts=off,extended_l2=on", str(overlay), str(size),
    ]  # fmt: skip


def make_overlay(overlay: Path, image: Path, image_format: str, size: int) -> None:
    """A new overlay that appears complete or not at all. Raises CommandFailed."""
    unfinished = overlay.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    command.run(create_argv(unfinished, image, image_format, size), timeout=_TIME)
    unfinished.rename(overlay)


def copy_overlay(source: Path, overlay: Path, size: int, epoch: int, who: User) -> None:
    """A disk that goes on from another one, sharing its blocks, of at least `size` bytes; complete or not at all."""
    unfinished = overlay.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    btrfs_files.share(source, unfinished)
    if (virtual_size(unfinished) or 0) < size:
        grow(unfinished, size, who)
    btrfs_files.set_epoch(unfinished, epoch)
    unfinished.rename(overlay)


def copy_variables(source: Path, target: Path) -> None:
    """What the firmware remembers, if it remembers anything."""
    unfinished = target.with_suffix(".new")
    if source.exists():
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)  # libvirt gives it to QEMU
        shutil.copyfile(source, unfinished)
        unfinished.rename(target)
    else:
        target.unlink(missing_ok=True)


def make_seed(target: Path, files: Mapping[str, str]) -> None:
    """A FAT disk labelled CIDATA, which cloud-init looks for. Raises CommandFailed."""
    with tempfile.TemporaryDirectory(prefix="seed.", dir=target.parent) as directory:
        unfinished = Path(directory) / "image"
        unfinished.touch(mode=0o600)
        os.truncate(unfinished, _SEED_BYTES)
        command.run(
            ["mformat", "-i", unfinished, "-T", str(_SEED_BYTES // 512), "-h", "16", "-s", "32", "-v", "CIDATA", "::"],
            timeout=_TIME,
        )
        for name, text in files.items():
            (Path(directory) / name).write_text(text)
        command.run(["mcopy", "-i", unfinished, *(Path(directory) / name for name in files), "::"], timeout=_TIME)
        unfinished.rename(target)


def copy_from_tree(tree: Path, path: str, target: Path) -> None:
    """A file of an image's own. Raises Failed if it is not there any more."""
    target.unlink(missing_ok=True)
    with Root(tree) as root:
        if not root.copy_out(path, target):
            raise Failed(f"the image's {path} is gone", hint="import the image again")


def virtual_size(overlay: Path) -> int | None:
    """Bytes that the guest sees of it, by the header; None if there is no qcow2 file."""
    try:
        with os.fdopen(_open(overlay, os.O_RDONLY), "rb") as file:
            head = file.read(32)
    except OSError:
        return None
    if len(head) < 32 or head[:4] != _MAGIC:
        return None
    return int(struct.unpack_from(">Q", head, 24)[0])


def _open(disk: Path, how: int) -> int:
    """A descriptor of a plain file with one name, not through a link. Raises OSError."""
    fd = os.open(disk, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a plain file of its own")


def grow(overlay: Path, size: int, who: User) -> None:
    """Make the disk of a machine that does not run larger. Raises Failed, CommandFailed.

    qemu-img sees this one file and runs as who owns it, or as `who` if root does. The image below is not opened: the
    disk is as large as that already, so nothing of it shows in the new part.
    """
    try:
        fd = _open(overlay, os.O_RDWR)
    except OSError as error:
        raise Failed(f"{overlay} cannot be resized: {error.strerror}", hint="delete the sliver") from error
    try:
        found = os.fstat(fd)
        owner = User(found.st_uid, found.st_gid) if found.st_uid else who
        os.fchown(fd, owner.uid, owner.gid)
        bounds = Bounds(memory=1 << 30, data=1 << 30, cpu=int(_TIME), file=_MOST_FILE, processes=_MOST_PROCESSES)
        line = ["qemu-img", "resize", "-q", _without_image("/disk"), str(size)]
        confinement.run(line, owner, bounds, View({}, {"/disk": overlay}), timeout=_TIME)
        os.fchown(fd, found.st_uid, found.st_gid)
    finally:
        os.close(fd)


def _without_image(path: str) -> str:
    """A qcow2 disk by QEMU's description, whatever its header names below it."""
    file = {"driver": "file", "filename": path}
    return "json:" + json.dumps({"driver": "qcow2", "backing": None, "file": file})


def allowance(disk: int) -> int:
    """Bytes beside the guest's own: qcow2's tables (18 bytes per 64 KiB; 32 are allowed for), seed, keys, console."""
    return disk // 2048 + (16 << 20)


def give_to(path: Path, uid: int, gid: int, mode: int) -> None:
    """Make a file QEMU's; one that is a symbolic link, or has a second name, stays as it is. Raises Failed."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        held = os.fstat(fd)
        if not stat.S_ISREG(held.st_mode) or held.st_nlink != 1:
            raise Failed(f"{path} is not a plain file of its own", hint="look at who put it there")
        os.chown(f"/proc/self/fd/{fd}", uid, gid)
        Path(f"/proc/self/fd/{fd}").chmod(mode)
    finally:
        os.close(fd)
