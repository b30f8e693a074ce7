"""The cgroups that an image's systemd manages, as far as a host has to clean them up.

The launcher creates them (tools/launcher/subtree.c). On cgroup v2 they are below libvirt's group and end with it. On a
host with v1 controllers they are in the v2 hierarchy, which is not mounted there because of libvirt.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from slicemgr.drivers.kernel import cgroup

_SLIVERS = "slicemgr-slivers"  # as in tools/launcher/launcher.h
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same on every architecture
_FD_CLOEXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_CREATE = 6  # FSCONFIG_CMD_CREATE

_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """Why this node cannot run an image's systemd in a container; "" if it can."""
    types = Path("/proc/filesystems").read_text().split()
    return "" if "cgroup2" in types else "its kernel has no cgroup v2"


def name(domain: str) -> str:
    """The name of the directory of a domain's groups."""
    return cgroup.SUBTREE if cgroup.version() == "v2" else domain


def domains() -> set[str]:
    """The domains that have such groups (v1)."""
    if cgroup.version() == "v2":
        return set()
    try:
        with _slivers() as directory, os.scandir(directory) as entries:
            return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
    except OSError:
        return set()


def remove(domain: str) -> None:
    """Remove the empty groups of a domain that has ended (v1)."""
    if cgroup.version() == "v2":
        return
    with contextlib.suppress(OSError), _slivers() as directory:
        # A tenant gave the names, but in this file system they lead only to its own groups.
        for _, directories, _, parent in os.fwalk(domain, topdown=False, dir_fd=directory):
            for one in directories:
                with contextlib.suppress(OSError):
                    os.rmdir(one, dir_fd=parent)
        os.rmdir(domain, dir_fd=directory)


@contextlib.contextmanager
def _slivers() -> Iterator[int]:
    """The directory of all slivers in the v2 hierarchy, by a mount that no mount table lists. Raises OSError."""
    context = _call(_FSOPEN, b"cgroup2", _FD_CLOEXEC)
    try:
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        tree = _call(_FSMOUNT, context, _FD_CLOEXEC, 0)
    finally:
        os.close(context)
    try:
        directory = os.open(_SLIVERS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
    finally:
        os.close(tree)
    try:
        yield directory
    finally:
        os.close(directory)


def _call(number: int, *arguments: bytes | int | None) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
