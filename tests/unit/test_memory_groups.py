"""The kernel spares what is guaranteed to groups, and the sum of the groups above them (v2)."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from slicemgr.agent.checks.kernel import guarantees, reclaim
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.kernel.counters import read_file
from slicemgr.drivers.kernel.memory_groups import Held, Take

MIB = 1 << 20


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory_groups, "MOUNT", tmp_path)
    return tmp_path


def made(mount: Path, name: str, bytes_: str = "0") -> Path:
    """The group of a sliver as systemd and libvirt make it, with the groups above it."""
    group = mount / "machine.slice" / f"{name}.scope" / "libvirt"
    group.mkdir(parents=True)
    for one in (group, *group.parents):
        if one == mount:
            break
        (one / "memory.min").write_text("0\n")
    (group / "memory.min").write_text(f"{bytes_}\n")
    return group


def spared(group: Path) -> str:
    return (group / "memory.min").read_text().strip()


def test_the_groups_above_get_the_sum(mount: Path) -> None:
    one, two = made(mount, "one"), made(mount, "two", bytes_=str(9 * MIB))
    memory_groups.protect({one: 100 * MIB, two: 50 * MIB + 5})
    assert [spared(one), spared(two)] == [str(100 * MIB), str(50 * MIB)], "whole pages"
    assert [spared(one.parent), spared(two.parent)] == [str(100 * MIB), str(50 * MIB)]
    assert spared(mount / "machine.slice") == str(150 * MIB)
    assert not (mount / "memory.min").exists(), "the kernel's root group has none"


def test_what_others_are_spared_is_added(mount: Path) -> None:
    one, other = made(mount, "one"), made(mount, "other")
    (other.parent / "memory.min").write_text("max\n")
    memory_groups.protect({one: MIB})
    assert spared(other.parent) == "max", "it belongs to others"
    assert int(spared(mount / "machine.slice")) >= 1 << 60
    (other.parent / "memory.min").write_text(f"{3 * MIB}\n")
    memory_groups.protect({one: MIB})
    assert spared(mount / "machine.slice") == str(4 * MIB)


def test_a_value_that_is_right_is_not_written_again(mount: Path) -> None:
    one = made(mount, "one")
    memory_groups.protect({one: MIB})
    before = [(path / "memory.min").stat().st_mtime_ns for path in (one, one.parent, one.parent.parent)]
    memory_groups.protect({one: MIB})
    assert [(path / "memory.min").stat().st_mtime_ns for path in (one, one.parent, one.parent.parent)] == before
    memory_groups.protect({one: 0})
    assert [spared(one), spared(one.parent), spared(one.parent.parent)] == ["0", "0", "0"]


def test_a_group_that_has_ended_is_left_out(mount: Path) -> None:
    one = made(mount, "one")
    memory_groups.protect({mount / "machine.slice" / "gone.scope" / "libvirt": MIB, one: MIB})
    assert spared(mount / "machine.slice") == str(MIB)


def test_a_group_gets_room_in_swap_while_memory_is_taken_of_it(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    one, written = made(mount, "one"), list[str]()
    for name, text in (("current", "9000000\n"), ("swap.max", "4096\n"), ("swap.current", "4096\n"), ("reclaim", "")):
        (one / f"memory.{name}").write_text(text)

    def seen(path: str | Path) -> bytes:
        written.append((one / "memory.swap.max").read_text())
        return read_file(path)

    monkeypatch.setattr(memory_groups, "read_file", seen)
    gone = Take(mount / "machine.slice" / "gone.scope", 5 * MIB, 8 * MIB)
    assert memory_groups.take({"one": Take(one, 5 * MIB, 8 * MIB), "gone": gone}) == {"one": 5 * MIB}
    assert str(8 * MIB + 4096) in written, "while it is taken"
    assert (one / "memory.reclaim").read_text() == str(MIB), "the last part"
    assert (one / "memory.swap.max").read_text() == "4096", "afterwards it has no room for more"


def test_the_soft_limit_of_a_group_is_written_if_it_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, most = tmp_path / "memory.soft_limit_in_bytes", (1 << 63) - 4096
    file.write_text(f"{most}\n")
    memory_groups.take_first({tmp_path: 5 * MIB + 7, tmp_path / "gone": 0})
    assert file.read_text() == str(5 * MIB)
    monkeypatch.setattr(Path, "write_text", lambda *_: pytest.fail("it is written again"))
    memory_groups.take_first({tmp_path: 5 * MIB})


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_memory_of_programs_can_be_taken_only_with_swap(tmp_path: Path, version: str) -> None:
    prefix, usage = ("", "current") if version == "v2" else ("total_", "usage_in_bytes")
    lists = {"inactive_anon": 1, "active_anon": 2, "inactive_file": 4, "active_file": 8}
    (tmp_path / "memory.stat").write_text("".join(f"{prefix}{name} {size}\n" for name, size in lists.items()))
    (tmp_path / f"memory.{usage}").write_text("20\n")
    assert memory_groups.held(tmp_path, version, swap=False) == Held(20, 4, 0, 12, {"file": (4, 12)})
    assert memory_groups.held(tmp_path, version, swap=True) == Held(20, 5, 0, 15, {"file": (4, 12), "anon": (1, 3)})


def test_what_is_on_its_way_to_swap_is_taken(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says that it took less. Afterwards the group has no room in swap, or a lower limit, or none."""
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    one, write = made(mount, "one"), Path.write_text
    for name, text in (("current", "90000000"), ("swap.max", str(3 * MIB)), ("swap.current", str(MIB))):
        (one / f"memory.{name}").write_text(text)

    def reclaim(path: Path, text: str) -> int:
        if path.name != "memory.reclaim":
            return write(path, text)
        swapped = one / "memory.swap.current"
        write(swapped, str(int(swapped.read_text()) + int(text) // 2))
        raise BlockingIOError

    monkeypatch.setattr(Path, "write_text", reclaim)
    taken = memory_groups.take({"one": Take(one, 5 * MIB, 8 * MIB)})["one"]
    assert 4 * MIB < taken < 5 * MIB and (one / "memory.swap.max").read_text() == str(MIB + taken)
    write(one / "memory.swap.max", "0\n")
    assert memory_groups.take({"one": Take(one, 5 * MIB, 8 * MIB)}) != {}
    assert (one / "memory.swap.max").read_text() == "0"
    write(one / "memory.swap.max", "max\n")
    assert memory_groups.take({"one": Take(one, 5 * MIB, 8 * MIB)}) != {}
    assert (one / "memory.swap.max").read_text() == "max\n"


def test_a_group_that_gives_less_is_asked_no_further(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel then tries for long. In the control it gives all, until there is no time left."""
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    one, asked, gives = made(mount, "one"), list[str](), True
    (one / "memory.current").write_text("9000000")
    write = Path.write_text

    def reclaim(path: Path, text: str) -> int:
        if path.name == "memory.reclaim":
            asked.append(text)
            if not gives:
                raise BlockingIOError
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", reclaim)
    assert memory_groups.take({"one": Take(one, 9 * MIB, 9 * MIB)}) == {"one": 9 * MIB}
    assert asked == [str(4 * MIB), str(4 * MIB), str(MIB)]
    gives = False
    assert memory_groups.take({"one": Take(one, 9 * MIB, 9 * MIB)}) == {"one": 0}
    assert len(asked) == 4
    monkeypatch.setattr(memory_groups, "_STEP", 0.0)
    assert memory_groups.take({"one": Take(one, 9 * MIB, 9 * MIB)}) == {}


def test_groups_have_their_turns_and_later_ones_the_time_that_is_left(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "version", lambda: "v2")
    groups, asked = {name: made(mount, name) for name in ("one", "two", "three")}, list[str]()
    write = Path.write_text

    def reclaim(path: Path, text: str) -> int:
        if path.name == "memory.reclaim":
            asked.append(path.parent.parent.name.split(".")[0])
        return write(path, text)

    for group in groups.values():
        (group / "memory.current").write_text("90000000")
    monkeypatch.setattr(Path, "write_text", reclaim)
    wanted = {name: Take(group, 9 * MIB, 90 * MIB) for name, group in groups.items()}
    later = {"three": wanted.pop("three")}
    assert memory_groups.take(wanted, later) == dict.fromkeys(groups, 9 * MIB)
    assert asked == [*["one", "two"] * 3, *["three"] * 3]
    assert memory_groups.take({}, later) == {"three": 9 * MIB}, "also if nothing else is taken"
    passed = iter(range(9))
    monkeypatch.setattr(memory_groups, "_STEP", 5.0)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(passed)))
    assert memory_groups.take(wanted, later) == {"one": 8 * MIB, "two": 8 * MIB}, "time for four parts"


@pytest.mark.parametrize(("version", "waited"), [("v2", 1234), ("v1", None)])
def test_how_long_programs_wait_for_memory_is_known_if_the_kernel_counts_it(
    tmp_path: Path, version: str, waited: int | None
) -> None:
    for name in ("memory.stat", "memory.current", "memory.usage_in_bytes"):
        (tmp_path / name).write_text("0\n")
    found = memory_groups.held(tmp_path, version, swap=False)
    assert found is not None and found.waited is None
    lines = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    (tmp_path / "memory.pressure").write_text(lines)
    found = memory_groups.held(tmp_path, version, swap=False)
    assert found is not None and found.waited == waited


def test_the_options_are_those_of_the_unified_hierarchy() -> None:
    mounts = "proc /proc proc rw,nosuid 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,memory_recursiveprot 0 0\n"
    assert cgroup.options(mounts) == {"rw", "nsdelegate", "memory_recursiveprot"}
    assert cgroup.options("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n") == frozenset()


@pytest.mark.parametrize(
    ("version", "controller", "ok"),
    [("v1", "on", True), ("v1", "observe", None), ("v2", "observe", True), ("v2", "on", True), ("v2", "off", None)],
)
def test_doctor_says_who_keeps_guarantees(version: str, controller: str, ok: bool | None) -> None:
    check = guarantees(version, controller)
    assert check.ok is ok
    assert bool(check.remedy) == (ok is not True)


@pytest.mark.parametrize(
    ("version", "swap", "zswap", "ok", "says"),
    [
        ("v2", 0, True, None, "no swap: page cache can be taken, the memory of programs cannot"),
        ("v1", 0, False, None, "no swap: page cache can be taken, the memory of programs cannot"),
        ("v2", 1 << 30, False, None, "which slivers cannot use by themselves; without zswap, each page is written"),
        ("v1", 1 << 30, False, None, "programs to 1 GiB of swap; without zswap"),
        ("v2", 1 << 30, True, True, "which slivers cannot use by themselves, compressed by zswap first"),
        ("v1", 1 << 30, True, True, "programs to 1 GiB of swap, compressed by zswap first"),
    ],
)
def test_doctor_says_which_memory_can_be_taken(
    version: str, swap: int, zswap: bool, ok: bool | None, says: str
) -> None:
    check = reclaim(version, swap, zswap=zswap)
    assert (check.ok, bool(check.remedy)) == (ok, ok is not True)
    assert says in check.detail
    assert ("add swap" in check.remedy) == (not swap)


@pytest.mark.parametrize(("text", "on"), [("Y\n", True), ("N\n", False), (None, False)])
def test_zswap_is_off_in_a_kernel_without_it(tmp_path: Path, text: str | None, on: bool) -> None:
    if text is not None:
        (tmp_path / "enabled").write_text(text)
    assert counters.zswap(str(tmp_path / "enabled")) is on


def test_a_group_may_use_swap_meanwhile_and_keeps_what_it_has_there(tmp_path: Path) -> None:
    groups = [tmp_path / name for name in ("a", "b", "gone", "v1")]
    for one in groups[:3]:
        one.mkdir()
        (one / "memory.swap.max").write_text("0\n")
        (one / "memory.swap.current").write_text("0\n")
    with memory_groups.swap_allowed(groups):
        assert [(one / "memory.swap.max").read_text() for one in groups[:3]] == ["max"] * 3
        (groups[1] / "memory.swap.current").write_text("8192\n")
        shutil.rmtree(groups[2])
    assert [int((one / "memory.swap.max").read_text()) for one in groups[:2]] == [0, 8192]
    assert not groups[2].exists() and not groups[3].exists()
