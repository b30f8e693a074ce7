"""The programs of the node and its rights: libvirt, the launcher, lxcfs and the importer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from slicemgr.agent.checks.result import Check
from slicemgr.config import Config
from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.drivers.importer import confinement, disk_image
from slicemgr.drivers.importer.confinement import View
from slicemgr.drivers.libvirt.acceleration import Found
from slicemgr.drivers.libvirt.host import Acceleration
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.errors import Refused, SlicemgrError
from slicemgr.model import SliverType

REMEDIES = {
    "supermin": "apt-get install libguestfs-tools",
    "bwrap": "apt-get install bubblewrap",
    "setpriv": "apt-get install util-linux",
    "prlimit": "apt-get install util-linux",
    "qemu-img": "apt-get install qemu-utils",
    "zstd": "apt-get install zstd",
    "iptables-restore": "apt-get install iptables",
    "ip": "apt-get install iproute2",
    "tc": "apt-get install iproute2",
}


def root() -> Check:
    return Check("privileges", os.geteuid() == 0, f"the agent runs as uid {os.geteuid()}", "run the agent as root")


def libvirt(hypervisor: Hypervisor, sliver_type: SliverType) -> Check:
    driver = "lxc" if sliver_type is SliverType.LXC else "qemu"
    name = f"libvirt {driver} driver"
    try:
        return Check(name, True, hypervisor.version(sliver_type))
    except SlicemgrError as error:
        ok = False if sliver_type is SliverType.LXC else None
        return Check(name, ok, error.message, f"apt-get install libvirt-daemon-driver-{driver} and start libvirtd")


def acceleration(machines: Found | None) -> Check:
    name, remedy = "acceleration", "enable virtualization in the firmware, or set libvirt.acceleration"
    if machines is None:
        return Check(name, None, "the check has not ended", "run the check again in a minute")
    if machines.acceleration is None:
        return Check(name, None, f"no virtual machines: {machines.reason}", remedy)
    fast = machines.acceleration is Acceleration.KVM
    return Check(name, True if fast else None, f"{machines.acceleration}: {machines.reason}", remedy)


def launcher(config: Config) -> Check:
    path = config.libvirt.launcher
    return Check(
        "launcher",
        os.access(path, os.X_OK),
        str(path),
        "install a C compiler and libseccomp-dev, reinstall slicemgr, or set libvirt.launcher",
    )


def proc_view(view: ProcView) -> Check:
    name = "lxcfs"
    if not view.installed():
        detail = "not found; containers show the load, processors and uptime of the node"
        return Check(name, None, detail, "apt-get install lxcfs, then restart the agent; only new slivers use it")
    if view.answers():
        return Check(name, True, f"is mounted on {view.mount}")
    return Check(name, None, "does not respond; containers cannot read /proc/stat", "see the log of the agent")


def program(name: str, remedy: str) -> Check:
    path = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return Check(name, path is not None, path or "not found", remedy)


def appliance() -> Check:
    kernels = sorted(Path("/boot").glob("vmlinu?-*"))
    detail = f"kernel for libguestfs: {kernels[-1]}" if kernels else "libguestfs cannot find a kernel in /boot"
    return Check("appliance", bool(kernels), detail, "apt-get install linux-image-cloud-amd64")


def importer(config: Config) -> Check:
    """Whether the importer's program with libguestfs' binding starts in its confinement as its user."""
    name, remedy = "importer", "apt-get install python3-guestfs bubblewrap; importer.user must be a dedicated user"
    try:
        who = confinement.user(config.importer.user)
        line = [disk_image.SYSTEM_PYTHON, "-I", "-B", "-c", "import guestfs"]
        confinement.run(line, who, disk_image.CHECK_BOUNDS, View({}, {}), timeout=60)
    except (CommandFailed, Refused) as error:
        return Check(name, False, str(error).strip().splitlines()[-1][:200], remedy)
    return Check(name, True, f"confined as uid {who.uid}")
