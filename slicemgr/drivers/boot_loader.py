"""How a disk image boots: what its first sector, its partition table and its /boot say."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from slicemgr.drivers.disk_layout import BOOT_CODE, SECTOR, TYPE_ESP
from slicemgr.model import BootFacts

_ESP = {TYPE_ESP, "0xef"}  # GPT and MBR
_PARTITION = re.compile(r"/dev/[a-z]+([0-9]+)")
_KERNEL = re.compile(r"(?:vmlinuz|vmlinux|bzImage|kernel)(?:-(?P<version>[\w.+~-]+))?")
_INITRDS = ("initrd.img-{}", "initramfs-{}.img", "initrd-{}", "initramfs-{}")
_PLAIN = ("initrd.img", "initrd", "initramfs.img", "initramfs", "initramfs-linux.img")


def find(ask: Callable[[str], list[str]]) -> BootFacts:
    """What can boot the appliance's disk /dev/sda. ask: tells guestfish a line and gives what it printed."""
    with tempfile.NamedTemporaryFile(prefix="sector.") as sector:
        ask(f"download-offset /dev/sda {sector.name} 0 {SECTOR}")
        first = Path(sector.name).read_bytes()
    types = []
    for device in ask("list-partitions"):
        match = _PARTITION.fullmatch(device)
        if match is not None:
            types += ask(f"-part-get-gpt-type /dev/sda {match[1]}") or ask(f"-part-get-mbr-id /dev/sda {match[1]}")
    return BootFacts(bios=has_code(first), uefi=bool(_ESP & {one.strip() for one in types}))


def has_code(sector: bytes) -> bool:
    """Whether a first sector has something that a BIOS would run."""
    return len(sector) == SECTOR and sector[510:] == b"\x55\xaa" and any(sector[:BOOT_CODE])


def kernel(boot: Sequence[str], top: Sequence[str]) -> tuple[str, str]:
    """Paths of the newest kernel and its initrd, given the names in /boot and in /; "" for what is not there."""
    found = [(_order(match["version"] or ""), match) for match in map(_KERNEL.fullmatch, boot) if match]
    if not found:
        inside = [name for name in top if name == "vmlinuz"]
        initrd = next((name for name in _PLAIN if name in top), "")
        return (f"/{inside[0]}", f"/{initrd}" if initrd else "") if inside else ("", "")
    _, newest = max(found, key=lambda pair: pair[0])
    version = newest["version"]
    names = [pattern.format(version) for pattern in _INITRDS] if version else list(_PLAIN)
    initrd = next((name for name in names if name in boot), "")
    return f"/boot/{newest[0]}", f"/boot/{initrd}" if initrd else ""


def _order(version: str) -> tuple[tuple[int, int | str], ...]:
    """6.10 is newer than 6.9."""
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", version))


def root_device(root: str) -> tuple[str, str]:
    """Device and btrfs subvolume, "" if there is none, of a root as libguestfs names it: `btrfsvol:DEVICE/NAME`."""
    if not root.startswith("btrfsvol:"):
        return root, ""
    device, _, subvolume = root.removeprefix("btrfsvol:").rpartition("/")
    return device, subvolume


def root_argument(root: str, uuid: Sequence[str]) -> str:
    """The kernel's argument for a root as libguestfs names it, by the UUID of its file system if that is known."""
    device, subvolume = root_device(root)
    known = uuid[0].strip() if uuid else ""
    where = (
        f"root=UUID={known}"
        if re.fullmatch(r"[0-9A-Za-z-]+", known)
        else f"root={device.replace('/dev/sd', '/dev/vd')}"
    )
    return f"{where} rootflags=subvol={subvolume}" if subvolume else where
