"""A small file from one process of a host for another, valid for a short time after it was written."""

from __future__ import annotations

import os
import time
from pathlib import Path


def write(path: Path, content: str, mode: int) -> None:
    """Replace the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{time.monotonic()}\n{content}")
    fresh.rename(path)


def read(path: Path, valid: float) -> str:
    """The content, "" if there is none that is valid. valid: seconds since it was written."""
    try:
        at, _, content = path.read_text().partition("\n")
        age = time.monotonic() - float(at)
    except (OSError, ValueError):
        return ""
    return content if 0 <= age < valid else ""  # the clock begins again when the host does
