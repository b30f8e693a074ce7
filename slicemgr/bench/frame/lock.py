"""One experiment at a time on a node, as far as one machine can tell: a lock that says whose it is."""

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
_LONGEST = 4096  # bytes of what a holder says of itself


def path(url: str, node: str, directory: Path | None = None) -> Path:
    """Where the lock of a node of a service is. directory: for all users; the system's own if left out."""
    place = directory or (_SHARED if os.access(_SHARED, os.W_OK) else Path(tempfile.gettempdir()))
    return place / f"slicemgr-bench-{hashlib.sha256(f'{url} {node}'.encode()).hexdigest()[:16]}.lock"


@contextmanager
def held(file: Path, about: str) -> Iterator[None]:
    """Hold it; it ends with the process, however that ends. about: what runs. Refused if somebody holds it."""
    descriptor = _taken(file)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_about(about)).encode()[:_LONGEST], 0)
        yield
    finally:
        with suppress(OSError):  # another user's, where only that user may remove it
            file.unlink()
        os.close(descriptor)


def _taken(file: Path) -> int:
    """Locked, and not removed meanwhile by who held it before."""
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
    """Whoever comes first makes it, for everybody: the system forbids to create what another user's file is already."""
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
        return "it does not say whose it is"
