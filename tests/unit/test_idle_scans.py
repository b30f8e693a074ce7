"""Scans run while little memory is free, cost a bounded part of a processor, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from slicemgr.agent.checks import kernel
from slicemgr.agent.chores.idle_scans import IdleScans
from slicemgr.drivers.kernel import cgroup, idle_pages
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.drivers.kernel.idle_pages import Tracker
from slicemgr.drivers.kernel.memory_groups import Held
from slicemgr.drivers.kernel.page_samples import Kind, PageSamples, Sample
from slicemgr.errors import Failed
from slicemgr.policy import idle

MIB = 1 << 20
COST = 0.1  # seconds of processor time of each part of a scan
STAT = f"inactive_anon {MIB}\nactive_anon {9 * MIB}\ninactive_file {40 * MIB}\nactive_file {60 * MIB}\n"


class Half(Tracker):
    """Every second page stays idle."""

    def __init__(self) -> None:
        self.marked: list[int] = []
        self.ended, self.fails = 0, False

    def mark(self, pages: Collection[int]) -> None:
        if self.fails:
            raise Failed("another program uses DAMON")
        self.marked = sorted(pages)

    def idle(self) -> set[int]:
        return set(self.marked[::2])

    def end(self) -> None:
        self.ended += 1


class Pages(PageSamples):
    """Of each kind as many pages as are wanted, with the numbers of the kind."""

    asked: list[Kind]

    def draw(self, owners: object, kinds: object, most: int) -> dict[Kind, Sample]:
        assert isinstance(kinds, list)
        self.asked = kinds
        return {kind: Sample(list(range(1000 * n, 1000 * n + most))) for n, kind in enumerate(kinds)}

    def still(self, owners: object, kind: Kind, pages: set[int]) -> set[int]:
        return pages


class Scans(IdleScans):
    """Of a node with one container and little free memory."""

    time, used, free, swap = 0.0, 0.0, 10, 0

    def __init__(self, folder: Path) -> None:
        self.group = folder / "group"
        self.group.mkdir()
        (self.group / "memory.stat").write_text(STAT)
        (self.group / "memory.current").write_text(str(128 * MIB))
        measure = lambda: Memory(100, 100, self.free, self.swap)  # noqa: E731
        super().__init__(folder, lambda: True, measure, lambda: {"a-0": self.group}, Pages(), lambda: self.time)
        self.spent = self.count
        self.half = self.tracker = Half()

    def count(self) -> float:
        self.used += COST / 2
        return self.used

    def run(self, seconds: float) -> list[float]:
        """The times at which scans began."""
        found, end = [], self.time + seconds
        while self.time < end:
            before = self._scan
            self.step()
            found += [self.time] if self._scan is not None and before is None else []
            self.time += 5
        return found

    def idle_mib(self) -> float:
        kinds = {"file": (40 * MIB, 100 * MIB), "anon": (MIB, 10 * MIB)}
        return self.idle(self.group, Held(128 * MIB, 0, 0, 0, kinds)) / MIB


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scans:
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    monkeypatch.setattr(idle_pages, "tracker", lambda note: None)
    return Scans(tmp_path)


def test_an_estimate_takes_the_place_of_the_lists_and_ages(scans: Scans) -> None:
    assert scans.idle_mib() == 41, "before the first scan"
    scans.run(idle.WINDOW)
    assert scans.idle_mib() == 41, "while it lasts"
    scans.run(5)
    assert 40 < scans.idle_mib() - 1 < 50, "half, as a lower bound, and of anonymous memory the lists"
    scans.free = 90
    scans.run(idle.FRESH + 10)
    assert scans.idle_mib() == 41
    assert scans.half.ended == 1


def test_memory_of_programs_is_looked_at_only_if_there_is_swap(scans: Scans) -> None:
    scans.run(5)
    assert isinstance(scans.pages, Pages) and scans.pages.asked == [("a-0", "file")]
    scans.swap = 1
    scans.run(200)
    assert sorted(scans.pages.asked) == [("a-0", "anon"), ("a-0", "file")]
    scans.run(100)
    assert scans.idle_mib() < 40 + 5 + 10


def test_it_costs_no_more_than_its_part_of_a_processor(scans: Scans) -> None:
    begun = scans.run(3600)
    assert len(begun) > 10, "and it uses its part"
    assert scans.cost <= 3600 * idle.COST + 2 * COST


def test_no_scan_begins_while_much_is_free_or_nothing_uses_it(scans: Scans) -> None:
    scans.free = 26
    assert scans.run(600) == []
    scans.free, scans.wanted = 10, lambda: False
    assert scans.run(600) == []
    scans.wanted = lambda: True
    assert len(scans.run(10)) == 1


def test_a_container_that_has_ended_is_forgotten(scans: Scans) -> None:
    scans.run(idle.WINDOW + 5)
    assert scans.estimates
    scans.run(60)
    (scans.group / "memory.stat").unlink()
    scans.find = dict
    scans.run(600)
    assert scans.idle_mib() == 41


def test_after_an_error_no_scan_is_under_way(scans: Scans) -> None:
    scans.half.fails = True
    with pytest.raises(Failed):
        scans.step()
    assert scans._scan is None and scans.half.ended == 1
    scans.half.fails = False
    assert len(scans.run(10)) == 1
    with scans:
        assert scans.half.ended == 2, "also what an agent left that was killed"
    assert scans.half.ended == 3, "the end of the agent ends it"


def test_a_kernel_without_a_tracker_is_left_alone(scans: Scans) -> None:
    scans.tracker = None
    assert scans.run(600) == []
    assert scans.idle_mib() == 41


@pytest.mark.parametrize(
    ("tracker", "free", "generations", "ok", "says"),
    [
        ("PageIdle", True, False, True, "found by page idle tracking"),
        ("PageIdle", True, True, True, "not mapped, by the kernel's lists"),
        ("Damon", True, False, True, "found by DAMON"),
        ("Damon", False, False, None, "another program uses DAMON"),
        ("", True, True, None, "no pages are tracked"),
    ],
)
def test_doctor_says_how_idle_memory_is_found(
    tracker: str, free: bool, generations: bool, ok: bool | None, says: str
) -> None:
    check = kernel.idle(tracker, free=free, generations=generations)
    assert check.ok is ok and says in check.detail
    assert bool(check.remedy) == (ok is not True)
