"""Events about the memory that a node took: who learns of what, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from bare_service import Service

from slicemgr.agent.chores.memory import MemoryController
from slicemgr.agent.chores.takings import Takings
from slicemgr.config import MemoryConfig
from slicemgr.policy.memory import State, Targets
from slicemgr.store import tables as t
from slicemgr.store.memory_promises import Promise

CALM, SHORT, FULL = State(), State(short=True), State(full=True)
MIB = 1 << 20


def promise(number: int, slice: str = "exp") -> Promise:
    return Promise(f"abcdefgh-{number}", "lxc", 0, 100, 1 << 30, number, slice, "lab" if slice else "")


def test_users_learn_what_was_taken_of_their_slice_once_an_hour() -> None:
    spare, other = promise(7, ""), promise(3, "other")
    promises, takings = [promise(0), promise(1), other, spare], Takings()

    def learned(sizes: dict[str, int], now: float) -> list[str]:
        takings.add(SHORT, CALM, sizes, now)
        return [f"{one.project}/{one.slice}: {one.detail}" for one in takings.of_slices(CALM, promises, now)]

    sizes = {promises[0].id: 3 * MIB, promises[1].id: 5 * MIB, other.id: 1000, spare.id: 9 * MIB}
    [text] = learned(sizes, 100.0)
    assert text.startswith("lab/exp: ") and text.endswith(": 3 MiB of sliver 0, 5 MiB of sliver 1"), text
    again = {promises[0].id: 2 * MIB, other.id: 2 * MIB}
    assert [one.partition(":")[0] for one in learned(again, 3000.0)] == ["lab/other"]
    assert [one.partition(":")[0] for one in learned(again, 3800.0)] == ["lab/exp"]
    assert learned({}, 9000.0) == []


def test_users_learn_that_a_sliver_could_not_grow() -> None:
    takings, promises = Takings(), [promise(0), promise(1), promise(2)]
    takings.stop({promises[1].id, promises[2].id})
    takings.add(SHORT, CALM, {promises[0].id: 3 * MIB, promises[1].id: 5 * MIB}, 0.0)
    [one] = takings.of_slices(CALM, promises, 0.0)
    assert one.detail == (
        "memory was short, and sliver 1, sliver 2 could not grow beyond the guarantee; "
        "the node took what is beyond guarantees: 3 MiB of sliver 0, 5 MiB of sliver 1"
    )
    takings.stop({promises[1].id})
    [one] = takings.of_slices(CALM, promises, 4000.0)
    assert one.detail == "memory was short, and sliver 1 could not grow beyond the guarantee"
    assert takings.of_slices(CALM, promises, 8000.0) == []


def test_users_learn_of_it_when_it_ends_or_while_it_goes_on_for_long() -> None:
    takings, before, found = Takings(), CALM, []
    for now, after, amount in ((1.0, FULL, 1), (2.0, FULL, 2), (3601.0, FULL, 0), (3602.0, FULL, 4), (7300.0, CALM, 0)):
        takings.add(before, after, {promise(0).id: amount * MIB}, now)
        found += [(now, one.detail.rpartition(": ")[2]) for one in takings.of_slices(after, [promise(0)], now)]
        before = after
    assert found == [(3601.0, "3 MiB of sliver 0"), (7300.0, "4 MiB of sliver 0")]


@pytest.mark.parametrize("took", [True, False])
def test_the_sum_is_that_of_one_shortage(took: bool) -> None:
    takings, before, details = Takings("n1: "), CALM, []
    for after, amount in ((SHORT, 5), (SHORT, 6), (CALM, 0), (SHORT, 9), (CALM, 0)):
        takings.add(before, after, {"abcdefgh-0": amount}, 0.0)
        details += [one.detail for one in takings.of_node(before, after, 7, 50, took=took)]
        before = after
    does, did = ("takes", "took") if took else ("would take", "would have taken")
    begun = f"n1: 50 B are available; the node {does} 7 B beyond guarantees"
    assert details == [begun, f"n1: ended; the node {did} 11 B from 1 sliver", begun, *details[3:]]
    assert details[3].endswith(f"{did} 9 B from 1 sliver")


@pytest.mark.parametrize(
    ("mode", "actions"), [("on", ["memory short", "memory short", "memory taken"]), ("observe", ["memory short"] * 2)]
)
def test_events_are_recorded(mode: str, actions: list[str], tmp_path: Path) -> None:
    """Where the node only observes, nothing was taken of anybody."""
    with Service(tmp_path, memory=MemoryConfig(mode)) as service:
        controller = MemoryController(service.config, service.store)
        for state in (SHORT, CALM):
            before, controller._state = controller._state, state
            controller._tell(before, Targets({}, {}), {promise(0).id: MIB}, 0, [promise(0)], 0.0)
        with service.store.read() as c:
            query = sa.select(t.events.c.action).where(t.events.c.action.startswith("memory ")).order_by(t.events.c.id)
            assert sorted(c.scalars(query)) == actions
