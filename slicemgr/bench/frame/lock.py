"""A lock that allows one experiment at a time on a node, among the processes of one host. It records its holder."""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from slicemgr.errors import Code, Refused

_SHARED = Path("/run/lock")
_LONGEST = 4096  # bytes of the holder's record that are read and written


def path(url: str, node: str, directory: Path | None = None) -> Path:
    """The lock file of a node of a service. directory: one that all users share; the default is the system's own."""
    place = directory or (_SHARED if os.access(_SHARED, os.W_OK) else Path(tempfile.gettempdir()))
    return place / f"slicemgr-bench-{hashlib.sha256(f'{url} {node}'.encode()).hexdigest()[:16]}.lock"


@contextmanager
def held(file: Path, about: str) -> Iterator[None]:
    """Hold the lock, which the kernel releases at any end of the process.

    about: the name of the experiment. Raises Refused if another process holds the lock.
    """
    descriptor = _taken(file)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_about(about)).encode()[:_LONGEST], 0)
        yield
    finally:
        with suppress(OSError):  # the file of another user in a directory where only its owner may remove it
            file.unlink()
        os.close(descriptor)


def _taken(file: Path) -> int:
    """The descriptor of the locked file, which the previous holder has not removed meanwhile."""
    while True:
        with ExitStack() as undo:
            descriptor = _open(file)
            undo.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "wait until it has ended, or end it with Ctrl-C"
                message = f"an experiment runs on this node: {_holder(descriptor)}"
                raise Refused(Code.CONFLICT, message, hint=hint) from None
            with suppress(FileNotFoundError):
                if os.path.samestat(file.lstat(), os.fstat(descriptor)):
                    undo.pop_all()
                    return descriptor


def _open(file: Path) -> int:
    """Open the file, or create it for all users.

    O_CREAT is used only with O_EXCL: in a shared directory, the kernel refuses O_CREAT for a file of another user.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with suppress(FileNotFoundError):
            return os.open(file, flags)
        with suppress(FileExistsError):
            descriptor = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)
            return descriptor


def _about(what: str) -> dict[str, object]:
    return {"what": what, "user": _user(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, _LONGEST, 0))
        return f"{holder['what']}, of {holder['user']} (process {holder['pid']}), since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "its holder is unknown"
