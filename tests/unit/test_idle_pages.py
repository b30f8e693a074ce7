"""Pages of slivers are drawn from the kernel's tables, marked, and looked at again; here in files like the kernel's."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from slicemgr.drivers.kernel import idle_pages, page_samples
from slicemgr.drivers.kernel.idle_pages import Damon, PageIdle
from slicemgr.drivers.kernel.page_samples import PageSamples, inner_groups, memory_ranges
from slicemgr.errors import Failed

LRU, MAPPED, SWAPPED, FIRST, LATER, LOCKED = 1 << 5, 1 << 11, 1 << 14, 1 << 15, 1 << 16, 1 << 18
OWNERS = {7: "a-0", 8: "a-0", 9: "b-0"}
IOMEM = """\
00000000-00000fff : Reserved
00001000-0004ffff : System RAM
  00001000-00001fff : System RAM
00060000-000fffff : System RAM
"""


def tables(folder: Path, pages: dict[int, tuple[int, int]], generations: str = "0x0000\n") -> PageSamples:
    """The kernel's tables with these pages: flags and the group of each."""
    for name, place in (("flags", 0), ("groups", 1)):
        (folder / name).write_bytes(b"".join(struct.pack("=Q", pages.get(one, (0, 0))[place]) for one in range(256)))
    (folder / "iomem").write_text(IOMEM)
    (folder / "generations").write_text(generations)
    names = ("flags", "groups", "iomem", "generations")
    flags, groups, iomem, generation_file = (folder / name for name in names)
    return PageSamples(flags, groups, iomem, generation_file, random.Random(1))


def test_the_ranges_of_memory_are_those_of_the_machine() -> None:
    assert memory_ranges(IOMEM) == [range(1, 80), range(96, 256)]
    assert memory_ranges("00000000-00000000 : System RAM\n") == [], "as a user sees them"


def test_only_pages_that_the_kernel_can_take_are_drawn(tmp_path: Path) -> None:
    pages = {
        **dict.fromkeys(range(10, 20), (LRU, 7)),
        **dict.fromkeys(range(20, 30), (LRU | SWAPPED | MAPPED, 8)),
        **dict.fromkeys(range(30, 40), (LRU | LOCKED, 7)),
        **dict.fromkeys(range(40, 50), (0, 7)),
        **dict.fromkeys(range(50, 60), (LRU, 55)),
        **dict.fromkeys(range(80, 96), (LRU, 9)),
    }
    kinds = [("a-0", "file"), ("a-0", "anon"), ("b-0", "file")]
    drawn = tables(tmp_path, pages).draw(OWNERS, kinds, 50)
    assert set(drawn[kinds[0]].pages) == set(range(10, 20)) and len(drawn[kinds[0]].pages) == 50
    assert set(drawn[kinds[1]].pages) == set(range(20, 30))
    assert drawn[kinds[2]].pages == [], "no memory of the machine has these numbers"
    assert not any(one.unseen for one in drawn.values())


def test_a_large_page_stands_for_its_parts_by_the_first(tmp_path: Path) -> None:
    pages = {128: (LRU | FIRST | SWAPPED, 9), **dict.fromkeys(range(129, 144), (LATER, 0)), 144: (LRU | SWAPPED, 9)}
    drawn = tables(tmp_path, pages).draw(OWNERS, [("b-0", "anon")], 400)[("b-0", "anon")].pages
    assert set(drawn) == {128, 144}
    assert drawn.count(128) > 10 * drawn.count(144), "by its size"


def test_reads_of_files_are_unseen_where_pages_have_generations(tmp_path: Path) -> None:
    pages = {10: (LRU, 7), 11: (LRU | MAPPED, 7)}
    samples = tables(tmp_path, pages, "0x0007\n")
    drawn = samples.draw(OWNERS, [("a-0", "file")], 20)[("a-0", "file")]
    assert (set(drawn.pages), set(drawn.unseen)) == ({11}, {10})
    assert page_samples.has_generations(tmp_path / "generations")
    assert not page_samples.has_generations(tmp_path / "none")


def test_pages_that_were_given_away_do_not_count(tmp_path: Path) -> None:
    pages = {10: (LRU, 7), 11: (LRU, 9), 12: (LRU | SWAPPED, 7), 13: (0, 7)}
    assert tables(tmp_path, pages).still(OWNERS, ("a-0", "file"), {10, 11, 12, 13}) == {10}


def test_groups_inside_of_a_group_belong_to_it_unless_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, other = tmp_path / "a", tmp_path / "b"
    for one in (group / "x" / "y", group / "z", other):
        one.mkdir(parents=True)
    (group / "link").symlink_to(other)
    wanted = [one.stat().st_ino for one in (group, group / "x", group / "x" / "y", group / "z")]
    assert sorted(inner_groups(group) or []) == sorted(wanted)
    assert inner_groups(tmp_path / "gone") is None
    monkeypatch.setattr(page_samples, "_INNER", 3)
    assert inner_groups(group) is None


def test_page_idle_tracking_marks_bits_and_reads_them_again(tmp_path: Path) -> None:
    bitmap = tmp_path / "bitmap"
    bitmap.write_bytes(bytes(32))
    tracker = PageIdle(bitmap)
    tracker.mark([0, 63, 64, 200])
    assert bitmap.read_bytes() == struct.pack("=4Q", 1 | 1 << 63, 1, 0, 1 << 8)
    bitmap.write_bytes(struct.pack("=4Q", 1 << 63 | 2, 0, 0, 1 << 8))
    assert tracker.idle() == {63, 200}
    tracker.end()
    assert tracker.idle() == set()


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    """The files of DAMON, which the kernel would make as numbers of them are written."""
    root = tmp_path / "kdamonds"
    context = root / "0" / "contexts" / "0"
    files = [root / "nr_kdamonds", root / "0" / "state", root / "0" / "contexts" / "nr_contexts"]
    names = (
        *("operations", "monitoring_attrs/intervals/sample_us", "monitoring_attrs/intervals/aggr_us"),
        *("monitoring_attrs/intervals/update_us", "monitoring_attrs/nr_regions/max", "targets/nr_targets"),
        *("targets/0/regions/nr_regions", "schemes/nr_schemes", "schemes/0/action", "schemes/0/apply_interval_us"),
        *("schemes/0/access_pattern/sz/max", "schemes/0/access_pattern/age/max"),
        *(f"targets/0/regions/{number}/{name}" for number in range(2) for name in ("start", "end")),
        *(f"schemes/0/tried_regions/{number}/{name}" for number in range(2) for name in ("start", "end")),
        "schemes/0/tried_regions/total_bytes",
    )
    for file in (*files, *(context / name for name in names)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (root / "nr_kdamonds").write_text("0\n")
    return root


def test_damon_watches_regions_of_one_page(admin: Path, tmp_path: Path) -> None:
    note, context = tmp_path / "note", admin / "0" / "contexts" / "0"
    tracker = idle_pages.tracker(note, tmp_path / "none", admin)
    assert isinstance(tracker, Damon) and tracker.is_free()
    tracker.mark([9, 5, 9])
    regions = [
        [int((context / "targets/0/regions" / str(one) / name).read_text()) for name in ("start", "end")]
        for one in (0, 1)
    ]
    assert regions == [[5 * 4096, 6 * 4096], [9 * 4096, 10 * 4096]]
    assert (context / "targets/0/regions/nr_regions").read_text() == "2"
    assert (admin / "0" / "state").read_text() == "on"
    for number, (start, end) in enumerate(((5, 6), (9, 11))):
        (context / "schemes/0/tried_regions" / str(number) / "start").write_text(f"{start * 4096}\n")
        (context / "schemes/0/tried_regions" / str(number) / "end").write_text(f"{end * 4096}\n")
    assert tracker.idle() == {5, 9, 10}
    assert (admin / "0" / "state").read_text().startswith("update_schemes_tried_regions")


def test_damon_has_one_user_and_a_killed_agent_leaves_none(admin: Path, tmp_path: Path) -> None:
    note, number = tmp_path / "note", admin / "nr_kdamonds"
    Damon(note, admin).mark([5, 9])
    assert number.read_text().strip() == "1"
    Damon(note, admin).end()
    assert number.read_text().strip() == "0" and not note.exists()
    number.write_text("1\n")
    other = Damon(note, admin)
    with pytest.raises(Failed, match="another program uses DAMON"):
        other.mark([5, 9])
    other.end()
    assert number.read_text() == "1\n", "it is the other program's"


def test_an_older_damon_is_left_as_it_was(admin: Path, tmp_path: Path) -> None:
    (admin / "0" / "contexts" / "0" / "schemes" / "0" / "apply_interval_us").unlink()
    tracker = Damon(tmp_path / "note", admin)
    with pytest.raises(Failed, match="only at the end"):
        tracker.mark([5, 9])
    tracker.end()
    assert (admin / "nr_kdamonds").read_text().strip() == "0"


def test_page_idle_tracking_is_preferred_and_a_kernel_may_have_none(admin: Path, tmp_path: Path) -> None:
    (tmp_path / "bitmap").touch()
    assert isinstance(idle_pages.tracker(tmp_path / "note", tmp_path / "bitmap", admin), PageIdle)
    assert idle_pages.tracker(tmp_path / "note", tmp_path / "none", tmp_path / "none") is None
