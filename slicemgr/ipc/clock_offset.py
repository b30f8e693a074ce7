"""The file in which `slicemgr link` leaves how far the clock of this host is ahead of the centre's, for the agent."""

from __future__ import annotations

import math
from pathlib import Path

from slicemgr.ipc import timed_file

VALID = 60.0  # seconds
EXACT = 2.0  # seconds; less is no difference


def between(sent: float, answered: float, took: float) -> float:
    """Seconds by which the clock of the sender is ahead. Pure.

    sent: by the sender's clock, in seconds since 1970. answered: by the other's. took: seconds until the answer came.
    The result is wrong by half of `took` at most.
    """
    return sent + took / 2 - answered


def rounded(ahead: float) -> float:
    """In whole seconds, so that it seldom changes. Pure."""
    return float(round(ahead)) if abs(ahead) >= EXACT else 0.0


def write(path: Path, ahead: float) -> None:
    """Replace the file. ahead: seconds."""
    timed_file.write(path, str(ahead), 0o644)


def read(path: Path) -> float | None:
    """Seconds by which the clock of this host is ahead; None: not known now."""
    try:
        ahead = float(timed_file.read(path, VALID))
    except ValueError:
        return None
    return ahead if math.isfinite(ahead) else None


def words(ahead: float) -> str:
    """Such as `3600 s ahead of the centre's`. Pure."""
    if abs(ahead) < EXACT:
        return "as the centre's"
    return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the centre's"
