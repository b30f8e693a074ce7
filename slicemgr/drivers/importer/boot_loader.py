"""How a disk image can boot, from its first sector, its partition table and its /boot directory."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from slicemgr.config import PACKAGE
from slicemgr.drivers.importer.disk_layout import BOOT_CODE, SECTOR, TYPE_ESP
from slicemgr.drivers.importer.image_findings import RootDevice
from slicemgr.model import BootFacts

MANIFEST = PACKAGE / "images/kernel-thin/kernel.toml"
_ESP = {TYPE_ESP, "0xef"}  # GPT and MBR
_KERNEL = re.compile(r"(?:vmlinuz|vmlinux|bzImage|kernel)(?:-(?P<version>[\w.+~-]+))?", re.ASCII)
_APPLIANCE_DISK = re.compile(r"/dev/[shv]d[a-z](?=[0-9]*$)")
_INITRDS = ("initrd.img-{}", "initramfs-{}.img", "initrd-{}", "initramfs-{}")
_PLAIN = ("initrd.img", "initrd", "initramfs.img", "initramfs", "initramfs-linux.img")


def facts(sector: bytes, partition_types: Sequence[str]) -> BootFacts:
    """How a disk can boot, from its first sector and the types of its partitions."""
    return BootFacts(bios=has_code(sector), uefi=not _ESP.isdisjoint(one.strip() for one in partition_types))


def has_code(sector: bytes) -> bool:
    """Whether a first sector contains boot code that a BIOS would run."""
    return len(sector) == SECTOR and sector[510:] == b"\x55\xaa" and any(sector[:BOOT_CODE])


def kernel(boot: Sequence[str], top: Sequence[str]) -> tuple[str, str]:
    """The paths of the newest kernel and its initrd, from the names in /boot and in /; "" for a missing one."""
    found = [(_order(match["version"] or ""), match) for match in map(_KERNEL.fullmatch, boot) if match]
    if not found:
        inside = [name for name in top if name == "vmlinuz"]
        initrd = next((name for name in _PLAIN if name in top), "")
        return (f"/{inside[0]}", f"/{initrd}" if initrd else "") if inside else ("", "")
    _, newest = max(found, key=lambda pair: (pair[0], pair[1][0].startswith("vmlinuz")))
    version = newest["version"]
    names = [pattern.format(version) for pattern in _INITRDS] if version else list(_PLAIN)
    initrd = next((name for name in names if name in boot), "")
    return f"/boot/{newest[0]}", f"/boot/{initrd}" if initrd else ""


def uncompressed(kernel: str, boot: Sequence[str], config: bytes) -> str:
    """The path of the same kernel uncompressed if QEMU can start it so, by its PVH entry; otherwise `kernel`.

    boot: the names in /boot. config: the kernel's configuration.
    """
    name = kernel.removeprefix("/boot/").replace("vmlinuz-", "vmlinux-", 1)
    return f"/boot/{name}" if name in boot and b"CONFIG_PVH=y" in config.splitlines() else kernel


def mmio(config: bytes) -> bool:
    """Whether the kernel with this configuration finds its disk without a PCI bus and without modules."""
    return {b"CONFIG_VIRTIO_MMIO=y", b"CONFIG_VIRTIO_BLK=y"} <= set(config.splitlines())


def programs(config: bytes, manifest: Path = MANIFEST) -> tuple[str, ...]:
    """The programs of kernel.toml whose options the kernel with this configuration has, in order of their names."""
    lines = set(config.splitlines())
    known = tomllib.loads(manifest.read_text())["programs"]
    return tuple(
        sorted(
            name
            for name, said in known.items()
            if lines.issuperset(f"CONFIG_{option}=y".encode() for option in said["options"])
        )
    )


def _order(version: str) -> tuple[tuple[int, int | str], ...]:
    """A sort key for kernel versions, so that 6.10 sorts after 6.9."""
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"([0-9]+)", version))


def root_argument(root: RootDevice, *, initrd: bool) -> str:
    """The kernel argument that names the root, by the file system's UUID if it is known.

    initrd: whether there is one. A kernel alone finds no file system by its UUID: it takes the device. A sliver's only
    disk is /dev/vda. In libguestfs' appliance, which has a disk of its own, it may be /dev/sda or /dev/sdb: the kernel
    names them in the order in which it finds them.
    """
    by_uuid = root.uuid and initrd
    where = f"root=UUID={root.uuid}" if by_uuid else f"root={_APPLIANCE_DISK.sub('/dev/vda', root.device)}"
    return f"{where} rootflags=subvol={root.subvolume}" if root.subvolume else where
