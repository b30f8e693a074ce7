"""What the kernel says of a sliver's cgroups: its limits as they hold, its usage. v1 (also hybrid) and v2.

libvirt writes the limits; here they are read back. Only freezing on v2 is done here, because virDomainSuspend
fails there. Numbers are bytes, and microseconds of CPU time in each period.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from slicemgr import names
from slicemgr.drivers.libvirt.host import CPU_PERIOD
from slicemgr.errors import Failed
from slicemgr.model import Limits

log = logging.getLogger(__name__)

MOUNT = Path("/sys/fs/cgroup")
IMPORTER = "slicemgr-import-"  # what the groups of confined importers begin with
_GROUP_V1 = "slicemgr"  # our directory in the v1 pids hierarchy
_PAGE = 4096
_LEAVING = 5.0  # seconds
_LEAST_SOCKETS = 8 << 20  # bytes of socket buffers of the smallest sliver, on v1
_SOCKETS_SHARE = 8  # of its memory, the part that socket buffers may take beside it, on v1
_DOMAIN_V1 = re.compile(r"(?:lxc|qemu)-[0-9]+-(.+)\.libvirt-(?:lxc|qemu)")
_THREADS = ("emulator",)  # where libvirt puts QEMU's own threads; the limits are in the directory above


def version() -> str:
    """`v2` where the unified hierarchy is mounted alone, else `v1`."""
    return "v2" if (MOUNT / "cgroup.controllers").exists() else "v1"


def pids_group_v1(domain: str) -> Path | None:
    """The directory that limits a domain's processes on v1; None on v2: the container's own is limited there."""
    return MOUNT / "pids" / _GROUP_V1 / domain if version() == "v1" else None


def collect_empty(running: Collection[str]) -> None:
    """Remove empty directories of domains of ours that are not in `running` (v1).

    A libvirtd that was away when a domain ended forgets them. On v2 systemd's scopes go by themselves.
    """
    if version() == "v2":
        return
    for directory in MOUNT.glob("*/machine/*.libvirt-*"):
        match = _DOMAIN_V1.fullmatch(directory.name)
        if match and names.sliver_of_domain(match[1]) and match[1] not in running:
            with contextlib.suppress(OSError):
                directory.rmdir()


def collect_importers() -> None:
    """Remove the empty groups of a killed agent's importers (v1).

    Before this agent starts one of its own: a group is empty until its process has joined it.
    """
    for directory in MOUNT.glob(f"*/{_GROUP_V1}/{IMPORTER}*"):
        with contextlib.suppress(OSError):
            directory.rmdir()


def own_limits(version: str, name: str, *, memory: int, processes: int) -> dict[Path, dict[str, int]]:
    """Directories of a group of our own, and what their files shall say. memory: bytes, swap included. Pure."""
    if version == "v2":
        return {MOUNT / name: {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes}}
    return {
        MOUNT / "memory" / _GROUP_V1 / name: {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        MOUNT / "pids" / _GROUP_V1 / name: {"pids.max": processes},
    }


@contextlib.contextmanager
def own_groups(name: str, *, memory: int, processes: int) -> Iterator[list[Path]]:
    """Directories of a new group with these limits, those that the kernel lets us make; they go at the end."""
    made = []
    for directory, limits in own_limits(version(), name, memory=memory, processes=processes).items():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            made.append(directory)
            for file, limit in limits.items():
                if (directory / file).exists():  # swap is not always accounted
                    (directory / file).write_text(str(limit))
        except OSError as error:
            log.warning("%s limits nothing: %s", directory, error)
    try:
        yield made
    finally:
        for directory in made:
            _remove(directory)


def _remove(directory: Path) -> None:
    """What was killed leaves its group a moment later."""
    deadline = time.monotonic() + _LEAVING
    while time.monotonic() < deadline:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
    log.warning("%s is still in use", directory)


def has_swap_limit() -> bool:
    """Whether memory and swap can be capped together (v1 with swap accounting)."""
    return (MOUNT / "memory" / "memory.memsw.limit_in_bytes").exists()


def has_socket_limit() -> bool:
    """Whether socket buffers have a limit of their own (v1); on v2 they count as memory."""
    return (MOUNT / "memory" / "memory.kmem.tcp.limit_in_bytes").exists()


def socket_memory(memory: int) -> int:
    """Bytes of socket buffers, beside its memory, that a sliver with that much memory has on v1."""
    return max(_LEAST_SOCKETS, memory // _SOCKETS_SHARE) // _PAGE * _PAGE


def has_io_weight() -> bool:
    """Whether a block weight has an effect: a scheduler with weights is there."""
    patterns = ("blkio/blkio*.weight", "blkio/*/blkio*.weight", "*/io*.weight", "*/*/io*.weight")
    # Path.glob raises for a group that vanishes meanwhile.
    return any(next(glob.iglob(f"{MOUNT}/{pattern}"), None) for pattern in patterns)  # noqa: PTH207


def parse_membership(text: str) -> dict[str, str]:
    """`/proc/PID/cgroup` as controller → path; the unified hierarchy is called ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller.removeprefix("name=")] = path
    return paths


@contextlib.contextmanager
def gone_is_failed(pid: int) -> Iterator[None]:
    """Files of a process or its group that go meanwhile raise Failed; a group's that are open say "no such device"."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESRCH, errno.ENODEV):
            raise
        raise Failed(f"process {pid} is gone") from error


def _directory(pid: int, controller: str) -> Path:
    """The directory of a process in a controller's hierarchy. Raises Failed if the process is gone."""
    with gone_is_failed(pid):
        paths = parse_membership(Path(f"/proc/{pid}/cgroup").read_text())
    unified = version() == "v2"
    path = paths.get("" if unified else controller)
    if path is None:
        raise Failed(f"process {pid} is in no {controller} cgroup")
    found = (MOUNT if unified else MOUNT / controller) / path.lstrip("/")
    return found.parent if found.name in _THREADS else found


def group_of(pid: int, controller: str) -> Path:
    """The directory whose files tell what a process's group uses. Raises Failed if the process is gone."""
    return _directory(pid, "" if version() == "v2" else controller)


@dataclass(frozen=True, slots=True)
class Effective:
    """Limits as files and what they should say."""

    name: str
    wanted: str
    files: tuple[str, ...]  # one of them must say so; systemd keeps weights in the scope above libvirt's directory
    controller: str
    normal: Callable[[str], str] = str


def expected(limits: Limits, version: str) -> list[Effective]:
    """What each limit should read as, per version of cgroups. Pure."""
    memory = str(limits.memory // _PAGE * _PAGE)
    quota = round(limits.cpu * CPU_PERIOD)
    unified = version == "v2"
    rows = [
        Effective("memory", memory, ("memory.max" if unified else "memory.limit_in_bytes",), "memory"),
    ]
    if limits.pids:
        rows.append(Effective("pids", str(limits.pids), ("pids.max",), "pids"))
    if unified:
        rows += [
            Effective("cpu", f"{quota} {CPU_PERIOD}", ("cpu.max",), "cpu"),
            Effective("cpu_shares", str(limits.cpu_shares), ("cpu.weight", "../cpu.weight"), "cpu"),
        ]
    else:
        rows += [
            Effective("cpu", str(quota), ("cpu.cfs_quota_us",), "cpu"),
            Effective("cpu_shares", str(limits.cpu_shares), ("cpu.shares",), "cpu"),
        ]
    if limits.memory_soft is not None:
        file = "memory.high" if unified else "memory.soft_limit_in_bytes"
        rows.append(Effective("memory_soft", str(limits.memory_soft // _PAGE * _PAGE), (file,), "memory"))
    if limits.io_weight is not None:
        own = ("io.weight", "io.bfq.weight")
        files = (*own, *(f"../{one}" for one in own)) if unified else ("blkio.weight", "blkio.bfq.weight")
        rows.append(Effective("io_weight", str(limits.io_weight), files, "blkio", _weight))
    return rows


def _weight(text: str) -> str:
    return text.removeprefix("default ").split("\n")[0]


def verify(pid: int, limits: Limits) -> list[str]:
    """What the kernel says differently from `limits` for the cgroup of `pid`; [] is right."""
    wrong = []
    for row in expected(limits, version()):
        directory = _directory(pid, row.controller)
        files = [directory / one for one in row.files if (directory / one).exists()]
        with gone_is_failed(pid):
            held = [row.normal(file.read_text().strip()) for file in files]
        if row.wanted not in held:
            wrong.append(f"{row.name} is {' or '.join(held) or 'not limited'} instead of {row.wanted}")
    return wrong


def freeze_v2(pid: int, frozen: bool) -> None:
    """Stop or go on with every process of the container (v2 only). Raises Failed if it is gone."""
    with gone_is_failed(pid):
        (_directory(pid, "") / "cgroup.freeze").write_text("1" if frozen else "0")


def is_frozen_v2(pid: int) -> bool:
    with contextlib.suppress(Failed), gone_is_failed(pid):
        return (_directory(pid, "") / "cgroup.freeze").read_text().strip() == "1"
    return False
