"""Removing leftovers: the result of each, and those that must wait until btrfs has freed deleted subvolumes."""

from __future__ import annotations

from dataclasses import dataclass, field

from slicemgr.agent.garbage import Leftover, collect
from slicemgr.errors import Failed


@dataclass
class Pool:
    """Quota groups that can be removed once btrfs has freed their subvolumes."""

    frees: bool = True
    broken: bool = False
    waits: int = 0
    freed: bool = False
    removed: list[str] = field(default_factory=list)

    def destroy_group(self, name: str) -> bool:
        if self.freed:
            self.removed.append(name)
        return self.freed

    def wait(self) -> bool:
        self.waits += 1
        if self.broken:
            raise Failed("the pool does not answer")
        self.freed = self.frees
        return self.freed

    def leftovers(self) -> list[Leftover]:
        def fail() -> None:
            raise OSError(16, "Device or resource busy")

        return [
            Leftover("sliver", "a", lambda: self.removed.append("a")),
            Leftover("base", "b", fail),
            Leftover("quota group", "1/7", lambda: self.destroy_group("1/7")),
            Leftover("quota group", "1/8", lambda: self.destroy_group("1/8")),
            Leftover("link", "c", lambda: self.removed.append("c")),
        ]


def outcome(pool: Pool) -> dict[str, tuple[bool, str]]:
    items = collect(pool.leftovers(), apply=True, freed=pool.wait)["items"]
    assert [one["what"] for one in items] == ["sliver", "base", "quota group", "quota group", "link"]
    return {one["name"]: (one["removed"], one["detail"]) for one in items}


def test_a_group_is_removed_after_its_subvolumes_were_freed() -> None:
    pool = Pool()
    found = outcome(pool)
    assert (pool.waits, pool.removed) == (1, ["a", "c", "1/7", "1/8"])
    assert [name for name, (removed, _) in found.items() if not removed] == ["b"] and "busy" in found["b"][1]


def test_a_group_whose_subvolumes_are_not_freed_remains() -> None:
    """And does not hide the other ones."""
    found = outcome(Pool(frees=False))
    assert {name for name, (removed, _) in found.items() if removed} == {"a", "c"}
    assert all("btrfs still frees" in found[name][1] for name in ("1/7", "1/8")) and "busy" in found["b"][1]


def test_a_wait_that_fails_is_a_reason() -> None:
    found = outcome(Pool(broken=True))
    assert {name for name, (removed, _) in found.items() if removed} == {"a", "c"}
    assert "the pool does not answer" in found["1/7"][1] and "busy" in found["b"][1]


def test_without_such_a_group_there_is_no_wait() -> None:
    pool = Pool(freed=True)
    outcome(pool)
    assert pool.waits == 0


def test_a_list_removes_nothing() -> None:
    pool = Pool()
    items = collect(pool.leftovers(), apply=False, freed=pool.wait)["items"]
    assert not any(one["removed"] or one["detail"] for one in items) and (pool.waits, pool.removed) == (0, [])


def test_kept_disks_are_listed_and_stay() -> None:
    """Until their time is over, the agent deletes them itself."""
    removed: list[str] = []
    found = [
        Leftover("kept disk", "k", lambda: removed.append("k"), "it is kept until 2026-11-24T10:00:00Z"),
        Leftover("sliver", "a", lambda: removed.append("a")),
    ]
    kept, other = collect(found, apply=True)["items"]
    assert kept["detail"] == "it is kept until 2026-11-24T10:00:00Z" and not kept["removed"]
    assert other["removed"] and removed == ["a"]
    kept, _ = collect(found, apply=True, kept=True)["items"]
    assert kept["removed"] and removed == ["a", "k", "a"], "at the removal of slicemgr"
