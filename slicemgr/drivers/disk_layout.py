"""From a tree of files to a bootable raw disk: GPT, BIOS-boot partition, ESP and an ext4 root.

Everything is written straight into the sparse file, without a loop device, a mount or an appliance:
sfdisk for the table, mke2fs -d for the root, mtools for the ESP, and GRUB's two boot sectors by hand.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from slicemgr.drivers import command
from slicemgr.errors import invalid
from slicemgr.model import MIB

SECTOR = 512
_BIOS_START, _BIOS_SIZE = 1 * MIB, 1 * MIB
_ESP_START, _ESP_SIZE = 2 * MIB, 30 * MIB
_ROOT_START = 32 * MIB
_GPT_TAIL = 1 * MIB  # the backup table, and alignment
_TIME = 600.0

_TYPE_BIOS = "21686148-6449-6E6F-744E-656564454649"
_TYPE_ESP = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
_TYPE_ROOT = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"

# GRUB's fixed places (include/grub/i386/pc/boot.h, offsets in the first sector of boot.img and core.img).
_BOOT_CODE = 440  # bytes of an MBR before the disk's signature and partition table
_BOOT_KERNEL_SECTOR = 0x5C  # boot.img: where core.img begins, 8 bytes
_BOOT_DRIVE_CHECK = 0x66  # boot.img: a jump over the check of the drive number, two NOPs on a hard disk
_CORE_BLOCKLIST = 0x1F4  # core.img: where its second sector lies, 8 bytes
_CORE_MODULES = (
    "biosdisk",
    "part_gpt",
    "ext2",
    "search_fs_uuid",
    "configfile",
    "normal",
    "linux",
    "serial",
    "terminal",
)


@dataclass(frozen=True, slots=True)
class DiskIds:
    """What ties the parts together: the root's UUID and the ESP's FAT serial number."""

    root: uuid.UUID
    esp: int

    @property
    def esp_uuid(self) -> str:
        return f"{self.esp >> 16:04X}-{self.esp & 0xFFFF:04X}"


def assemble(tree: Path, disk: Path, size: int, kernel_options: str) -> None:
    """Write the disk `disk` of `size` bytes from `tree`, which gets its fstab and GRUB's files.

    Raises Refused for a size that is too small, CommandFailed.
    """
    size -= size % MIB
    room = size - _ROOT_START - _GPT_TAIL
    if room < 64 * MIB:
        raise invalid("recipe.size", "is too small for a bootable disk", "at least 128M")
    ids = DiskIds(uuid.uuid4(), int.from_bytes(os.urandom(4)))
    _write(tree / "etc/fstab", fstab(ids))
    core = _install_grub(tree, ids, kernel_options)
    with disk.open("xb") as file:
        file.truncate(size)
    command.run(["sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", disk], input=table(room).encode(), timeout=60)
    command.run(
        [
            "mke2fs", "-q", "-F", "-t", "ext4", "-m", "1", "-L", "root", "-U", str(ids.root),
            # GRUB 2.06 and older kernels cannot read these two, which newer e2fsprogs switch on
            "-O", "^metadata_csum_seed,^orphan_file",
            "-E", f"offset={_ROOT_START}", "-d", tree, disk, f"{room // 1024}k",
        ],
        timeout=_TIME,
    )  # fmt: skip
    _write_esp(tree, disk, ids)
    boot = (tree / "usr/lib/grub/i386-pc/boot.img").read_bytes()
    with disk.open("r+b") as file:
        file.write(boot_sector(boot))
        file.seek(_BIOS_START)
        file.write(core_image(core))


def table(root_size: int) -> str:
    """sfdisk's input. The root is the first by number and the last by place, so that a larger disk can grow it."""
    rows = (
        (14, _BIOS_START, _BIOS_SIZE, _TYPE_BIOS, "bios"),
        (15, _ESP_START, _ESP_SIZE, _TYPE_ESP, "esp"),
        (1, _ROOT_START, root_size, _TYPE_ROOT, "root"),
    )
    lines = ["label: gpt", "unit: sectors", "first-lba: 34"]
    lines += [
        f'{number} : start={start // SECTOR}, size={length // SECTOR}, type={kind}, name="{name}"'
        for number, start, length, kind, name in rows
    ]
    return "\n".join(lines) + "\n"


def fstab(ids: DiskIds) -> str:
    """The ESP may be missing: only the boot loader needs it."""
    return (
        f"UUID={ids.root} / ext4 defaults,errors=remount-ro 0 1\n"
        f"UUID={ids.esp_uuid} /boot/efi vfat umask=0077,nofail 0 1\n"
    )


def grub_config(ids: DiskIds, kernel_options: str) -> str:
    """The first grub.cfg: names the kernel by Debian's links; `update-grub` in the guest writes a fuller one."""
    return (
        "set timeout=1\n"
        "serial --speed=115200\n"
        "terminal_input console serial\n"
        "terminal_output console serial\n"
        f"search --no-floppy --fs-uuid --set=root {ids.root}\n"
        "menuentry 'Linux' {\n"
        f"    linux /vmlinuz root=UUID={ids.root} ro {kernel_options}\n"
        "    initrd /initrd.img\n"
        "}\n"
    )


def early_config(ids: DiskIds) -> str:
    """What finds grub.cfg, on either firmware."""
    return (
        f"search.fs_uuid {ids.root} root\n"
        "set prefix=($root)/boot/grub\n"
        "configfile $prefix/grub.cfg\n"
    )  # fmt: skip


def boot_sector(boot: bytes) -> bytes:
    """The MBR's code from GRUB's boot.img, told where the BIOS-boot partition lies. Refused if it is not boot.img."""
    if len(boot) < SECTOR or boot[510:512] != b"\x55\xaa":
        raise invalid("recipe.packages", "GRUB's boot.img is not what it was taken for")
    code = bytearray(boot[:_BOOT_CODE])
    code[_BOOT_KERNEL_SECTOR : _BOOT_KERNEL_SECTOR + 8] = (_BIOS_START // SECTOR).to_bytes(8, "little")
    code[_BOOT_DRIVE_CHECK : _BOOT_DRIVE_CHECK + 2] = b"\x90\x90"
    return bytes(code)


def core_image(core: bytes) -> bytes:
    """GRUB's core.img, told where its own second sector lies. Refused if it does not fit."""
    if not SECTOR < len(core) <= _BIOS_SIZE:
        raise invalid("recipe.packages", "GRUB's core image does not fit into its partition")
    image = bytearray(core)
    image[_CORE_BLOCKLIST : _CORE_BLOCKLIST + 8] = (_BIOS_START // SECTOR + 1).to_bytes(8, "little")
    return bytes(image)


def _install_grub(tree: Path, ids: DiskIds, kernel_options: str) -> bytes:
    """What grub-install would put into /boot/grub; the modules share the package's bytes. Returns core.img."""
    modules, target = tree / "usr/lib/grub/i386-pc", tree / "boot/grub/i386-pc"
    target.mkdir(parents=True)
    (tree / "boot/efi").mkdir()
    for pattern in ("*.mod", "*.lst"):
        for module in modules.glob(pattern):
            (target / module.name).hardlink_to(module)
    _write(tree / "boot/grub/grub.cfg", grub_config(ids, kernel_options))
    _write(target / "load.cfg", early_config(ids))
    # run in the tree, whose version fits its modules
    command.run(
        [
            "chroot", tree, "grub-mkimage", "--format=i386-pc", "--prefix=/boot/grub",
            "--config=/boot/grub/i386-pc/load.cfg", "--output=/boot/grub/i386-pc/core.img", *_CORE_MODULES,
        ],
        timeout=60,
    )  # fmt: skip
    return (target / "core.img").read_bytes()


def _write_esp(tree: Path, disk: Path, ids: DiskIds) -> None:
    """The removable-media path, so that no firmware has to remember an entry; shim and GRUB as signed by Debian."""
    image = f"{disk}@@{_ESP_START}"
    sectors = _ESP_SIZE // SECTOR
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


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o644)
