"""The file in which `slicemgr link` leaves the names of the nodes that exchange images with this one, for the agent.

They are valid for a short time, and the hub repeats them: without the hub the exchange ends.
"""

from __future__ import annotations

from pathlib import Path

from slicemgr.ipc import timed_file

VALID = 30.0  # seconds


def write(path: Path, content: str) -> None:
    """Replace the file. content: the order of the hub."""
    timed_file.write(path, content, 0o600)


def read(path: Path) -> str:
    """The order, "" if there is none that is valid."""
    return timed_file.read(path, VALID)
