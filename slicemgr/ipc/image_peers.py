"""The file in which `slicemgr link` leaves the names of the nodes that exchange images with this one, for the agent.

They are valid for a short time, and the hub repeats them: without the hub the exchange ends.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VALID = 30.0  # seconds


def write(path: Path, content: str) -> None:
    """Replace the file. content: the order of the hub."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{time.monotonic()}\n{content}")
    fresh.rename(path)


def read(path: Path) -> str:
    """The order, "" if there is none that is valid."""
    try:
        at, _, content = path.read_text().partition("\n")
        age = time.monotonic() - float(at)
    except (OSError, ValueError):
        return ""
    return content if 0 <= age < VALID else ""  # the clock begins again when the host does
