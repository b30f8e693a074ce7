"""Random pages of control groups, by the kernel's tables of physical pages. cgroup v1 and v2.

Memory of a group includes that of groups inside of it, which a container makes as it likes: too many of them are not
followed, and then the group has no sample.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

FLAGS, GROUPS = Path("/proc/kpageflags"), Path("/proc/kpagecgroup")  # 8 bytes of each page; inode numbers of groups
_IOMEM = Path("/proc/iomem")
_GENERATIONS = Path("/sys/kernel/mm/lru_gen/enabled")
# Bits of the flags: on a list of pages that the kernel may take; mapped by a process; in swap if it is taken; the later
# pages of a large one, whose first page has what is known of all; locked in memory
_LRU, _MAPPED, _SWAPPED, _FIRST, _LATER, _LOCKED = 1 << 5, 1 << 11, 1 << 14, 1 << 15, 1 << 16, 1 << 18
_LARGE = 512  # pages, the largest of these pages; they are aligned to their size
_INNER = 2048  # groups inside of a group
_DRAWS = 16384  # pages that are read, of all of the node

Kind = tuple[str, str]  # a sliver, and `file` or `anon`


@dataclass(frozen=True, slots=True)
class Sample:
    """Numbers of pages, with those that were drawn more than once. unseen: drawn pages whose use cannot be seen."""

    pages: list[int] = field(default_factory=list)
    unseen: list[int] = field(default_factory=list)


def inner_groups(group: Path) -> list[int] | None:
    """The inode numbers of a group and those inside of it; None if there are too many or it has ended."""
    found, places = [], [group]
    while places:
        place = places.pop()
        try:
            found.append(place.stat().st_ino)
            with os.scandir(place) as entries:
                places += [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
        except OSError:  # a group inside may end meanwhile
            if place == group:
                return None
        if len(found) + len(places) > _INNER:
            return None
    return found


def memory_ranges(iomem: str) -> list[range]:
    """The numbers of the machine's pages. iomem: as /proc/iomem, whose addresses are zero for users. Pure."""
    found = []
    for line in iomem.splitlines():
        place, _, name = line.partition(" : ")
        if name == "System RAM" and not line.startswith(" "):
            first, last = (int(one, 16) for one in place.split("-"))
            found.append(range(-(-first // 4096), (last + 1) // 4096))
    return [one for one in found if one]


def has_generations(file: Path = _GENERATIONS) -> bool:
    """Whether the kernel sorts pages by generations. Then a read of a file leaves no trace in pages that none maps."""
    with suppress(OSError, ValueError):
        return bool(int(file.read_text(), 16) & 1)
    return False


@dataclass(slots=True)
class PageSamples:
    """Draws pages. Raises OSError if the kernel has no such tables, or keeps them from this user."""

    flags: Path = FLAGS
    groups: Path = GROUPS
    iomem: Path = _IOMEM
    generations: Path = _GENERATIONS
    dice: random.Random = field(default_factory=random.Random)

    def draw(self, owners: Mapping[int, str], kinds: Sequence[Kind], most: int) -> dict[Kind, Sample]:
        """Random pages of `kinds`, at most `most` of each whose use can be seen.

        owners: slivers by the inode numbers of their groups.
        """
        ranges = memory_ranges(self.iomem.read_text())
        weights = [len(one) for one in ranges]
        found = {one: Sample() for one in kinds}
        open_ = set(kinds)
        if not ranges:
            return found
        with self._tables() as tables:
            for place in self.dice.choices(ranges, weights, k=_DRAWS):
                page = tables.first(self.dice.choice(place))
                kind = None if page is None else tables.kind(page, owners)
                if page is None or kind not in open_:
                    continue
                sample = found[kind]
                (sample.pages if tables.sees(page) else sample.unseen).append(page)
                if len(sample.pages) >= most or len(sample.unseen) >= 4 * most:
                    open_.remove(kind)
                    if not open_:
                        break
        return found

    def still(self, owners: Mapping[int, str], kind: Kind, pages: set[int]) -> set[int]:
        """Those of the pages that are still of this kind."""
        with self._tables() as tables:
            return {one for one in pages if tables.first(one) == one and tables.kind(one, owners) == kind}

    @contextmanager
    def _tables(self) -> Iterator[_Tables]:
        with self.flags.open("rb", buffering=0) as flags, self.groups.open("rb", buffering=0) as groups:
            yield _Tables(flags.fileno(), groups.fileno(), has_generations(self.generations))


@dataclass(slots=True)
class _Tables:
    flags: int
    groups: int
    generations: bool
    _flags: int = 0  # of the page of the last call of `first`

    def first(self, page: int) -> int | None:
        """The first page of the large one in which a page is, or itself; None if the kernel cannot take it."""
        self._flags = self._read(self.flags, page)
        if self._flags & _LATER:
            page = self._first_of_large(page)
        return page if self._flags & _LRU and not self._flags & (_LOCKED | _LATER) else None

    def kind(self, page: int, owners: Mapping[int, str]) -> Kind | None:
        """Whose page it is. page: of the last call of `first`."""
        owner = owners.get(self._read(self.groups, page))
        return None if owner is None else (owner, "anon" if self._flags & _SWAPPED else "file")

    def sees(self, page: int) -> bool:
        """Whether the kernel sees each use of it. page: of the last call of `first`."""
        return bool(self._flags & _MAPPED) or not self.generations

    def _first_of_large(self, page: int) -> int:
        start = page // _LARGE * _LARGE
        data = os.pread(self.flags, 8 * (page - start), 8 * start)
        before = struct.unpack(f"={len(data) // 8}Q", data)
        for number in range(len(before) - 1, -1, -1):
            if not before[number] & _LATER:
                if before[number] & _FIRST:
                    self._flags = before[number]
                    return start + number
                break
        return page

    @staticmethod
    def _read(table: int, page: int) -> int:
        return int.from_bytes(os.pread(table, 8, 8 * page), "little")
