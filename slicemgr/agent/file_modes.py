"""Restrict files that an earlier version left readable to all local users, when the agent starts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slicemgr import names
from slicemgr.config import Config

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OF_SLIVER = ("limit", "host_key.pub", names.KERNEL, names.INITRD, names.FIRMWARE_VARIABLES)


def tighten(config: Config) -> None:
    """Remove all permissions of group and others. Links are not followed; missing files are skipped."""
    for path in _private(config):
        with suppress(FileNotFoundError, NotADirectoryError):
            _tighten(path)


def _private(config: Config) -> Iterator[Path]:
    node = config.node
    yield from (node.run_dir / name for name in ("recorder.json", "init.lock", "agent.lock"))
    yield node.state_dir / "acceleration.json"
    yield from config.images_dir.glob("*.json")
    for directory in (node.pool / "slivers").glob("*"):
        yield from (directory / name for name in _OF_SLIVER)


def _tighten(path: Path) -> None:
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode) and mode & _OTHERS:
            Path(f"/proc/self/fd/{fd}").chmod(stat.S_IMODE(mode) & ~_OTHERS)
    finally:
        os.close(fd)
