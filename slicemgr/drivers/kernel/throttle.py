"""Slivers that may not grow while the node is short of memory: `memory.high` of their groups (v2). Bytes.

The kernel stops the programs of a group that has more than that at each page that they want, for up to 2 seconds.
Meanwhile only the node can move memory of it to swap. This ends also if the agent is killed: `sliver-throttle` sets the
usual value when its standard input ends.
"""

from __future__ import annotations

import mmap
import time
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
_CLOSE = 1 << 20  # a limit that differs by less is not written again


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
    _limits: dict[Path, int] = field(default_factory=dict)  # that were written last

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
                self._keeper.note(str(group), one.usual)
                self._usual[group] = one.usual
                _limit_swap(group, 0)
                self._limit(group, one)

    def _limit(self, group: Path, one: Throttled) -> None:
        """Never to less than it has: the kernel would take that before the write returns, or try to for long.

        systemd can set its own value at a reload, so what was written is compared with what is there.
        """
        known = self._limits.get(group)
        limit = min(one.usual, max(one.most, int(read_file(group / "memory.current"))))
        if known is None or _high(group) != known or limit < known - _CLOSE or one.most > known + _CLOSE:
            self._write(group, limit)

    def _write(self, group: Path, limit: int) -> None:
        limit = self._limits[group] = limit // mmap.PAGESIZE * mmap.PAGESIZE
        (group / "memory.high").write_text(str(limit))

    def take(self, wanted: Mapping[Path, int], seconds: float) -> dict[Path, int]:
        """Take bytes from throttled groups by lower limits, so that it does not come back; what was taken.

        seconds: after which nothing more is begun. Raises OSError.
        """
        deadline, taken = time.monotonic() + seconds, dict[Path, int]()
        for group, amount in wanted.items():
            with unless_ended():
                while amount > taken.get(group, 0) and time.monotonic() < deadline:
                    part = min(memory_groups.PART, amount - taken.get(group, 0))
                    before = int(read_file(group / "memory.current"))
                    with memory_groups.room_in_swap(group, part):
                        self._write(group, max(0, before - part))
                    found = max(0, before - int(read_file(group / "memory.current")))
                    taken[group] = taken.get(group, 0) + found
                    if found < part // 2:
                        break
        return taken

    def throttles(self, group: Path) -> bool:
        return group in self._limits

    def end_others(self, usual: Mapping[Path, int]) -> None:
        """End what an earlier agent and its program left throttled. usual: `memory.high` of all groups."""
        for group in usual.keys() - self._usual.keys():
            with unless_ended():
                (group / "memory.high").write_text(str(usual[group]))

    def _end(self, group: Path) -> None:
        usual = self._usual.pop(group)
        self._limits.pop(group, None)
        with unless_ended():
            (group / "memory.high").write_text(str(usual))
            _limit_swap(group, memory_groups.swapped(group))
        if self._keeper is not None:
            self._keeper.forget(str(group))


def _high(group: Path) -> int:
    text = read_file(group / "memory.high").strip()
    return UNLIMITED if text == b"max" else int(text)


def _limit_swap(group: Path, most: int) -> None:
    """Without room there, a group that reads its memory back cannot have the kernel move other memory there instead."""
    limit = group / "memory.swap.max"
    if limit.exists() and read_file(limit).strip() != str(most).encode():  # the kernel may not count swap
        limit.write_text(str(most))
