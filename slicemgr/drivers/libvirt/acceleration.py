"""Find out whether this node runs virtual machines under KVM or by emulation.

A /dev/kvm that can be opened does not always work, so a minimal guest is booted: the node's own kernel without a root
file system. It panics because it cannot mount one, which shows that it booted, and ends.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from slicemgr.config import PACKAGE
from slicemgr.drivers import command
from slicemgr.drivers.libvirt.host import EMULATED_CPU, Acceleration
from slicemgr.drivers.storage import atomic_file

QEMU = "qemu-system-x86_64"
TIME = 20.0  # seconds; a guest that works needs about 1 s
COUNTER = PACKAGE / "libexec" / "sliver-counter"
_EVEN = frozenset({"constant_tsc", "nonstop_tsc"})  # flags of processors whose time stamp counter is a clock
_BOOTED = b"VFS: Unable to mount root fs"


@dataclass(frozen=True, slots=True)
class Found:
    """The result of the check. acceleration: None if no virtual machine runs here. reason: an explanation for users."""

    acceleration: Acceleration | None
    reason: str


def probe_argv(kernel: Path, acceleration: Acceleration) -> list[str]:
    """The QEMU command line for the minimal guest. Pure."""
    return [
        QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-m", "256", "-no-reboot",
        "-accel", "kvm" if acceleration is Acceleration.KVM else "tcg",
        "-cpu", "host" if acceleration is Acceleration.KVM else EMULATED_CPU,
        "-serial", "stdio", "-kernel", str(kernel), "-append", "console=ttyS0 panic=-1 quiet loglevel=1",
    ]  # fmt: skip


def boots(kernel: Path, acceleration: Acceleration, seconds: float = TIME) -> bool:
    """Whether the minimal guest boots within `seconds`."""
    try:
        return _BOOTED in command.run(probe_argv(kernel, acceleration), timeout=seconds)
    except command.CommandFailed:
        return False


def kernels(boot: Path = Path("/boot")) -> list[Path]:
    """The kernels installed on the node, newest first."""
    return sorted((one for one in boot.glob("vmlinuz-*") if one.is_file()), reverse=True)


def decide(wanted: str, *, device: bool, kernel: bool, kvm_boots: bool, emulation_boots: bool) -> Found:
    """The acceleration to use, from the results of the checks. Pure. wanted: the setting libvirt.acceleration."""
    if wanted != "auto":
        return Found(Acceleration(wanted), "set by libvirt.acceleration")
    if not kernel:
        return Found(None, "no kernel in /boot to try a guest with: apt-get install linux-image-cloud-amd64")
    if kvm_boots:
        return Found(Acceleration.KVM, "a guest boots under /dev/kvm")
    why = f"no guest boots under /dev/kvm within {TIME:.0f} s" if device else "there is no /dev/kvm"
    if emulation_boots:
        return Found(Acceleration.EMULATION, f"{why}; virtual machines are emulated and slow")
    return Found(None, f"{why}, and no guest boots in emulation; check that {QEMU} is installed")


def find(wanted: str, cache: Path) -> Found:
    """The acceleration of this node, cached per kernel, QEMU and setting. The first call takes up to 80 s."""
    known = cached(wanted, cache)
    if known is not None:
        return known
    found = _try(wanted)
    with suppress(FileNotFoundError):  # `slicemgr doctor` may be the first command on a host
        atomic_file.write(cache, json.dumps({"key": _key(wanted), "found": asdict(found)}))
    return found


def cached(wanted: str, cache: Path) -> Found | None:
    """The acceleration that was found earlier; None if it was not, or with another kernel, QEMU or setting."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(cache.read_text())
        if known["key"] == _key(wanted):
            one = known["found"]["acceleration"]
            return Found(Acceleration(one) if one else None, known["found"]["reason"])
    return None


def counter_rate(cpuinfo: Path = Path("/proc/cpuinfo"), program: Path = COUNTER) -> int:
    """The rate of this processor's time stamp counter in kHz; 0 if it is no clock. Takes 0.2 s.

    The counter of an emulated machine is the node's.
    """
    words = next((line.split() for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), [])
    if not set(words) >= _EVEN:
        return 0
    try:
        return int(command.run([program], timeout=60))
    except (command.CommandFailed, ValueError):
        return 0


def _key(wanted: str) -> list[str]:
    qemu = Path("/usr/bin") / QEMU
    version = str(qemu.stat().st_mtime_ns) if qemu.exists() else ""
    return [wanted, os.uname().release, version, str(_device()), *map(str, kernels()[:1])]


def _device() -> bool:
    return os.access("/dev/kvm", os.R_OK | os.W_OK)


def _try(wanted: str) -> Found:
    found, device = kernels(), _device()
    if wanted != "auto" or not found:
        return decide(wanted, device=device, kernel=bool(found), kvm_boots=False, emulation_boots=False)
    kvm = device and boots(found[0], Acceleration.KVM)
    emulation = not kvm and boots(found[0], Acceleration.EMULATION, 3 * TIME)
    return decide(wanted, device=device, kernel=True, kvm_boots=kvm, emulation_boots=emulation)
