"""The parts of a domain's XML that only kvm slivers have: the machine, its disks and its consoles.

QEMU runs as the sliver's own first user id, so an attacker who breaks out of it can access only the sliver's files.
Its group may read disk images and open /dev/kvm. libvirt does not change the owners of the disks.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from slicemgr import names
from slicemgr.drivers.libvirt.element import element
from slicemgr.drivers.libvirt.host import CPU_PERIOD, SLOW_EMULATED, Acceleration, Host
from slicemgr.model import KIB, MIB, Boot, Machine, Sliver

TRANSLATED = 128 * MIB  # bytes of translated code that emulation caches
# Bytes that QEMU needs in addition to the guest's memory.
OVERHEAD = {Acceleration.KVM: 256 * MIB, Acceleration.EMULATION: 256 * MIB + TRANSLATED}
GUEST_AGENT = "org.qemu.guest_agent.0"  # the port on which QEMU's guest agent listens
STATISTICS = 10  # seconds between the guest's memory reports
FIRMWARE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
FIRMWARE_VARIABLES = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")
# On a busy host, an emulated machine gets too few ticks while its kernel tests the timer, and panics ("IO-APIC + timer
# doesn't work"). Under KVM the kernel skips this test.
KERNEL_OPTIONS = "ro console=tty0 console=ttyS0,115200 no_timer_check"
# A thin machine has no tty0.
THIN_KERNEL_OPTIONS = "ro console=ttyS0,115200 no_timer_check quiet"
# A range of memory above 4 GiB makes a kernel reserve 64 MiB for devices that do not reach it; this makes that 4 MiB.
GROWTH_OPTIONS = "swiotlb=2048 memhp_default_state=online"
GROWTH_BLOCK = 128 * MIB  # Linux adds memory in blocks of this size
VIRTIO_MEM = "virtio-mem"  # the device by which a machine gets more memory than it started with
PLUGGED_BLOCK = 2 * MIB // KIB  # KiB, the least that it plugs
QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
MICROVM = "microvm"  # QEMU's machine without PCI: its devices have addresses in memory

ET.register_namespace("qemu", QEMU)


def complete(
    domain: ET.Element, tune: ET.Element, devices: ET.Element, link: ET.Element, sliver: Sliver, host: Host
) -> None:
    """Add the elements of a virtual machine to the domain. Pure."""
    emulated = host.acceleration is Acceleration.EMULATION
    domain.set("type", "qemu" if emulated else "kvm")
    if sliver.limits.memory_soft is not None:
        element(element(domain, "memtune"), "soft_limit", sliver.limits.memory_soft // KIB, unit="KiB")
    element(tune, "global_period", CPU_PERIOD)
    element(tune, "global_quota", round(sliver.limits.cpu * CPU_PERIOD))
    _boot(domain, sliver, host)
    features = element(domain, "features")
    # Emulated, microvm's ACPI costs a fifth of the processor time of a start, and announces no legacy timer: a kernel
    # that does not know the rate of the counter then has no timer at all.
    if not (emulated and machine(sliver) == MICROVM):
        element(features, "acpi")
    if emulated:
        element(element(features, "tcg"), "tb-cache", TRANSLATED // MIB, unit="MiB")
    cpu = element(domain, "cpu", mode="maximum" if emulated else "host-model")
    if emulated:
        element(cpu, "feature", policy="disable", name=SLOW_EMULATED)
    if grown := growth(sliver):
        _grow(domain, cpu, devices, sliver, grown)
    label = element(domain, "seclabel", type="static", model="dac", relabel="yes")
    element(label, "label", f"+{sliver.uid_first}:+{host.machine_gid}")
    _disks(devices, sliver, host)
    directory = names.sliver_dir(host.pool, sliver.id)
    serial = element(devices, "serial", type="pty")
    element(serial, "log", file=str(directory / names.CONSOLE_LOG), append="on")
    if sliver.machine is Machine.STANDARD:
        screen = element(devices, "graphics", type="vnc")
        element(screen, "listen", type="socket")  # in a directory of libvirt that belongs to this machine alone
        element(element(devices, "video"), "model", type="virtio")
    element(element(devices, "rng", model="virtio"), "backend", "/dev/urandom", model="random")
    agent = element(devices, "channel", type="unix")  # a socket in libvirt's directory as well
    element(agent, "target", type="virtio", name=GUEST_AGENT)
    balloon = element(devices, "memballoon", model="virtio", freePageReporting="on")  # what is free goes to the node
    element(balloon, "stats", period=STATISTICS)
    element(link, "model", type="virtio")
    if machine(sliver) == MICROVM:
        _without_bus(devices, serial, link)
    # libvirt otherwise reads each of some 300 properties of the processor on its own, which takes half a second.
    element(element(domain, f"{{{QEMU}}}capabilities"), f"{{{QEMU}}}del", capability="cpu-unavailable-features")


def machine(sliver: Sliver) -> str:
    """QEMU's machine for a sliver: with a PCI bus, unless the sliver shall be thin and its kernel needs none."""
    return MICROVM if sliver.machine is Machine.THIN and sliver.boot_facts.mmio else "q35"


def growth(sliver: Sliver) -> int:
    """The bytes that a machine which starts now can get while it runs, in whole blocks."""
    more = (sliver.limits.memory_max or 0) - sliver.limits.memory
    return max(0, -(-more // GROWTH_BLOCK) * GROWTH_BLOCK)


def _grow(domain: ET.Element, cpu: ET.Element, devices: ET.Element, sliver: Sliver, grown: int) -> None:
    """Add the device by which the guest gets memory, at first none. QEMU requires a NUMA cell for it."""
    memory = sliver.limits.memory // KIB
    element(domain, "maxMemory", memory + grown // KIB, slots=1, unit="KiB")
    element(domain, "currentMemory", memory, unit="KiB")
    last = int(domain.findtext("vcpu", "1")) - 1
    cpus = f"0-{last}" if last else "0"
    element(element(cpu, "numa"), "cell", id=0, cpus=cpus, memory=memory, unit="KiB")
    target = element(element(devices, "memory", model=VIRTIO_MEM), "target")
    element(target, "size", grown // KIB, unit="KiB")
    element(target, "node", 0)
    element(target, "block", PLUGGED_BLOCK, unit="KiB")
    element(target, "requested", 0, unit="KiB")


def _without_bus(devices: ET.Element, serial: ET.Element, link: ET.Element) -> None:
    """Give each device its place in memory. Otherwise libvirt requires a PCI bus."""
    element(devices, "controller", type="usb", model="none")
    port = element(devices, "controller", type="virtio-serial", index=0)
    element(serial, "target", type="isa-serial", port=0)
    for device in (*devices.iterfind("disk"), *devices.iterfind("rng"), *devices.iterfind("memballoon"), port, link):
        element(device, "address", type="virtio-mmio")


def _boot(domain: ET.Element, sliver: Sliver, host: Host) -> None:
    os = element(domain, "os")
    element(os, "type", "hvm", arch="x86_64", machine=machine(sliver))
    directory = names.sliver_dir(host.pool, sliver.id)
    match sliver.boot:
        case Boot.DIRECT:
            element(os, "kernel", str(directory / names.KERNEL))
            if sliver.boot_facts.initrd:
                element(os, "initrd", str(directory / names.INITRD))
            options = KERNEL_OPTIONS if sliver.machine is Machine.STANDARD else THIN_KERNEL_OPTIONS
            options += f" {GROWTH_OPTIONS}" if growth(sliver) else ""
            element(os, "cmdline", f"{sliver.boot_facts.root} {options}{_clock_options(sliver, host)}".strip())
        case Boot.UEFI:
            element(os, "loader", str(FIRMWARE), readonly="yes", type="pflash")
            element(os, "nvram", str(directory / "nvram.fd"), template=str(FIRMWARE_VARIABLES))
            element(os, "boot", dev="hd")
        case Boot.BIOS | Boot.LOADER:
            element(os, "boot", dev="hd")


def _clock_options(sliver: Sliver, host: Host) -> str:
    """The kernel's options for the clock. An emulated microvm has no timer by which a kernel can measure the counter.

    `reliable`: the kernel would compare the counter with its ticks, of which a busy node loses some.
    """
    emulated = host.acceleration is Acceleration.EMULATION
    known = emulated and machine(sliver) == MICROVM and host.counter_rate
    return f" tsc_early_khz={host.counter_rate} tsc=reliable" if known else ""


def _disks(devices: ET.Element, sliver: Sliver, host: Host) -> None:
    """The overlay on the image, each in its recorded format, and the seed. A failed write pauses the guest."""
    limits = sliver.limits
    disk = element(devices, "disk", type="file", device="disk")
    element(disk, "driver", name="qemu", type="qcow2", cache="none", error_policy="stop", discard="unmap")
    _file(disk, names.disk_file(host.pool, sliver.id))
    backing = element(disk, "backingStore", type="file")
    element(backing, "format", type=sliver.image_format)
    _file(backing, names.image_file(host.images, sliver.image, sliver.image_format))
    element(backing, "backingStore")
    element(disk, "target", dev="vda", bus="virtio")
    if limits.io_rate is not None or limits.io_ops is not None:
        tune = element(disk, "iotune")
        if limits.io_rate is not None:
            element(tune, "total_bytes_sec", limits.io_rate)
        if limits.io_ops is not None:
            element(tune, "total_iops_sec", limits.io_ops)
    seed = element(devices, "disk", type="file", device="disk")
    element(seed, "driver", name="qemu", type="raw")
    _file(seed, names.seed_file(host.pool, sliver.id))
    element(seed, "target", dev="vdb", bus="virtio")
    element(seed, "readonly")


def _file(disk: ET.Element, path: Path) -> None:
    element(element(disk, "source", file=str(path)), "seclabel", model="dac", relabel="no")
