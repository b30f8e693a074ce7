"""The creation of a box from inside: its mounts, and the process that keeps its namespaces."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import nodebox_cgroups as cgroups
from nodebox_linux import (
    CLONE_NEWCGROUP,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWUTS,
    MNT_DETACH,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    bind,
    command,
    mount,
    umount,
    unshare,
)

POOL = Path("/var/lib/slicemgr/pool")
OVERLAID = ("/etc", "/var/lib")  # so that mount points and users can be added without changes of the host
BOUND = ("/etc/slicemgr", "/var/lib/slicemgr")
BOUND_LIBVIRT = ("/etc/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt")


def prepare(directory: Path, libvirt: bool) -> None:
    """Create the directories that are mounted over those of the host."""
    for path in OVERLAID:
        for part in ("upper", "work"):
            (directory / part / path.strip("/")).mkdir(parents=True, exist_ok=True)
    for path in bound(libvirt):
        (directory / "root" / path.strip("/")).mkdir(parents=True, exist_ok=True)
    (directory / "root" / str(POOL).strip("/")).mkdir(exist_ok=True)


def bound(libvirt: bool) -> tuple[str, ...]:
    return BOUND + (BOUND_LIBVIRT if libvirt else ())


def box(name: str, directory: Path, places: Sequence[cgroups.Place], libvirt: bool) -> None:
    """Turn this process into the keeper of a box. Ends in exec."""
    cgroups.create(places)
    cgroups.join([place.directory if place.directory != place.members else place.members for place in places])
    unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWCGROUP)
    cgroups.delegate(places)
    mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    socket.sethostname(name)
    resolver = Path("/etc/resolv.conf").resolve()
    nameservers = resolver.read_text() if resolver.is_relative_to("/run") and resolver.exists() else None
    for path in OVERLAID:
        upper, work = directory / "upper" / path.strip("/"), directory / "work" / path.strip("/")
        mount("overlay", Path(path), "overlay", 0, f"lowerdir={path},upperdir={upper},workdir={work}")
    for path in bound(libvirt):
        Path(path).mkdir(exist_ok=True)
        bind(directory / "root" / path.strip("/"), Path(path))
    command(["mount", "-t", "btrfs", "-o", "loop,noatime", directory / "pool.img", POOL])
    _run_directory()
    if nameservers is not None:
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.write_text(nameservers)
    _name_resolves(name)
    _sysfs()
    cgroups.mount_inside([place.hierarchy for place in places])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    _sleep(name)


def outside(name: str, places: Sequence[cgroups.Place]) -> None:
    """Turn this process into the keeper of the namespace at the other end of a box's link. Ends in exec."""
    cgroups.create(places)
    cgroups.delegate(places)
    cgroups.join([place.members for place in places])
    unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS)
    mount("none", Path("/"), flags=MS_REC | MS_PRIVATE)
    socket.sethostname(f"{name}-outside")
    _run_directory()
    _sysfs()
    _sleep(f"{name}-outside")


def _run_directory() -> None:
    """Mount an empty /run, so that no socket, lock or pid file is shared with the host (D-Bus, xtables.lock)."""
    mount("tmpfs", Path("/run"), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    Path("/run/lock").mkdir()
    Path("/run/lock").chmod(0o1777)


def _sysfs() -> None:
    """Mount a sysfs of this network namespace, which removes the host's mounts below /sys from the box."""
    with suppress(OSError):
        umount(Path("/sys"), MNT_DETACH)
    mount("sysfs", Path("/sys"), "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _name_resolves(name: str) -> None:
    """Add the host name to /etc/hosts: libvirt resolves it at its start and would wait for a name server."""
    hosts = Path("/etc/hosts")
    text = hosts.read_text() if hosts.exists() else "127.0.0.1 localhost\n"
    if name not in text.split():
        hosts.write_text(f"{text.rstrip()}\n127.0.1.1 {name}\n")


def _sleep(name: str) -> None:
    program = shutil.which("sleep") or "/bin/sleep"
    os.execv(program, [f"nodebox-{name}", "infinity"])
