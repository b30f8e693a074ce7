"""A socket of the agent's at a path."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def bind(kind: socket.SocketKind, path: Path, backlog: int = 0) -> socket.socket:
    """A unix socket of that kind at `path`, which any local process may use. backlog: 0 if nobody connects to it."""
    made = socket.socket(socket.AF_UNIX, kind)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    made.bind(str(fresh))
    fresh.chmod(0o666)
    if backlog:
        made.listen(backlog)
    fresh.rename(path)  # a predecessor's socket is replaced without a moment in which there is none
    return made
