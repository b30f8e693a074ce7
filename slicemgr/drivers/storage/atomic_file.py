"""A small file of root's own that is there whole or not at all, also after a crash in the middle."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write `text` to `path`, in place of what is there. Nobody but the owner may read it (mode 0600)."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
    unfinished.rename(path)
