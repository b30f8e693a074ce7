"""A node that floods the hub waits for its turns; others, and what is within its share, do not."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slicemgr.hub import turns
from slicemgr.hub.turns import Turns


def made() -> tuple[Turns[int], SimpleNamespace]:
    clock = SimpleNamespace(now=0.0)
    return Turns(lambda: clock.now), clock


def test_a_flood_waits_and_others_do_not() -> None:
    found, clock = made()
    for number in range(1000):
        found.add("hostile", 0, number)
    found.add("honest", 0, 1)
    first = list(found.due(10_000))
    assert Counter(identity for identity, _ in first) == {"hostile": turns.MOST, "honest": 1}
    assert [identity for identity, _ in first].index("honest") == 1, "in turn"
    clock.now = 1.0
    found.add("honest", 0, 2)
    later = list(found.due(10_000))
    assert Counter(identity for identity, _ in later) == {"hostile": turns.RATE, "honest": 1}
    numbers = [number for identity, number in [*first, *later] if identity == "hostile"]
    assert numbers == list(range(len(numbers))), "in their order"


def test_large_messages_take_more_turns() -> None:
    found, _ = made()
    for number in range(100):
        found.add("hostile", 1 << 20, number)
    assert len(list(found.due(10_000))) == turns.MOST // 17


def test_the_largest_message_gets_its_turn() -> None:
    found, clock = made()
    found.add("one", 4 << 20, 1)
    found.forget("one")
    found.add("one", 4 << 20, 2)
    found.add("one", 4 << 20, 3)
    assert list(found.due(9)) == [("one", 2)]
    clock.now = 3600.0
    assert list(found.due(9)) == [("one", 3)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4 << 20), st.floats(0, 5)), max_size=80))
def test_nothing_is_lost_or_reordered(steps: list[tuple[str, int, float]]) -> None:
    found, clock = made()
    wanted: dict[str, list[int]] = {}
    seen: dict[str, list[Any]] = {}
    for number, (identity, size, seconds) in enumerate(steps):
        found.add(identity, size, number)
        wanted.setdefault(identity, []).append(number)
        clock.now += seconds
        for one, message in found.due(3):
            seen.setdefault(one, []).append(message)
    for _ in range(3 * len(steps)):
        clock.now += 60.0
        for one, message in found.due(3):
            seen.setdefault(one, []).append(message)
    assert seen == wanted
