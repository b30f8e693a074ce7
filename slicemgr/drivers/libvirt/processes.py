"""The processes of a domain, by type: how a container's processes and QEMU are checked, frozen and stopped.

The functions get libvirt's domains as objects. They pass libvirt's errors on to the hypervisor.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from slicemgr import names
from slicemgr.drivers import command
from slicemgr.drivers.kernel import cgroup, namespaces, tmpfs
from slicemgr.drivers.libvirt import container_xml, virtio_mem
from slicemgr.drivers.libvirt.host import CPU_PERIOD
from slicemgr.errors import Failed
from slicemgr.model import KIB, Init, Sliver, SliverType

LXC_DIR = Path("/run/libvirt/lxc")  # where libvirt keeps pid files of running domains
QEMU_DIR = Path("/run/libvirt/qemu")
_LINKS = Path("/sys/class/net")
_LIVE = 1  # VIR_DOMAIN_AFFECT_LIVE
PAUSED_IO_ERROR = 5  # virDomainPausedReason
NO_SPACE = 2  # virDomainDiskErrorCode
# systemd(1): SIGRTMIN+3 halts the system; at a SIGTERM it executes itself again.
_STOP_SIGNALS = {Init.MINIMAL: signal.SIGTERM, Init.SYSTEMD: signal.SIGRTMIN + 3}


class Body(Protocol):
    """The operations on a domain's processes. pid: the domain's main process, libvirt_lxc or QEMU."""

    def pid(self, domain: Any, sliver: str) -> int: ...

    def alive(self, pid: int, sliver: str) -> bool:
        """Whether that process runs and belongs to the sliver."""

    def limited(self, pid: int) -> int | None:
        """The process whose cgroup has the limits, as the host's pid; None if it does not exist (yet)."""

    def frozen(self, domain: Any, pid: int) -> bool:
        """Whether the domain is paused in a way that libvirt's list does not show."""

    def trouble(self, domain: Any) -> str:
        """Why the domain is paused without a request; "" if a request paused it."""

    def freeze(self, domain: Any, pid: int, frozen: bool) -> None: ...

    def started(self, domain: Any, memory: int) -> None:
        """Complete the start of a domain. memory: bytes of the host's memory that it may use."""

    def limit(self, domain: Any, pid: int, sliver: Sliver, memory: int) -> None:
        """Give the running domain the limits of the sliver that are in `LIVE_LIMITS`."""

    def ask_to_stop(self, domain: Any, pid: int, init: Init) -> None: ...

    def end(self, pid: int) -> bool:
        """Kill the domain without libvirt, which then cleans up; False if this type does not support that."""

    def nudge(self, pid: int) -> None:
        """Called at intervals while the caller waits for the domain's end."""


def body(sliver_type: SliverType) -> Body:
    """The operations for a type."""
    match sliver_type:
        case SliverType.LXC:
            return _Container()
        case SliverType.KVM:
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
        """Freeze or thaw by the cgroup on cgroup v2, where virDomainSuspend fails."""
        if cgroup.version() == "v1":
            (domain.suspend if frozen else domain.resume)()
            return
        init = child(pid)
        if init is None:
            raise Failed("its init does not run")
        cgroup.freeze_v2(init, frozen)

    def started(self, domain: Any, memory: int) -> None:
        pass

    def limit(self, domain: Any, pid: int, sliver: Sliver, memory: int) -> None:
        limits, init = sliver.limits, child(pid)
        if init is None:
            raise Failed("its init does not run")
        with namespaces.root(init) as root:
            _check_init(pid, sliver, init)
            for path in container_xml.IN_MEMORY[sliver.init]:
                _resize(root, path, container_xml.memory_files(limits.memory))
        most = memory // KIB
        swap = {"swap_hard_limit": most} if cgroup.has_swap_limit() else {}
        domain.setMemoryParameters({"hard_limit": most, **swap}, _LIVE)
        quota = {"vcpu_period": CPU_PERIOD, "vcpu_quota": round(limits.cpu * CPU_PERIOD)}
        domain.setSchedulerParametersFlags({"cpu_shares": limits.cpu_shares, **quota}, _LIVE)
        _check_init(pid, sliver, init)
        cgroup.complete(init, domain.name(), limits)

    def ask_to_stop(self, domain: Any, pid: int, init: Init) -> None:
        first = child(pid)
        if first is not None:
            send_signal(first, _STOP_SIGNALS[init])

    def end(self, pid: int) -> bool:
        """Kill the init: virDomainDestroy takes 0.4 s per domain, and runs one at a time."""
        init = child(pid)
        if init is not None:
            cgroup.release(pid)
            send_signal(init, signal.SIGKILL)
        return True

    def nudge(self, pid: int) -> None:
        """Send SIGCHLD: libvirt_lxc does not handle it until some time after its container starts."""
        send_signal(pid, signal.SIGCHLD)


class _Machine:
    def pid(self, domain: Any, sliver: str) -> int:
        """QEMU's pid; until libvirt has written its pid file, libvirt's domain id, which libvirt reuses later."""
        noted = noted_pid(QEMU_DIR, sliver)
        return int(domain.ID()) if noted is None else noted

    def alive(self, pid: int, sliver: str) -> bool:
        return True  # libvirt detects the end by QEMU's monitor

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
        """Pause or resume. libvirt adds the link's address before the guest resumes and fails if it is present."""
        if frozen:
            domain.suspend()
            return
        sliver = names.sliver_of_domain(domain.name())
        if sliver is not None and (_LINKS / names.link(sliver)).exists():
            command.run(["ip", "-4", "address", "flush", "dev", names.link(sliver)], timeout=10)
        domain.resume()

    def started(self, domain: Any, memory: int) -> None:
        """Set the limit after the start: with one in its XML, libvirt locks that much memory, which may be denied."""
        domain.setMemoryParameters({"hard_limit": memory // KIB}, _LIVE)

    def limit(self, domain: Any, pid: int, sliver: Sliver, memory: int) -> None:
        """The guest gives memory back by its balloon. Only then its group is limited to less."""
        wanted = sliver.limits.memory // KIB
        size = virtio_mem.read(domain)
        if size is not None:
            virtio_mem.resize(domain, size, wanted, memory // KIB - wanted)
            return
        before = _guest_memory(domain)
        if wanted > domain.maxMemory():
            raise Failed("the machine started with less memory", hint="stop the slice first")
        most = {"hard_limit": memory // KIB}
        if wanted > before:
            domain.setMemoryParameters(most, _LIVE)
        domain.setMemoryFlags(wanted, _LIVE)
        if not virtio_mem.follows(lambda: _guest_memory(domain), lambda seen: seen == wanted):
            domain.setMemoryFlags(before, _LIVE)
            hint = "its kernel needs the driver virtio_balloon, and room; or stop the slice first"
            raise Failed("the guest does not give its memory back", hint=hint)
        domain.setMemoryParameters(most, _LIVE)

    def ask_to_stop(self, domain: Any, pid: int, init: Init) -> None:
        domain.shutdown()

    def end(self, pid: int) -> bool:
        return False

    def nudge(self, pid: int) -> None:
        pass


def _guest_memory(domain: Any) -> int:
    """KiB that a machine has without what its balloon holds."""
    return int(domain.info()[2])


def _check_init(pid: int, sliver: Sliver, init: int) -> None:
    """Raise Failed if the container has ended: then `init` may be another process, with another root and groups."""
    if not (controls(pid, sliver.id) and child(pid) == init):
        raise Failed("its init has ended")


def _resize(root: int, path: str, size: int) -> None:
    """Before the limits themselves, because it can fail: then nothing has changed."""
    try:
        tmpfs.resize(root, path, size)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Failed(f"{path} holds more than the new limits allow", hint="delete files there") from error


def child(pid: int) -> int | None:
    """The first child of a process, or None if it has none (yet)."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(children[0]) if children else None


def noted_pid(directory: Path, sliver: str) -> int | None:
    """The main process of a running domain, from libvirt's pid file in that directory; None if there is none."""
    try:
        return int((directory / f"{names.domain(sliver)}.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None


def noted(directory: Path) -> Iterator[tuple[str, str]]:
    """Sliver and path of each pid file of slicemgr's domains. A file may remain after its domain has ended."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            sliver = names.sliver_of_domain(entry.name.removesuffix(".pid"))
            if sliver is not None and entry.name.endswith(".pid"):
                yield sliver, entry.path


def controls(pid: int, sliver: str) -> bool:
    """Whether the process runs and is the sliver's libvirt_lxc, or the launcher that will execute it."""
    try:
        return names.domain(sliver).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


def send_signal(pid: int, number: int) -> None:
    """Send a signal through a pidfd, which never refers to another process, even if the pid is reused."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
