"""The properties of the node that a domain depends on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

CPU_PERIOD = 100_000  # microseconds; the quota is a share of it
SLOW_EMULATED = "erms"  # of the CPU: guests clear and copy memory by it, which QEMU emulates byte by byte
EMULATED_CPU = f"max,{SLOW_EMULATED}=off"  # for QEMU's -cpu


class Acceleration(StrEnum):
    """What runs a virtual machine's instructions."""

    KVM = "kvm"
    EMULATION = "emulation"


@dataclass(frozen=True, slots=True)
class Host:
    """root: where the launcher mounts a container's files. empty_file, empty_dir: what it makes for the masks.
    vmstat: a /proc/vmstat without numbers, which it makes, too; None where the kernel has none.

    masked_dirs, masked_files: those that container_xml masks and this kernel has.
    swap_limit: whether the kernel can cap memory and swap together (cgroup v1 with swap accounting).
    pool, images: where the slivers' own files and the disk images lie. machine_gid: QEMU's group.
    """

    root: Path
    launcher: Path
    init_dir: Path
    gateway: str
    masked_dirs: tuple[str, ...] = ()
    masked_files: tuple[str, ...] = ()
    empty_file: Path = Path("/run/slicemgr/mask/empty")
    empty_dir: Path = Path("/run/slicemgr/mask/none")
    vmstat: Path | None = None
    swap_limit: bool = False
    pool: Path = Path("/var/lib/slicemgr/pool")
    images: Path = Path("/var/lib/slicemgr/images")
    machine_gid: int = 0
    acceleration: Acceleration = Acceleration.KVM
