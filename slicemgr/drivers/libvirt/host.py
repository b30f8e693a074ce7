"""The properties of the node that a domain depends on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

CPU_PERIOD = 100_000  # microseconds; a CPU quota is a share of this period
SLOW_EMULATED = "erms"  # a CPU feature: guests clear and copy memory with it, and QEMU emulates it byte by byte
EMULATED_CPU = f"max,{SLOW_EMULATED}=off"  # the value of QEMU's -cpu


class Acceleration(StrEnum):
    """The method by which a virtual machine's instructions run."""

    KVM = "kvm"
    EMULATION = "emulation"


@dataclass(frozen=True, slots=True)
class Host:
    """The paths and properties of the node that domains are made from.

    root: the mount point at which the launcher mounts a container's files. empty_file, empty_dir: the mask sources
    that the launcher creates. vmstat: a /proc/vmstat with zeros, which the launcher creates too; None if the kernel
    has no such file.
    masked_dirs, masked_files: the paths of container_xml that this kernel has.
    swap_limit: whether the kernel can limit memory and swap together (cgroup v1 with swap accounting).
    pool, images: the directories of the slivers' own files and of the disk images. machine_gid: QEMU's group id.
    counter_rate: of the processor's time stamp counter, in kHz, for emulated machines; 0 if it is no clock.
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
    counter_rate: int = 0
