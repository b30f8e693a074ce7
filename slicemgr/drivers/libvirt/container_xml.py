"""The parts of a domain's XML that only lxc slivers have.

The launcher, which is the sliver's <emulator>, does what libvirt's XML cannot express: the idmapped root, seccomp,
limits on processes and ptys, and the host name. See tools/launcher/sliver-launcher.c and launch.py.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from slicemgr.drivers.libvirt import capabilities
from slicemgr.drivers.libvirt.element import element
from slicemgr.drivers.libvirt.host import CPU_PERIOD, Host
from slicemgr.model import IDS_PER_SLIVER, KIB, Init, Sliver

INIT_DIR = "/.slicemgr"  # the mount point of the inits inside the container
# File systems in memory. Their content is charged to the sliver. An image's systemd cannot mount its own; Debian's
# requires /run/lock.
IN_MEMORY = {Init.MINIMAL: ("/dev/shm",), Init.SYSTEMD: ("/dev/shm", "/run", "/run/lock", "/tmp")}
INITS = {Init.MINIMAL: f"{INIT_DIR}/init", Init.SYSTEMD: f"{INIT_DIR}/systemd"}

# Directories that appear empty and files that read as empty: the paths that Docker masks, the cgroup and firmware
# trees, which libvirt exposes, and other paths that reveal the node's hardware, disks and load (table 3 of the CoreLab
# paper, sysfs and procfs). All are below /proc or /sys, which are mounted again at every start.
# /proc/kmsg is not masked: without CAP_SYSLOG no process can open it, and rsyslogd would read an empty file in a busy
# loop.
MASKED_DIRS = (
    "/sys/fs/cgroup",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/proc/acpi",
    "/proc/asound",
    "/proc/scsi",
    *("/sys/block", "/sys/class/block", "/sys/devices/virtual/block", "/sys/dev/block"),  # disks; the pool
    *("/sys/fs/btrfs", "/sys/fs/ext4", "/sys/fs/xfs"),
    *("/sys/module", "/sys/hypervisor", "/sys/kernel/mm", "/sys/kernel/slab"),
    *("/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/pressure"),
)
MASKED_FILES = (
    *("/proc/buddyinfo", "/proc/cmdline", "/proc/config.gz", "/proc/consoles", "/proc/devices", "/proc/dma"),
    "/proc/interrupts",
    *("/proc/iomem", "/proc/ioports"),
    "/proc/kallsyms",
    "/proc/kcore",
    *("/proc/key-users", "/proc/keys"),
    *("/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags"),
    "/proc/latency_stats",
    *("/proc/locks", "/proc/misc", "/proc/modules", "/proc/mtrr", "/proc/pagetypeinfo", "/proc/partitions"),
    "/proc/sched_debug",
    *("/proc/schedstat", "/proc/slabinfo", "/proc/softirqs", "/proc/sysrq-trigger"),
    "/proc/timer_list",
    "/proc/timer_stats",
    *("/proc/vmallocinfo", "/proc/zoneinfo"),
)


def complete(
    domain: ET.Element, tune: ET.Element, devices: ET.Element, link: ET.Element, sliver: Sliver, host: Host
) -> None:
    """Add the elements of a container to the domain. Pure."""
    domain.set("type", "lxc")
    _memory(domain, sliver, host)
    element(tune, "period", CPU_PERIOD)  # a container's quota applies to the whole domain
    element(tune, "quota", round(sliver.limits.cpu * CPU_PERIOD))
    os = element(domain, "os")
    element(os, "type", "exe", arch=sliver.arch)
    element(os, "init", INITS[sliver.init])
    idmap = element(domain, "idmap")
    for kind in ("uid", "gid"):
        element(idmap, kind, start=0, target=sliver.uid_first, count=IDS_PER_SLIVER)
    kept = element(element(domain, "features"), "capabilities", policy="deny")
    for name in capabilities.KEPT:
        element(kept, name, state="on")
    _files(devices, sliver, host)
    element(devices, "console", type="pty")
    element(link, "guest", dev="eth0")
    element(link, "ip", address=sliver.address, family="ipv4", prefix=32, peer=host.gateway)
    element(link, "route", family="ipv4", address="0.0.0.0", prefix=0, gateway=host.gateway)


def memory_files(memory: int) -> int:
    """The size of each file system in memory of a container with this memory limit, both in bytes."""
    return memory // 2


def _memory(domain: ET.Element, sliver: Sliver, host: Host) -> None:
    limits = sliver.limits
    tune = element(domain, "memtune")
    element(tune, "hard_limit", limits.memory // KIB, unit="KiB")
    if limits.memory_soft is not None:
        element(tune, "soft_limit", limits.memory_soft // KIB, unit="KiB")
    if host.swap_limit:
        element(tune, "swap_hard_limit", limits.memory // KIB, unit="KiB")


def _files(devices: ET.Element, sliver: Sliver, host: Host) -> None:
    element(devices, "emulator", str(host.launcher))
    _bind(devices, str(host.root), "/")
    _bind(devices, str(host.init_dir), INIT_DIR, readonly=True)
    for path in IN_MEMORY[sliver.init]:
        _ram(devices, path, memory_files(sliver.limits.memory))
    for path in host.masked_dirs:
        _bind(devices, str(host.empty_dir), path)
    for path in host.masked_files:
        _bind(devices, str(host.empty_file), path)
    if host.vmstat is not None:
        _bind(devices, str(host.vmstat), "/proc/vmstat")


def _ram(devices: ET.Element, target: str, size: int, readonly: bool = False) -> None:
    mount = element(devices, "filesystem", type="ram")
    element(mount, "source", usage=size, units="bytes")
    element(mount, "target", dir=target)
    if readonly:
        element(mount, "readonly")


def _bind(devices: ET.Element, source: str, target: str, readonly: bool = False) -> None:
    mount = element(devices, "filesystem", type="mount")
    element(mount, "source", dir=source)
    element(mount, "target", dir=target)
    if readonly:
        element(mount, "readonly")
