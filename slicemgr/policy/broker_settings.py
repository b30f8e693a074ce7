"""The limits in rabbitmq.conf: which a running broker should have, and how an older file gets them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_RATES = ("management.rates_mode", "none")  # their history, which nothing reads, takes much memory
_DISK = ("disk_free_limit.absolute", "200MB")
# Of the memory of the machine, or of its control group. Beyond it no node can report. A thousand nodes take more than
# 1 GB with a history of rates, and half of that without.
_MEMORY = ("vm_memory_high_watermark.relative", "0.4")
FILE = "rabbitmq.conf"
LIMITS = (_RATES, _DISK, _MEMORY)
_FORMER = {("vm_memory_high_watermark.absolute", "1GB")}  # that earlier versions wrote
_FORMER_MEMORY = 10**9  # bytes
_SETTING = re.compile(r"\s*([a-z0-9_.]+)\s*=\s*(.*?)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Update:
    """text: the new one. removed, added: its lines that differ from the old text. kept: lines that an administrator
    wrote, although this version writes others."""

    text: str
    removed: Sequence[str]
    added: Sequence[str]
    kept: Sequence[str]


def lines() -> list[str]:
    return [_line(one) for one in LIMITS]


def outdated(rates_mode: str, memory_limit: int) -> list[str]:
    """What an earlier version wrote and this one does not. memory_limit: of the running broker, in bytes."""
    found = []
    if rates_mode != _RATES[1]:
        found.append(f"{_RATES[0]} is {rates_mode}, and should be {_RATES[1]}")
    if memory_limit == _FORMER_MEMORY:
        found.append(f"the limit of its memory is 1 GB, and should be {float(_MEMORY[1]):.0%} of the machine's")
    return found


def updated(text: str) -> Update:
    """A rabbitmq.conf with the limits of this version. Only lines that an earlier version wrote are replaced."""
    old = text.splitlines()
    lines, removed, added, kept = list(old), [], [], []
    for wanted in LIMITS:
        present = [one for one in lines if (found := _setting(one)) and _limit(found[0]) == _limit(wanted[0])]
        if any(_setting(one) == wanted for one in present):
            continue
        own = [one for one in present if _setting(one) not in _FORMER]
        if own:
            kept += own
            continue
        place = lines.index(present[0]) if present else len(lines)
        lines = [one for one in lines if one not in present]
        lines.insert(place, _line(wanted))
        removed += present
        added.append(_line(wanted))
    return Update("\n".join(lines) + "\n", removed, added, kept)


def _line(setting: tuple[str, str]) -> str:
    return " = ".join(setting)


def _setting(line: str) -> tuple[str, str] | None:
    """Name and value; None for a comment or an empty line."""
    found = _SETTING.fullmatch(line.partition("#")[0])
    return None if found is None else (found[1].lower(), found[2])


def _limit(name: str) -> str:
    """The name of a limit without its unit."""
    return name.removesuffix(".absolute").removesuffix(".relative")
