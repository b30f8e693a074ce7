"""Do something with the database while neither the web process nor the agent of this node runs."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slicemgr.agent.agent_lock import only_one
from slicemgr.config import Config
from slicemgr.errors import Code, Refused


@contextmanager
def stopped(config: Config) -> Iterator[None]:
    """Refused if web or agent run; an agent cannot start within the context."""
    locks = config.node.run_dir
    with alone(locks / "init.lock"), only_one(locks / "agent.lock"):
        _refuse_running_web(config)
        yield


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock, so that only one process does this at a time."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)  # every process that can open the file can hold its lock
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _refuse_running_web(config: Config) -> None:
    with suppress(OSError), socket.create_connection((config.web.host, config.web.port), timeout=5):
        message = f"something answers at {config.web.host}:{config.web.port}: the web process still runs"
        raise Refused(Code.CONFLICT, message, hint="stop it first, or its changes are lost")
