"""What stands behind a domain, by kind: a container's processes, or QEMU. How each is looked at, frozen and stopped.

libvirt's domains come in as objects; errors of theirs go through to the hypervisor.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from slicemgr import names
from slicemgr.drivers import command
from slicemgr.drivers.kernel import cgroup
from slicemgr.errors import Failed
from slicemgr.model import KIB, Kind

LXC_DIR = Path("/run/libvirt/lxc")  # libvirt's notes on what runs
QEMU_DIR = Path("/run/libvirt/qemu")
_LINKS = Path("/sys/class/net")
PAUSED_IO_ERROR = 5  # virDomainPausedReason
NO_SPACE = 2  # virDomainDiskErrorCode


class Body(Protocol):
    """pid: of the process that stands for the domain: libvirt_lxc, or QEMU."""

    def pid(self, domain: Any, sliver: str) -> int: ...

    def alive(self, pid: int, sliver: str) -> bool:
        """Whether that process is there and the sliver's."""

    def limited(self, pid: int) -> int | None:
        """The process whose cgroup has the limits, as the host numbers it; None if it is not there (yet)."""

    def frozen(self, domain: Any, pid: int) -> bool:
        """Whether it is paused, beyond what libvirt's list says."""

    def trouble(self, domain: Any) -> str:
        """Why it is paused though nobody asked for that; "" if somebody did."""

    def freeze(self, domain: Any, pid: int, frozen: bool) -> None: ...

    def started(self, domain: Any, memory: int) -> None:
        """Right after the start. memory: bytes that it may take of the host."""

    def ask_to_stop(self, domain: Any, pid: int) -> None: ...

    def end(self, pid: int) -> bool:
        """End it at once without libvirt, which then tidies; False if that is not its way."""

    def nudge(self, pid: int) -> None:
        """Called now and then while its end is waited for."""


def body(kind: Kind) -> Body:
    match kind:
        case Kind.LXC:
            return _Container()
        case Kind.KVM:
            return _Machine()


class _Container:
    def pid(self, domain: Any, sliver: str) -> int:
        return int(domain.ID())

    def alive(self, pid: int, sliver: str) -> bool:
        return controls(pid, sliver)

    def limited(self, pid: int) -> int | None:
        return child(pid)

    def frozen(self, domain: Any, pid: int) -> bool:
        if cgroup.version() == "v1":
            return False
        init = child(pid)
        return init is not None and cgroup.is_frozen_v2(init)

    def trouble(self, domain: Any) -> str:
        return ""

    def freeze(self, domain: Any, pid: int, frozen: bool) -> None:
        """virDomainSuspend fails on cgroup v2."""
        if cgroup.version() == "v1":
            (domain.suspend if frozen else domain.resume)()
            return
        init = child(pid)
        if init is None:
            raise Failed("its init does not run")
        cgroup.freeze_v2(init, frozen)

    def started(self, domain: Any, memory: int) -> None:
        pass

    def ask_to_stop(self, domain: Any, pid: int) -> None:
        init = child(pid)
        if init is not None:
            send_signal(init, signal.SIGTERM)

    def end(self, pid: int) -> bool:
        """virDomainDestroy takes 0.4 s each, one after the other."""
        init = child(pid)
        if init is not None:
            send_signal(init, signal.SIGKILL)
        return True

    def nudge(self, pid: int) -> None:
        """libvirt_lxc is deaf to SIGCHLD until some time after its container runs."""
        send_signal(pid, signal.SIGCHLD)


class _Machine:
    def pid(self, domain: Any, sliver: str) -> int:
        """QEMU's process; libvirt's own number, which is given again some day, while it is not noted yet."""
        noted = noted_pid(QEMU_DIR, sliver)
        return int(domain.ID()) if noted is None else noted

    def alive(self, pid: int, sliver: str) -> bool:
        return True  # libvirt notices: it holds QEMU's monitor

    def limited(self, pid: int) -> int | None:
        return pid

    def frozen(self, domain: Any, pid: int) -> bool:
        return False

    def trouble(self, domain: Any) -> str:
        if domain.state()[1] != PAUSED_IO_ERROR:
            return ""
        full = NO_SPACE in domain.diskErrors().values()
        return "no space for what it writes" if full else "its disk could not be written"

    def freeze(self, domain: Any, pid: int, frozen: bool) -> None:
        """libvirt gives the link its address anew before the guest goes on, and fails if it has it still."""
        if frozen:
            domain.suspend()
            return
        sliver = names.sliver_of_domain(domain.name())
        if sliver is not None and (_LINKS / names.link(sliver)).exists():
            command.run(["ip", "-4", "address", "flush", "dev", names.link(sliver)], timeout=10)
        domain.resume()

    def started(self, domain: Any, memory: int) -> None:
        """Not by the domain's XML: libvirt would lock as much memory, which not every libvirtd may."""
        domain.setMemoryParameters({"hard_limit": memory // KIB}, 1)  # VIR_DOMAIN_AFFECT_LIVE

    def ask_to_stop(self, domain: Any, pid: int) -> None:
        domain.shutdown()

    def end(self, pid: int) -> bool:
        return False

    def nudge(self, pid: int) -> None:
        pass


def child(pid: int) -> int | None:
    """The first child of a process, None if it has none (yet)."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(children[0]) if children else None


def noted_pid(directory: Path, sliver: str) -> int | None:
    """The process that stands for a running domain, as libvirt has noted it in that directory."""
    try:
        return int((directory / f"{names.domain(sliver)}.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None


def noted(directory: Path) -> Iterator[tuple[str, str]]:
    """Sliver and file of libvirt's notes on running domains of ours. A note may have outlived its domain."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            sliver = names.sliver_of_domain(entry.name.removesuffix(".pid"))
            if sliver is not None and entry.name.endswith(".pid"):
                yield sliver, entry.path


def controls(pid: int, sliver: str) -> bool:
    """Whether the process is there, alive, and the sliver's libvirt_lxc (or our launcher, about to be it)."""
    try:
        return names.domain(sliver).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def send_signal(pid: int, number: signal.Signals) -> None:
    """Signal a process through a descriptor, so that a recycled pid is never hit."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
