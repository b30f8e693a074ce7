"""The result of a check, and checks of numbers that the kernel has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Check:
    """One result. ok: None if the node works with restrictions. remedy: how to fix it, "" if ok is True."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


def at_least(name: str, value: int | None, enough: int, sysctl: str, what: str) -> Check:
    """Whether a setting of the kernel is enough for many slivers. value: None if there is none. what: it limits."""
    if value is None:
        return Check(name, None, f"this kernel has no {sysctl}")
    detail = f"{sysctl} = {value} ({what})"
    return Check(name, True if value >= enough else None, detail, f"sysctl -w {sysctl}={enough} for a thousand slivers")


def number(path: str) -> int | None:
    """The number in a file of the kernel; None if it has no such file, or keeps it from this user."""
    try:
        return int(Path(path).read_text())
    except (FileNotFoundError, ValueError, PermissionError):
        return None
