"""Files that a conversion changes, so that they can be made what they were."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from slicemgr.certificates.private_files import replace

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
