"""Files that a conversion changes, so that they can be made what they were."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


def keep(path: Path) -> Facts | None:
    """Content, owner and mode of a file; None if it does not exist."""
    if not path.exists():
        return None
    held = path.stat()
    content = base64.b64encode(path.read_bytes()).decode()
    return {"content": content, "uid": held.st_uid, "gid": held.st_gid, "mode": held.st_mode & 0o7777}


def put_back(path: Path, kept: Facts | None) -> None:
    """Make a file what it was at `keep`."""
    if kept is None:
        path.unlink(missing_ok=True)
        return
    replace(path, base64.b64decode(kept["content"]), kept["uid"], kept["gid"], kept["mode"])


def replace(path: Path, content: bytes, uid: int, gid: int, mode: int) -> None:
    """Replace a file atomically; it is on the disk when this returns."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)
        file.flush()
        os.fsync(descriptor)
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
