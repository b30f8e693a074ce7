"""Make a bootable raw disk from a tree of files.

All data is written into sparse files, without a loop device, a mount or an appliance: by sfdisk for the partition
table, mke2fs -d and mkfs.btrfs --rootdir for the file systems, mtools for the ESP, and this module for GRUB's boot
sector and core image.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from slicemgr.builder import grub
from slicemgr.drivers import command
from slicemgr.drivers.importer.disk_layout import SECTOR, DiskIds, Layout, Part, fstab, table_script
from slicemgr.model import MIB

_TIME = 600.0


def assemble(tree: Path, disk: Path, layout: Layout, kernel_options: str | None) -> None:
    """Write `disk` from `tree`. This adds fstab and GRUB's files to the tree, and moves a separate /boot out of it.

    kernel_options: of the boot loader; None for a disk without one. Needs free space beside `disk`. Raises Refused for
    a tree that cannot boot, or CommandFailed.
    """
    ids = DiskIds(uuid.uuid4(), uuid.uuid4(), int.from_bytes(os.urandom(4)))
    grub.write(tree / "etc/fstab", fstab(layout, ids))
    if layout.esp:
        (tree / "boot/efi").mkdir()
    loader = None if kernel_options is None else grub.install(tree, layout, ids, kernel_options)
    with disk.open("xb") as file:
        file.truncate(layout.size)
    script = table_script(layout).encode()
    command.run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", disk], input=script, timeout=60)
    if layout.esp:
        _write_esp(tree, disk, layout.esp, ids)
    if layout.boot:
        boot = disk.with_name("boot")
        (tree / "boot").rename(boot)
        (tree / "boot").mkdir(mode=0o755)
        _make_ext4(boot, disk, layout.boot, ids.boot)
    match layout.filesystem:
        case "ext4":
            _make_ext4(tree, disk, layout.root, ids.root)
        case "btrfs":
            _make_btrfs(tree, disk, layout.root, ids.root)
    if loader is not None:
        sector, core = loader
        with disk.open("r+b") as file:
            file.write(sector)
            file.seek(layout.core.start)
            file.write(core)


def _make_ext4(tree: Path, disk: Path, part: Part, identity: uuid.UUID) -> None:
    command.run(
        [
            "mke2fs", "-q", "-F", "-t", "ext4", "-m", "1", "-L", part.name, "-U", str(identity),
            # GRUB 2.06 and older kernels do not support these two features, which newer e2fsprogs enable
            "-O", "^metadata_csum_seed,^orphan_file",
            "-E", f"offset={part.start}", "-d", tree, disk, f"{part.size // 1024}k",
        ],
        timeout=_TIME,
    )  # fmt: skip


def _make_btrfs(tree: Path, disk: Path, part: Part, identity: uuid.UUID) -> None:
    """Make the file system in a separate file, since mkfs.btrfs has no offset, and copy it without the holes."""
    alone = disk.with_name(part.name)
    with alone.open("xb") as file:
        file.truncate(part.size)
    command.run(
        ["mkfs.btrfs", "--quiet", "--label", part.name, "--uuid", str(identity), "--rootdir", tree, alone],
        timeout=_TIME,
    )
    command.run(
        [
            "dd", f"if={alone}", f"of={disk}", f"bs={MIB}", f"seek={part.start // MIB}",
            "conv=sparse,notrunc", "status=none",
        ],
        timeout=_TIME,
    )  # fmt: skip
    alone.unlink()


def _write_esp(tree: Path, disk: Path, esp: Part, ids: DiskIds) -> None:
    """Write the ESP with the removable-media path, which needs no firmware entry; Debian signed shim and GRUB."""
    image = f"{disk}@@{esp.start}"
    sectors = esp.size // SECTOR
    command.run(
        ["mformat", "-i", image, "-T", str(sectors), "-h", "64", "-s", "32", "-v", "ESP", "-N", f"{ids.esp:08x}", "::"],
        timeout=60,
    )
    command.run(["mmd", "-i", image, "::/EFI", "::/EFI/BOOT", "::/EFI/debian"], timeout=60)
    files = {
        "usr/lib/shim/shimx64.efi.signed": "::/EFI/BOOT/BOOTX64.EFI",
        "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed": "::/EFI/BOOT/grubx64.efi",
        "boot/grub/i386-pc/load.cfg": "::/EFI/debian/grub.cfg",
    }
    for source, target in files.items():
        command.run(["mcopy", "-i", image, tree / source, target], timeout=60)
