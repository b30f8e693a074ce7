"""The disks of a virtual machine: the overlay on its image, the seed, and the kernel for a direct boot.

Every call of qemu-img names both formats, so that none is detected from content that a guest controls
(CVE-2026-24708). QEMU owns a disk that has run, so its header is untrusted as well: programs that read it are confined.
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
_MOST_FILE = 1 << 46  # bytes; the sliver's quota limits the space that is used
_MOST_PROCESSES = 4096  # of the sliver's own user, which may run other processes
_MAGIC = b"QFI\xfb"
_SEED_BYTES = 1 << 20


def create_argv(overlay: Path, image: Path, image_format: str, size: int) -> list[str]:
    """The qemu-img command line for an overlay of `size` bytes. Pure.

    nocow: qcow2 copies on write itself, so btrfs does not. extended_l2: a small write uses 2 KiB of the disk limit
    instead of 64 KiB, and reads nothing from the image. -u: the image is not opened.
    """
    return [
        "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", image_format, "-b", str(image),
        "-o", "nocow=on,lazy_refcounts=off,extended_l2=on", str(overlay), str(size),
    ]  # fmt: skip


def make_overlay(overlay: Path, image: Path, image_format: str, size: int, epoch: int = 0) -> None:
    """Create an overlay atomically. size: in bytes. Raises CommandFailed."""
    unfinished = overlay.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    command.run(create_argv(unfinished, image, image_format, size), timeout=_TIME)
    if epoch:
        btrfs_files.set_epoch(unfinished, epoch)
    unfinished.rename(overlay)


def copy_overlay(source: Path, overlay: Path, size: int, epoch: int, who: User) -> None:
    """Create a disk atomically from another, with shared blocks and at least `size` bytes.

    Raises Failed or CommandFailed.
    """
    unfinished = overlay.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    btrfs_files.share(source, unfinished)
    if (virtual_size(unfinished) or 0) < size:
        grow(unfinished, size, who)
    btrfs_files.set_epoch(unfinished, epoch)
    unfinished.rename(overlay)


def copy_variables(source: Path, target: Path) -> None:
    """Copy the firmware's variables; remove `target` if `source` does not exist."""
    unfinished = target.with_suffix(".new")
    if source.exists():
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)  # libvirt makes QEMU its owner
        shutil.copyfile(source, unfinished)
        unfinished.rename(target)
    else:
        target.unlink(missing_ok=True)


def make_seed(target: Path, files: Mapping[str, str]) -> None:
    """Create a FAT disk labelled CIDATA, the label that cloud-init searches for. Raises CommandFailed."""
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
    """Copy a file of an image's tree. Raises Failed if it no longer exists."""
    target.unlink(missing_ok=True)
    with Root(tree) as root:
        if not root.copy_out(path, target):
            raise Failed(f"the image's {path} no longer exists", hint="import the image again")


def virtual_size(overlay: Path) -> int | None:
    """The size of the guest's disk in bytes, from the header; None if the file is not qcow2 or does not exist."""
    try:
        with os.fdopen(_open(overlay, os.O_RDONLY), "rb") as file:
            head = file.read(32)
    except OSError:
        return None
    if len(head) < 32 or head[:4] != _MAGIC:
        return None
    return int(struct.unpack_from(">Q", head, 24)[0])


def _open(disk: Path, how: int) -> int:
    """Open a regular file that has one name, not by a symbolic link. Raises OSError."""
    fd = os.open(disk, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a regular file with one link")


def grow(overlay: Path, size: int, who: User) -> None:
    """Enlarge the disk of a machine that does not run to `size` bytes. Raises Failed or CommandFailed.

    qemu-img can access only this file and runs as its owner, or as `who` if root owns it. The image is not opened: the
    disk is at least as large as the image, so no data of the image appears in the new part.
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
    """QEMU's description of a qcow2 disk without a backing file, whatever its header names."""
    file = {"driver": "file", "filename": path}
    return "json:" + json.dumps({"driver": "qcow2", "backing": None, "file": file})


def allowance(disk: int) -> int:
    """Bytes in addition to the guest's: 32 per 64 KiB for qcow2's tables, which need 18; seed, keys and console log."""
    return disk // 2048 + (16 << 20)


def give_to(path: Path, uid: int, gid: int, mode: int) -> None:
    """Change owner and mode of a regular file with one name, such as for QEMU. Raises Failed for any other file."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        held = os.fstat(fd)
        if not stat.S_ISREG(held.st_mode) or held.st_nlink != 1:
            raise Failed(f"{path} is not a regular file with one link", hint="find out which program created it")
        os.chown(f"/proc/self/fd/{fd}", uid, gid)
        Path(f"/proc/self/fd/{fd}").chmod(mode)
    finally:
        os.close(fd)
