"""The domains that slivers become, whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slicemgr.drivers.libvirt.container_xml import MASKED_DIRS, MASKED_FILES
from slicemgr.drivers.libvirt.domain_xml import domain_xml
from slicemgr.drivers.libvirt.host import Acceleration, Host
from slicemgr.model import GIB, MIB, Boot, BootFacts, Desired, Init, Limits, Machine, PortBlock, Sliver, SliverType

PLACE = Host(
    root=Path("/run/slicemgr/root"),
    launcher=Path("/usr/lib/slicemgr/sliver-launcher"),
    init_dir=Path("/usr/lib/slicemgr/init"),
    gateway="169.254.1.1",
    masked_dirs=MASKED_DIRS,
    masked_files=MASKED_FILES,
    machine_gid=107,
)
SLIVER = Sliver(
    id="k3wz8n2q-7",
    serial=42,
    tag="k3wz8n2q",
    slice_name="exp",
    index=7,
    type=SliverType.LXC,
    desired=Desired.RUNNING,
    image="ab" * 32,
    arch="x86_64",
    address="10.77.0.9",
    ports=PortBlock(10140, 20),
    uid_first=3_000_000,
    limits=Limits(memory=512 * MIB, disk=4 * GIB, pids=512, cpu=0.5),
    ssh_keys=(),
)
MACHINE = replace(SLIVER, type=SliverType.KVM, limits=replace(SLIVER.limits, pids=0))
CASES = {
    "lxc": (SLIVER, PLACE),
    "lxc-every-limit": (
        replace(
            SLIVER,
            generation=3,
            limits=replace(SLIVER.limits, cpu=2.5, cpu_shares=2048, memory_soft=256 * MIB, io_weight=500),
        ),
        replace(PLACE, swap_limit=True),
    ),
    "lxc-i686": (replace(SLIVER, arch="i686"), PLACE),
    "lxc-systemd": (replace(SLIVER, init=Init.SYSTEMD), PLACE),
    "lxc-few-masks": (SLIVER, replace(PLACE, masked_dirs=MASKED_DIRS[:1], masked_files=MASKED_FILES[:1])),
    "kvm": (MACHINE, PLACE),
    "kvm-memory-max": (
        replace(
            MACHINE,
            boot=Boot.DIRECT,
            boot_facts=BootFacts(kernel="/boot/vmlinuz-6.1", initrd="/boot/initrd.img-6.1", root="root=UUID=a-b"),
            limits=replace(MACHINE.limits, cpu=2.5, memory_max=2000 * MIB),
        ),
        PLACE,
    ),
    "kvm-every-limit": (
        replace(
            MACHINE,
            boot=Boot.UEFI,
            limits=replace(SLIVER.limits, cpu=2.5, memory_soft=256 * MIB, io_weight=500, io_rate=20 * MIB, io_ops=400),
        ),
        replace(PLACE, acceleration=Acceleration.EMULATION),
    ),
    "kvm-thin": (
        replace(
            MACHINE,
            boot=Boot.DIRECT,
            machine=Machine.THIN,
            boot_facts=BootFacts(kernel="/boot/vmlinuz-6.1-thin", root="root=/dev/vda1", mmio=True),
        ),
        PLACE,
    ),
    "kvm-thin-emulated": (
        replace(
            MACHINE,
            boot=Boot.DIRECT,
            machine=Machine.THIN,
            boot_facts=BootFacts(kernel="/boot/vmlinuz-6.1-thin", root="root=/dev/vda1", mmio=True),
        ),
        replace(PLACE, acceleration=Acceleration.EMULATION, counter_rate=2_445_402),
    ),
    "kvm-thin-pci": (
        replace(
            MACHINE,
            boot=Boot.DIRECT,
            machine=Machine.THIN,
            boot_facts=BootFacts(kernel="/boot/vmlinuz-6.1", initrd="/boot/initrd.img-6.1", root="root=UUID=a-b"),
        ),
        PLACE,
    ),
    "kvm-direct-raw": (
        replace(
            MACHINE,
            boot=Boot.DIRECT,
            image_format="raw",
            boot_facts=BootFacts(kernel="/boot/vmlinuz-6.1", initrd="/boot/initrd.img-6.1", root="root=UUID=a-b"),
        ),
        PLACE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_domain_xml(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"domain_xml/{name}.xml", domain_xml(*CASES[name]))
