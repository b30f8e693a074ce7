"""Install GRUB on a disk that is a file: its configuration, and the data that `grub-install` would write.

A BIOS loads the boot sector, which loads the core image from its place in the layout, which finds `grub.cfg` by the
UUID of the file system with /boot. UEFI's GRUB, signed by Debian, finds it by the same configuration.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from slicemgr.drivers import command
from slicemgr.drivers.importer.disk_layout import BOOT_CODE, SECTOR, DiskIds, Layout, Part
from slicemgr.errors import invalid

# GRUB's fixed offsets (include/grub/i386/pc/boot.h), in the first sectors of boot.img and core.img.
_BOOT_KERNEL_SECTOR = 0x5C  # boot.img: the first sector of core.img, 8 bytes
_BOOT_DRIVE_CHECK = 0x66  # boot.img: a jump over the check of the drive number; two NOPs for a hard disk
_CORE_BLOCKLIST = 0x1F4  # core.img: the position of its second sector, 8 bytes
_CORE_MODULES = ("biosdisk", "search_fs_uuid", "configfile", "normal", "linux", "serial", "terminal")
_TABLE_MODULES = {"gpt": "part_gpt", "dos": "part_msdos"}
_FILESYSTEM_MODULES = {"ext4": "ext2", "btrfs": "btrfs"}
_PLATFORM = "i386-pc"
_KERNEL_LINKS = ("vmlinuz", "initrd.img")


def core_modules(layout: Layout) -> tuple[str, ...]:
    """The modules that the core image needs to read grub.cfg and a kernel."""
    filesystem = "ext4" if layout.boot else layout.filesystem
    return (*_CORE_MODULES, _TABLE_MODULES[layout.table], _FILESYSTEM_MODULES[filesystem])


def prefix(layout: Layout) -> str:
    """GRUB's directory in the file system that contains /boot."""
    return "/grub" if layout.boot else "/boot/grub"


def grub_config(layout: Layout, ids: DiskIds, kernel_options: str) -> str:
    """The first grub.cfg, which loads the kernel by Debian's links; `update-grub` in the guest writes another."""
    return (
        "set timeout=1\n"
        "serial --speed=115200\n"
        "terminal_input console serial\n"
        "terminal_output console serial\n"
        f"search --no-floppy --fs-uuid --set=root {_boot_uuid(layout, ids)}\n"
        "menuentry 'Linux' {\n"
        f"    linux /vmlinuz root=UUID={ids.root} ro {kernel_options}\n"
        "    initrd /initrd.img\n"
        "}\n"
    )


def early_config(layout: Layout, ids: DiskIds) -> str:
    """The configuration that finds grub.cfg, for both firmwares."""
    return (
        f"search.fs_uuid {_boot_uuid(layout, ids)} root\n"
        f"set prefix=($root){prefix(layout)}\n"
        "configfile $prefix/grub.cfg\n"
    )  # fmt: skip


def defaults(kernel_options: str) -> str:
    """The settings that make `update-grub` in the guest keep the options of the first grub.cfg."""
    return (
        "GRUB_TIMEOUT=1\n"
        f"GRUB_CMDLINE_LINUX={shlex.quote(kernel_options)}\n"
        'GRUB_TERMINAL="console serial"\n'
        'GRUB_SERIAL_COMMAND="serial --speed=115200"\n'
    )


def _boot_uuid(layout: Layout, ids: DiskIds) -> str:
    return str(ids.boot if layout.boot else ids.root)


def boot_sector(boot: bytes, core: Part) -> bytes:
    """The MBR's code: GRUB's boot.img with the position of the core image. Raises Refused if it is not boot.img."""
    if len(boot) < SECTOR or boot[510:512] != b"\x55\xaa":
        raise invalid("recipe.packages", "GRUB's boot.img has an unexpected content")
    code = bytearray(boot[:BOOT_CODE])
    code[_BOOT_KERNEL_SECTOR : _BOOT_KERNEL_SECTOR + 8] = (core.start // SECTOR).to_bytes(8, "little")
    code[_BOOT_DRIVE_CHECK : _BOOT_DRIVE_CHECK + 2] = b"\x90\x90"
    return bytes(code)


def core_image(image: bytes, core: Part) -> bytes:
    """GRUB's core.img with the position of its own second sector. Raises Refused if it does not fit."""
    if not SECTOR < len(image) <= core.size:
        raise invalid("recipe.packages", f"GRUB's core image of {len(image)} bytes does not fit into {core.size}")
    placed = bytearray(image)
    placed[_CORE_BLOCKLIST : _CORE_BLOCKLIST + 8] = (core.start // SECTOR + 1).to_bytes(8, "little")
    return bytes(placed)


def install(tree: Path, layout: Layout, ids: DiskIds, kernel_options: str) -> tuple[bytes, bytes]:
    """Write GRUB's files into /boot/grub of `tree`, as grub-install does; the boot sector and the core image.

    Raises Refused if the tree has no kernel or no GRUB, or CommandFailed.
    """
    modules, target = tree / "usr/lib/grub" / _PLATFORM, tree / "boot/grub" / _PLATFORM
    if not (modules / "boot.img").is_file():
        raise invalid("recipe.packages", "contain no GRUB for a BIOS", "grub-pc-bin and grub2-common")
    _link_kernel(tree, layout)
    target.mkdir(parents=True)
    place = shutil.copyfile if layout.boot else os.link  # hard links work within one file system only
    for pattern in ("*.mod", "*.lst"):
        for module in modules.glob(pattern):
            place(module, target / module.name)
    write(tree / "boot/grub/grub.cfg", grub_config(layout, ids, kernel_options))
    write(tree / "etc/default/grub.d/50_testbed.cfg", defaults(kernel_options))
    write(target / "load.cfg", early_config(layout, ids))
    # The tree's own program is run, because its version fits the modules.
    command.run(
        [
            "chroot", tree, "grub-mkimage", f"--format={_PLATFORM}", f"--prefix={prefix(layout)}",
            f"--config=/boot/grub/{_PLATFORM}/load.cfg", f"--output=/boot/grub/{_PLATFORM}/core.img",
            *core_modules(layout),
        ],
        timeout=60,
    )  # fmt: skip
    core = (target / "core.img").read_bytes()
    return boot_sector((modules / "boot.img").read_bytes(), layout.core), core_image(core, layout.core)


def _link_kernel(tree: Path, layout: Layout) -> None:
    """Move the links to the kernel into a separate /boot: GRUB follows no links to another file system."""
    for name in _KERNEL_LINKS:
        link = tree / name
        if not link.is_symlink():
            raise invalid("recipe.packages", f"contain no kernel: there is no /{name}", "a linux-image package")
        if layout.boot:
            (tree / "boot" / name).symlink_to(link.readlink().name)
            link.unlink()
    if layout.boot:
        write(tree / "etc/kernel-img.conf", "do_symlinks = yes\nlink_in_boot = yes\n")


def write(path: Path, text: str) -> None:
    """Write a new file that all users may read, in place of a link or a file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o644)
