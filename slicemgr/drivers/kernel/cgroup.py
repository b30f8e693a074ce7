"""The limits and usage of slivers' cgroups as the kernel reports them. v1 (also hybrid) and v2.

libvirt writes the limits, and this module reads them back. It writes only the freezer of v2, because virDomainSuspend
fails there, the limits of a running container that only the launcher sets, and the groups of importers. Units: bytes,
and microseconds of CPU time per period.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import os
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
IMPORTER = "slicemgr-import-"  # prefix of the groups of confined importers
SUBTREE = "slicemgr-subtree"  # the groups that an image's systemd manages (v2); no group above it has this name
_COPIED = ("cpu.max", "memory.max", "pids.max")  # as in tools/launcher/subtree.c
_GROUP_V1 = "slicemgr"  # slicemgr's directory in the v1 pids hierarchy
_PAGE = 4096
_LEAVING = 5.0  # seconds
_LEAST_SOCKETS = 8 << 20  # bytes of socket buffers of the smallest sliver, on v1
_SOCKETS_SHARE = 8  # an eighth of a sliver's memory may be used by socket buffers in addition, on v1
_DOMAIN_V1 = re.compile(r"(?:lxc|qemu)-[0-9]+-(.+)\.libvirt-(?:lxc|qemu)")
_THREADS = ("emulator",)  # subgroups of libvirt for QEMU's own threads; the limits are in the parent


def version() -> str:
    """`v2` if only the unified hierarchy is mounted, else `v1`."""
    return "v2" if (MOUNT / "cgroup.controllers").exists() else "v1"


def options(mounts: str) -> frozenset[str]:
    """The options of the unified hierarchy, the same wherever it is mounted. mounts: as /proc/mounts. Pure."""
    rows = (line.split() for line in mounts.splitlines())
    return frozenset(one for row in rows if row[2] == "cgroup2" for one in row[3].split(","))


def pids_group_v1(domain: str) -> Path | None:
    """The group that limits a domain's processes on v1; None on v2, where the container's own group does."""
    return MOUNT / "pids" / _GROUP_V1 / domain if version() == "v1" else None


def collect_empty(running: Collection[str]) -> None:
    """Remove empty directories of slicemgr's domains that are not in `running` (v1).

    They remain if a domain ended while libvirtd was down. On v2 systemd removes its scopes itself.
    """
    if version() == "v2":
        return
    for directory in MOUNT.glob("*/machine/*.libvirt-*"):
        match = _DOMAIN_V1.fullmatch(directory.name)
        if match and names.sliver_of_domain(match[1]) and match[1] not in running:
            with contextlib.suppress(OSError):
                directory.rmdir()


def collect_importers() -> None:
    """Remove the empty groups that the importers of a killed agent left behind (v1).

    Call it before this agent starts an importer: a new group is empty until its process joins it.
    """
    for directory in MOUNT.glob(f"*/{_GROUP_V1}/{IMPORTER}*"):
        with contextlib.suppress(OSError):
            directory.rmdir()


def own_limits(version: str, name: str, *, memory: int, processes: int) -> dict[Path, dict[str, int]]:
    """The directories of a group of slicemgr's own, with the values of their files. memory: with swap. Pure."""
    if version == "v2":
        return {MOUNT / name: {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes}}
    return {
        MOUNT / "memory" / _GROUP_V1 / name: {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        MOUNT / "pids" / _GROUP_V1 / name: {"pids.max": processes},
    }


@contextlib.contextmanager
def own_groups(name: str, *, memory: int, processes: int) -> Iterator[list[Path]]:
    """Create a group with these limits; its directories, without those that failed. It is removed at the end."""
    made = []
    for directory, limits in own_limits(version(), name, memory=memory, processes=processes).items():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            made.append(directory)
            for file, limit in limits.items():
                if (directory / file).exists():  # not every kernel accounts swap
                    (directory / file).write_text(str(limit))
        except OSError as error:
            log.warning("%s limits nothing: %s", directory, error)
    try:
        yield made
    finally:
        for directory in made:
            _remove(directory)


def _remove(directory: Path) -> None:
    """Remove a group; killed processes leave it with a short delay."""
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
    """Whether memory and swap can be limited together (v1 with swap accounting)."""
    return (MOUNT / "memory" / "memory.memsw.limit_in_bytes").exists()


def has_socket_limit() -> bool:
    """Whether socket buffers have a limit of their own (v1); on v2 they are charged as memory."""
    return (MOUNT / "memory" / "memory.kmem.tcp.limit_in_bytes").exists()


def socket_memory(memory: int) -> int:
    """Bytes of socket buffers that a sliver with this much memory has in addition, on v1."""
    return max(_LEAST_SOCKETS, memory // _SOCKETS_SHARE) // _PAGE * _PAGE


def has_io_weight() -> bool:
    """Whether a block weight has an effect: a scheduler with weights is active."""
    patterns = ("blkio/blkio*.weight", "blkio/*/blkio*.weight", "*/io*.weight", "*/*/io*.weight")
    # Path.glob raises if a group is removed during the search.
    return any(next(glob.iglob(f"{MOUNT}/{pattern}"), None) for pattern in patterns)  # noqa: PTH207


def parse_membership(text: str) -> dict[str, str]:
    """`/proc/PID/cgroup` as controller → path; the unified hierarchy has the key ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller.removeprefix("name=")] = path
    return paths


@contextlib.contextmanager
def gone_is_failed(pid: int) -> Iterator[None]:
    """Turn errors of files of an ended process, or of its removed group (ENODEV if open), into Failed."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESRCH, errno.ENODEV):
            raise
        raise Failed(f"process {pid} has ended") from error


def _directory(pid: int, controller: str) -> Path:
    """The directory of a process in a controller's hierarchy. Raises Failed if the process has ended."""
    with gone_is_failed(pid):
        paths = parse_membership(Path(f"/proc/{pid}/cgroup").read_text())
    unified = version() == "v2"
    path = paths.get("" if unified else controller)
    if path is None:
        raise Failed(f"process {pid} is in no {controller} cgroup")
    found = (MOUNT if unified else MOUNT / controller) / above_subtree(path).lstrip("/")
    return found.parent if found.name in _THREADS else found


def above_subtree(path: str) -> str:
    """The group with a container's limits; the processes of an image's systemd are in groups below it."""
    parts = path.split("/")
    return "/".join(parts[: parts.index(SUBTREE)]) if SUBTREE in parts else path


def group_of(pid: int, controller: str) -> Path:
    """The directory with the usage files of a process's group. Raises Failed if the process has ended."""
    return _directory(pid, "" if version() == "v2" else controller)


def own_group(sliver: str, pid: int, controller: str) -> Path | None:
    """The group of a sliver's domain; None if its process is in no group of its own. pid: the domain's main process.

    v1 puts machines into none, and while a domain starts, the process is in libvirtd's. Raises Failed if it has ended.
    """
    directory = group_of(pid, controller)
    return directory if names.domain(sliver) in str(directory).replace(r"\x2d", "-") else None


def release(pid: int) -> None:
    """Move the controller of a container that is to end out of the sliver's group, in which its processes stay.

    libvirtd cleans up at the first sign of its end, and then waits 0.2 s if a process is still in the domain's group:
    on v2 in the only one, on v1 in that of the first controller. On v1 it goes to the group above, and on v2, where
    that cannot have processes, to the group of this process.
    """
    with contextlib.suppress(OSError, Failed):
        group = group_of(pid, "cpu")
        if version() == "v2":
            (group_of(os.getpid(), "cpu") / "cgroup.procs").write_text(str(pid))
        elif _DOMAIN_V1.fullmatch(group.name):  # it may be called again
            (group.parent / "cgroup.procs").write_text(str(pid))


@dataclass(frozen=True, slots=True)
class Effective:
    """A limit with the files that hold it and its expected value."""

    name: str
    wanted: str
    files: tuple[str, ...]  # one must have the value; systemd sets weights in the parent scope
    controller: str
    normal: Callable[[str], str] = str


def expected(limits: Limits, version: str) -> list[Effective]:
    """The expected value of each limit, per version of cgroups. Pure."""
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
    """The differences between `limits` and the cgroup of `pid`, as texts; [] if there are none. Raises Failed."""
    wrong = []
    for row in expected(limits, version()):
        directory = _directory(pid, row.controller)
        files = [directory / one for one in row.files if (directory / one).exists()]
        with gone_is_failed(pid):
            held = [row.normal(file.read_text().strip()) for file in files]
        if row.wanted not in held:
            wrong.append(f"{row.name} is {' or '.join(held) or 'not limited'} instead of {row.wanted}")
    return wrong


def complete(pid: int, domain: str, limits: Limits) -> None:
    """Change the limits of a running container that libvirt does not write. pid: its init. Raises Failed or OSError.

    On v2 an image's systemd has copies in its subtree, which would bound it further.
    """
    with gone_is_failed(pid):
        if version() == "v1":
            group = pids_group_v1(domain)
            if group is not None:
                (group / "pids.max").write_text(str(limits.pids))
            if has_socket_limit():
                file = _directory(pid, "memory") / "memory.kmem.tcp.limit_in_bytes"
                file.write_text(str(socket_memory(limits.memory)))
            return
        group = _directory(pid, "")
        (group / "pids.max").write_text(str(limits.pids))
        for name in _COPIED if (group / SUBTREE).is_dir() else ():
            (group / SUBTREE / name).write_text((group / name).read_text())


def freeze_v2(pid: int, frozen: bool) -> None:
    """Freeze or thaw every process of the container (v2 only). Raises Failed if it has ended."""
    with gone_is_failed(pid):
        (_directory(pid, "") / "cgroup.freeze").write_text("1" if frozen else "0")


def is_frozen_v2(pid: int) -> bool:
    """Whether the container is frozen (v2 only); False if it has ended."""
    with contextlib.suppress(Failed), gone_is_failed(pid):
        return (_directory(pid, "") / "cgroup.freeze").read_text().strip() == "1"
    return False
