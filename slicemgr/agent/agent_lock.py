"""The lock that allows one agent per node, and one process of each other kind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slicemgr.errors import Code, Refused


@contextmanager
def only_one(path: Path, what: str = "agent") -> Iterator[None]:
    """Hold the lock of a running agent. Raises Refused if another agent holds it. what: the kind of process."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                Code.CONFLICT,
                f"another {what} runs on this node ({path} is locked)",
                hint=f"stop that {what} first",
            ) from None
        yield
    finally:
        os.close(descriptor)
