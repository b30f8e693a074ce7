"""Slivers that hardly grow while the node is short of memory (v2). Bytes.

A group that has more in swap than `memory.swap.high` waits for each part of 256 KiB that it needs, the longer the more
it has beyond: with 2 %, for 25 ms, and up to 2 s while the node takes memory of it. It does not search for memory
meanwhile, as a group at its `memory.high` does: that drops the pages of its own programs and reads them again, without
end. So `memory.high` is the means only for a group that has nothing in swap. Only the node moves memory of throttled
groups to swap.

This ends also if the agent is killed: `sliver-throttle` sets the usual values when its standard input ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slicemgr.config import PACKAGE
from slicemgr.drivers.keeper import Keeper
from slicemgr.drivers.kernel import memory_groups
from slicemgr.drivers.kernel.counters import read_file
from slicemgr.drivers.kernel.memory_groups import UNLIMITED, unless_ended
from slicemgr.errors import Failed

PROGRAM = PACKAGE / "libexec" / "sliver-throttle"
_BEYOND = 0.02  # the part of its `memory.swap.high` that a group has beyond that
_LEAST = 1 << 20  # in swap, for that
_CLOSE = 1 << 20  # a limit of memory that differs by less is not written again
_HIGH, _SWAP_HIGH = "memory.high", "memory.swap.high"


@dataclass(frozen=True, slots=True)
class Throttled:
    """most: that a sliver may have, if it does not have more. usual: its `memory.high` otherwise."""

    most: int
    usual: int = UNLIMITED


@dataclass(slots=True)
class Throttle:
    """Not thread-safe."""

    _keeper: Keeper | None = None
    _usual: dict[Path, int] = field(default_factory=dict)

    @contextmanager
    def kept(self, lock: Path) -> Iterator[None]:
        """Slivers can be throttled within the context. lock: a file. Waits for an earlier agent's. Raises Failed."""
        self._keeper = Keeper(PROGRAM, lock)
        try:
            yield
        finally:
            self._keeper.close()
            self._keeper = None

    def set(self, wanted: Mapping[Path, Throttled]) -> None:
        """Throttle these groups, and no others. A group that has just ended is left out. Raises Failed or OSError."""
        for group in self._usual.keys() - wanted.keys():
            self._end(group)
        for group, one in wanted.items():
            if self._keeper is None:
                raise Failed("the agent is stopping")
            with unless_ended():
                swapped, new = memory_groups.swapped(group), group not in self._usual
                self._keeper.note(str(group / _HIGH), one.usual)
                self._usual[group] = one.usual
                _limit_swap(group, 0)
                if swapped >= _LEAST and (group / _SWAP_HIGH).exists():
                    self._keeper.note(str(group / _SWAP_HIGH), UNLIMITED)
                    (group / _SWAP_HIGH).write_text(str(int(swapped / (1 + _BEYOND))))
                    limit, changed = one.usual, _shown(group) != one.usual
                else:
                    limit, changed = _limit(group, one)
                if new or changed:
                    (group / _HIGH).write_text(str(limit))

    def end_others(self, usual: Mapping[Path, int]) -> None:
        """End what an earlier agent and its program left throttled. usual: `memory.high` of all groups."""
        for group in usual.keys() - self._usual.keys():
            _unlimited(group, usual[group])

    def _end(self, group: Path) -> None:
        usual = self._usual.pop(group)
        _unlimited(group, usual)
        with unless_ended():
            _limit_swap(group, memory_groups.swapped(group))
        if self._keeper is not None:
            self._keeper.forget(str(group / _SWAP_HIGH))
            self._keeper.forget(str(group / _HIGH))


def _limit(group: Path, one: Throttled) -> tuple[int, bool]:
    """Its `memory.high`, and whether that differs from what is there, which systemd can set at a reload.

    Never less than it has: the kernel would take that before the write returns, or try to for long.
    """
    limit, shown = min(one.usual, max(one.most, int(read_file(group / "memory.current")))), _shown(group)
    return limit, limit < shown - _CLOSE or min(one.most, one.usual) > shown + _CLOSE


def _unlimited(group: Path, usual: int) -> None:
    with unless_ended():
        (group / _HIGH).write_text(str(usual))
        if (group / _SWAP_HIGH).exists():  # the kernel may not count swap
            (group / _SWAP_HIGH).write_text("max")


def _shown(group: Path) -> int:
    text = read_file(group / _HIGH).strip()
    return UNLIMITED if text == b"max" else int(text)


def _limit_swap(group: Path, most: int) -> None:
    """Without room there, a group that reads its memory back cannot have the kernel move other memory there instead."""
    limit = group / "memory.swap.max"
    if limit.exists() and read_file(limit).strip() != str(most).encode():  # the kernel may not count swap
        limit.write_text(str(most))
