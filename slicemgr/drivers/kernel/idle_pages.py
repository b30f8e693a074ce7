"""Which pages of the machine are not used for a while, by the kernel's trackers. Pages have numbers.

Page idle tracking has a bit of each page. Where the kernel lacks it, DAMON does the same with regions of one page; it
has one user at a time, so a configuration that another program made stays as it is.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from slicemgr.drivers.kernel.counters import read_file
from slicemgr.errors import Failed

BITMAP = Path("/sys/kernel/mm/page_idle/bitmap")
ADMIN = Path("/sys/kernel/mm/damon/admin/kdamonds")
NOTE = "damon"  # in the run folder
_PAGE = 4096
_WORD = 64  # pages
_EVERY = 5_000_000  # microseconds between two checks by DAMON; a command takes as long
_LONGEST = 3_600_000_000  # microseconds, longer than any scan: DAMON counts uses from its start
_ANY = 1 << 31
_FIRST_CGROUPS = 0xEFFFFFFB  # the inode number of the first namespace of control groups (linux/proc_ns.h)


class Tracker(ABC):
    """Marks pages, and finds out later which were not used. Raises OSError, or Failed if another program uses it."""

    @abstractmethod
    def mark(self, pages: Collection[int]) -> None:
        """Mark pages as idle, in place of those marked before."""

    @abstractmethod
    def idle(self) -> set[int]:
        """Those that are still idle."""

    @abstractmethod
    def end(self) -> None:
        """Leave nothing behind, also of an agent that was killed."""


class PageIdle(Tracker):
    """bitmap: 8 bytes of 64 pages; a bit that is written as 0 changes nothing."""

    def __init__(self, bitmap: Path = BITMAP) -> None:
        self._bitmap = bitmap
        self._words: dict[int, int] = {}

    def mark(self, pages: Collection[int]) -> None:
        words: defaultdict[int, int] = defaultdict(int)
        for page in pages:
            words[page // _WORD] |= 1 << page % _WORD
        self._words = dict(words)
        with self._bitmap.open("r+b", buffering=0) as bitmap:
            for number, word in self._words.items():
                os.pwrite(bitmap.fileno(), word.to_bytes(8, "little"), 8 * number)

    def idle(self) -> set[int]:
        found = set()
        with self._bitmap.open("rb", buffering=0) as bitmap:
            for number, word in self._words.items():
                still = word & int.from_bytes(os.pread(bitmap.fileno(), 8, 8 * number), "little")
                found |= {_WORD * number + bit for bit in range(_WORD) if still >> bit & 1}
        return found

    def end(self) -> None:
        self._words = {}


class Damon(Tracker):
    """note: a file that exists while the configuration is the agent's own."""

    def __init__(self, note: Path, admin: Path = ADMIN) -> None:
        self._note, self._admin = note, admin

    def is_free(self) -> bool:
        """Whether no other program uses it."""
        return self._note.exists() or read_file(self._admin / "nr_kdamonds").strip() == b"0"

    def mark(self, pages: Collection[int]) -> None:
        if not self.is_free():
            raise Failed("another program uses DAMON")
        self.end()
        self._note.touch()
        _write(self._admin / "nr_kdamonds", 1)
        _write(self._admin / "0" / "contexts" / "nr_contexts", 1)
        self._set_up(self._admin / "0" / "contexts" / "0", sorted(set(pages)))
        _write(self._admin / "0" / "state", "on")

    def _set_up(self, context: Path, pages: list[int]) -> None:
        """Regions of one page are neither split nor merged, as long as no interval of aggregation ends."""
        _write(context / "operations", "paddr")
        attributes = context / "monitoring_attrs"
        _write(attributes / "intervals" / "sample_us", _EVERY)
        _write(attributes / "intervals" / "aggr_us", _LONGEST)
        _write(attributes / "intervals" / "update_us", _LONGEST)
        _write(attributes / "nr_regions" / "max", max(100, 3 * len(pages)))
        _write(context / "targets" / "nr_targets", 1)
        regions = context / "targets" / "0" / "regions"
        _write(regions / "nr_regions", len(pages))
        for number, page in enumerate(pages):
            _write(regions / str(number) / "start", page * _PAGE)
            _write(regions / str(number) / "end", (page + 1) * _PAGE)
        _write(context / "schemes" / "nr_schemes", 1)
        scheme = context / "schemes" / "0"
        _write(scheme / "action", "stat")
        if not (scheme / "apply_interval_us").exists():
            raise Failed("DAMON of this kernel reports only at the end of its intervals")
        _write(scheme / "apply_interval_us", _EVERY)
        _write(scheme / "access_pattern" / "sz" / "max", _ANY)
        _write(scheme / "access_pattern" / "age" / "max", _ANY)

    def idle(self) -> set[int]:
        _write(self._admin / "0" / "state", "update_schemes_tried_regions")
        places = self._admin / "0" / "contexts" / "0" / "schemes" / "0" / "tried_regions"
        return set(_pages(places))

    def end(self) -> None:
        if not self._note.exists():
            return
        with suppress(OSError):  # it is not running
            _write(self._admin / "0" / "state", "off")
        _write(self._admin / "nr_kdamonds", 0)
        self._note.unlink(missing_ok=True)


def _pages(regions: Path) -> Iterator[int]:
    """The pages in regions that DAMON reports; a report of neighbours may be one region."""
    for one in regions.iterdir():
        if one.is_dir():
            start, end = (int(read_file(one / name)) // _PAGE for name in ("start", "end"))
            yield from range(start, end)


def _write(path: Path, value: object) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def tracker(note: Path, bitmap: Path = BITMAP, admin: Path = ADMIN) -> Tracker | None:
    """The tracker of this kernel, the exact one first; None if it has none. note: see `Damon`."""
    if os.access(bitmap, os.W_OK):
        return PageIdle(bitmap)
    return Damon(note, admin) if os.access(admin / "nr_kdamonds", os.W_OK) else None


def of_machine(note: Path) -> Tracker | None:
    """The tracker for an agent; None as well if its node is a part of a machine, which has only one tracker."""
    return tracker(note) if is_whole_machine() else None


def is_whole_machine() -> bool:
    """Whether this process has the machine's own control groups, and not those of a box or container."""
    return Path("/proc/self/ns/cgroup").stat().st_ino == _FIRST_CGROUPS
