"""The layout of a bootable disk as numbers and text: partitions, sfdisk's input and fstab. Pure.

    gpt   table | BIOS boot partition (GRUB's core) | ESP, if UEFI | /boot, if separate | root
    dos   boot sector | GRUB's core in the gap      |              | /boot, if separate | root

The root is last on the disk, so that it can grow with the disk.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from slicemgr.errors import invalid
from slicemgr.model import MIB

TABLES = ("gpt", "dos")
FILESYSTEMS = ("ext4", "btrfs")
SECTOR = 512
BOOT_CODE = 440  # bytes of code in a boot sector, before the disk signature and the partition table
_FIRST = 1 * MIB  # offset of the first partition; the space before it belongs to the table
_BIOS_SIZE, _ESP_SIZE = 1 * MIB, 30 * MIB
_GPT_TAIL = 1 * MIB  # for the backup table and alignment
SMALLEST_BOOT = 64 * MIB
# mkfs.btrfs uses 109 MiB for an empty file system
_SMALLEST_ROOT = {"ext4": 64 * MIB, "btrfs": 256 * MIB}
_FSTAB = {"ext4": "ext4 defaults,errors=remount-ro 0 1", "btrfs": "btrfs defaults 0 0"}

_TYPE_BIOS = "21686148-6449-6E6F-744E-656564454649"
TYPE_ESP = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
_TYPE_LINUX = {"gpt": "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "dos": "83"}


@dataclass(frozen=True, slots=True)
class Part:
    """A range of the disk, in bytes. number: the partition's number, 0 if the range is not in the table."""

    name: str
    number: int
    start: int
    size: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranges of a disk. size: of the disk, in bytes. core: for GRUB's core image. boot, esp: None if absent.

    filesystem: of the root; a separate /boot is always ext4.
    """

    table: str
    filesystem: str
    size: int
    core: Part
    esp: Part | None
    boot: Part | None
    root: Part

    @property
    def partitions(self) -> tuple[Part, ...]:
        """The ranges that are in the partition table, in their order on the disk."""
        return tuple(part for part in (self.core, self.esp, self.boot, self.root) if part and part.number)


@dataclass(frozen=True, slots=True)
class DiskIds:
    """The identifiers by which the parts refer to each other: file system UUIDs and the ESP's FAT serial number."""

    root: uuid.UUID
    boot: uuid.UUID
    esp: int

    @property
    def esp_uuid(self) -> str:
        """The ESP's serial number in the form that fstab uses, such as 12AB-34CD."""
        return f"{self.esp >> 16:04X}-{self.esp & 0xFFFF:04X}"


def lay_out(size: int, *, table: str, filesystem: str, boot: int, uefi: bool) -> Layout:
    """The layout of a disk of `size` bytes. boot: bytes of a separate /boot, 0 for none.

    Raises Refused, which names the recipe's key, if the parts do not fit.
    """
    size -= size % MIB
    gpt = table == "gpt"
    linux = _TYPE_LINUX[table]
    if boot and boot < SMALLEST_BOOT:
        raise invalid("recipe.boot", "is too small for a kernel", f"at least {SMALLEST_BOOT // MIB}M, or 0")
    core = Part("bios", 14, _FIRST, _BIOS_SIZE, _TYPE_BIOS) if gpt else Part("gap", 0, SECTOR, _FIRST - SECTOR)
    at = core.start + core.size
    esp = Part("esp", 15, at, _ESP_SIZE, TYPE_ESP) if uefi else None
    at += esp.size if esp else 0
    boot_part = Part("boot", 16 if gpt else 1, at, boot - boot % MIB, linux) if boot else None
    at += boot_part.size if boot_part else 0
    room = size - at - (_GPT_TAIL if gpt else 0)
    if room < _SMALLEST_ROOT[filesystem]:
        least = (size - room + _SMALLEST_ROOT[filesystem]) // MIB
        raise invalid("recipe.size", "is too small for a bootable disk", f"at least {least}M")
    root = Part("root", 2 if boot and not gpt else 1, at, room, linux)
    return Layout(table, filesystem, size, core, esp, boot_part, root)


def table_script(layout: Layout) -> str:
    """The input of sfdisk for a layout."""
    gpt = layout.table == "gpt"
    lines = [f"label: {layout.table}", "unit: sectors", *(["first-lba: 34"] if gpt else [])]
    active = layout.boot or layout.root  # some BIOSes require an active partition
    for part in layout.partitions:
        words = f"{part.number} : start={part.start // SECTOR}, size={part.size // SECTOR}, type={part.kind}"
        if gpt:
            words += f', name="{part.name}"'
        elif part is active:
            words += ", bootable"
        lines.append(words)
    return "\n".join(lines) + "\n"


def fstab(layout: Layout, ids: DiskIds) -> str:
    """The text of /etc/fstab. The ESP is mounted with nofail: only the boot loader needs it."""
    lines = [f"UUID={ids.root} / {_FSTAB[layout.filesystem]}"]
    if layout.boot:
        lines.append(f"UUID={ids.boot} /boot ext4 defaults 0 2")
    if layout.esp:
        lines.append(f"UUID={ids.esp_uuid} /boot/efi vfat umask=0077,nofail 0 1")
    return "\n".join(lines) + "\n"
