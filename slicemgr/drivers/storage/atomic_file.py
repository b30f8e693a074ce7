"""Write small files atomically: after a crash a file has either its old or its new content."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replace `path` by a file with `text` that only its owner can read (mode 0600)."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
    unfinished.rename(path)
