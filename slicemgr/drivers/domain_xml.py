"""The libvirt domain of a sliver: one pure function for both kinds.

What libvirt cannot say (idmapped root, seccomp, limits on processes and ptys, the host name) is done by the
launcher, which is the lxc sliver's <emulator>; see tools/launcher/sliver-launcher.c and launch.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from slicemgr import names
from slicemgr.drivers import capabilities
from slicemgr.model import IDS_PER_SLIVER, KIB, Kind, Sliver

NAMESPACE = "https://slicemgr.example/sliver/1"  # of our element in <metadata>; a name, not an address
INIT_DIR = "/.slicemgr"  # where the init is seen inside the container
CPU_PERIOD = 100_000  # microseconds; the quota is a share of it
MASK_SIZE = 4 * KIB  # of the empty file system that hides a directory

# Directories that hide behind an empty file system, files that read as empty: what Docker masks, and the cgroup
# and firmware trees, which libvirt shows. All are below /proc or /sys, which are fresh mounts at every start.
# /proc/kmsg stays: without CAP_SYSLOG nobody opens it, while rsyslogd reads an empty one in a busy loop.
MASKED_DIRS = (
    "/sys/fs/cgroup",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/proc/acpi",
    "/proc/asound",
    "/proc/scsi",
)
MASKED_FILES = (
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/timer_stats",
)

ET.register_namespace("slicemgr", NAMESPACE)


@dataclass(frozen=True, slots=True)
class Place:
    """The node, as far as a domain depends on it.

    root: what becomes `/` (lxc: where the launcher mounts the sliver's files) or the disk (kvm).
    masked_dirs, masked_files: those of MASKED_DIRS and MASKED_FILES that this kernel has.
    swap_limit: whether the kernel can cap memory and swap together (cgroup v1 with swap accounting).
    """

    root: Path
    launcher: Path
    init_dir: Path
    gateway: str
    masked_dirs: tuple[str, ...] = MASKED_DIRS
    masked_files: tuple[str, ...] = MASKED_FILES
    swap_limit: bool = False
    kvm_type: str = "kvm"  # or `qemu` where no hardware helps


def domain_xml(sliver: Sliver, place: Place) -> str:
    """The domain of `sliver` at `place`, for virDomainCreateXML."""
    match sliver.kind:
        case Kind.LXC:
            domain = ET.Element("domain", type="lxc")
        case Kind.KVM:
            domain = ET.Element("domain", type=place.kvm_type)
    _identity(domain, sliver)
    _limits(domain, sliver, place)
    devices = ET.Element("devices")
    match sliver.kind:
        case Kind.LXC:
            _container(domain, sliver)
            _container_files(devices, sliver, place)
        case Kind.KVM:
            _machine(domain, sliver)
            _machine_disk(devices, place)
    _element(domain, "clock", offset="utc")
    _element(domain, "on_poweroff", "destroy")
    _element(domain, "on_reboot", "restart")
    _element(domain, "on_crash", "destroy")
    domain.append(devices)
    _link(devices, sliver, place)
    _element(devices, "console", type="pty")
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode") + "\n"


def _element(parent: ET.Element, tag: str, text: str | int | None = None, **attributes: str | int) -> ET.Element:
    element = ET.SubElement(parent, tag, {name: str(value) for name, value in attributes.items()})
    element.text = None if text is None else str(text)
    return element


def _identity(domain: ET.Element, sliver: Sliver) -> None:
    _element(domain, "name", names.domain(sliver.id))
    _element(domain, "uuid", names.domain_uuid(sliver.id))
    metadata = _element(domain, "metadata")
    _element(metadata, f"{{{NAMESPACE}}}sliver", id=sliver.id, generation=sliver.generation)


def _limits(domain: ET.Element, sliver: Sliver, place: Place) -> None:
    limits = sliver.limits
    _element(domain, "memory", limits.memory // KIB, unit="KiB")
    _element(domain, "vcpu", max(1, -int(-limits.cpu // 1)))
    tune = _element(domain, "memtune")
    _element(tune, "hard_limit", limits.memory // KIB, unit="KiB")
    if limits.memory_soft is not None:
        _element(tune, "soft_limit", limits.memory_soft // KIB, unit="KiB")
    if place.swap_limit:
        _element(tune, "swap_hard_limit", limits.memory // KIB, unit="KiB")
    tune = _element(domain, "cputune")
    _element(tune, "shares", limits.cpu_shares)
    prefix = "" if sliver.kind is Kind.LXC else "global_"  # a container's quota is the whole domain's
    _element(tune, f"{prefix}period", CPU_PERIOD)
    _element(tune, f"{prefix}quota", round(limits.cpu * CPU_PERIOD))
    if limits.io_weight is not None:
        _element(_element(domain, "blkiotune"), "weight", limits.io_weight)


def _container(domain: ET.Element, sliver: Sliver) -> None:
    os = _element(domain, "os")
    _element(os, "type", "exe", arch=sliver.arch)
    _element(os, "init", f"{INIT_DIR}/init")
    idmap = _element(domain, "idmap")
    for kind in ("uid", "gid"):
        _element(idmap, kind, start=0, target=sliver.uid_first, count=IDS_PER_SLIVER)
    kept = _element(_element(domain, "features"), "capabilities", policy="deny")
    for name in capabilities.KEPT:
        _element(kept, name, state="on")


def _container_files(devices: ET.Element, sliver: Sliver, place: Place) -> None:
    _element(devices, "emulator", str(place.launcher))
    _bind(devices, str(place.root), "/")
    _bind(devices, str(place.init_dir), INIT_DIR, readonly=True)
    _ram(devices, "/dev/shm", sliver.limits.memory // 2)  # shared memory; what is in it counts as the sliver's memory
    for path in place.masked_dirs:
        _ram(devices, path, MASK_SIZE, readonly=True)
    for path in place.masked_files:
        _bind(devices, "/dev/null", path)


def _ram(devices: ET.Element, target: str, size: int, readonly: bool = False) -> None:
    mount = _element(devices, "filesystem", type="ram")
    _element(mount, "source", usage=size, units="bytes")
    _element(mount, "target", dir=target)
    if readonly:
        _element(mount, "readonly")


def _bind(devices: ET.Element, source: str, target: str, readonly: bool = False) -> None:
    mount = _element(devices, "filesystem", type="mount")
    _element(mount, "source", dir=source)
    _element(mount, "target", dir=target)
    if readonly:
        _element(mount, "readonly")


def _machine(domain: ET.Element, sliver: Sliver) -> None:
    os = _element(domain, "os")
    _element(os, "type", "hvm", arch=sliver.arch)
    _element(os, "boot", dev="hd")
    _element(_element(domain, "features"), "acpi")


def _machine_disk(devices: ET.Element, place: Place) -> None:
    disk = _element(devices, "disk", type="file", device="disk")
    _element(disk, "driver", name="qemu", type="qcow2")
    _element(disk, "source", file=str(place.root))
    _element(disk, "target", dev="vda", bus="virtio")


def _link(devices: ET.Element, sliver: Sliver, place: Place) -> None:
    """A routed point-to-point link: no bridge, so no neighbours, and the same host side for both kinds."""
    link = _element(devices, "interface", type="ethernet")
    _element(link, "mac", address=names.mac(sliver.id))
    source = _element(link, "source")
    _element(source, "ip", address=place.gateway, family="ipv4", prefix=32, peer=sliver.address)
    _element(link, "target", dev=names.link(sliver.id))
    match sliver.kind:
        case Kind.LXC:
            _element(link, "guest", dev="eth0")
            _element(link, "ip", address=sliver.address, family="ipv4", prefix=32, peer=place.gateway)
            _element(link, "route", family="ipv4", address="0.0.0.0", prefix=0, gateway=place.gateway)
        case Kind.KVM:
            _element(link, "model", type="virtio")
