"""Properties of the policy that takes memory back, over drawn nodes and over traces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.model import GIB, MIB
from slicemgr.policy import memory
from slicemgr.policy.memory import Holding, Node, State, Targets

TOTAL = 16 * GIB
SHORT = Node(TOTAL, int(0.05 * TOTAL))
URGENT = Node(TOTAL, int(0.01 * TOTAL))

HOLDINGS = st.lists(
    st.builds(
        lambda guarantee, weight, charged, idle, reread, waited: Holding(
            "", guarantee * MIB, weight, charged * MIB, min(charged, idle) * MIB, reread * MIB, waited=waited
        ),
        st.integers(0, 2000),
        st.sampled_from([1, 50, 100, 200, 10_000]),
        st.integers(0, 4000),
        st.integers(0, 4000),
        st.sampled_from([0, 0, 0, 1, 100]),
        st.sampled_from([0.0, 0.0, 0.2]),
    ),
    max_size=8,
).map(lambda found: [replace(one, id=str(number)) for number, one in enumerate(found)])
NODES = st.builds(Node, st.sampled_from([8 * GIB, TOTAL]), st.integers(0, 4000).map(lambda size: size * MIB))
STATES = st.builds(State, st.booleans(), st.just({"0": 5.0}), st.just({"0": MIB, "1": MIB}))


@given(STATES, NODES, HOLDINGS, st.floats(0.1, 5))
def test_no_guarantee_is_touched_and_no_more_is_taken_than_is_needed(
    before: State, node: Node, holdings: list[Holding], elapsed: float
) -> None:
    after, targets = memory.step(before, node, holdings, 1.0, elapsed)
    held = {one.id: one for one in holdings}
    assert sum(targets.take.values()) <= targets.needed
    for name, amount in targets.take.items():
        assert 0 < amount <= held[name].charged - targets.guarantees[name]
        assert amount <= held[name].charged * memory.RATES[True] * elapsed
    if node.available >= memory.HIGH * node.total:
        assert not targets.take and not after.short
    if node.available >= memory.URGENT * node.total:
        assert all(amount <= held[name].idle for name, amount in targets.take.items())
        assert not set(targets.take) & set(after.quiet), "who reads back what it lost is left alone"


@given(HOLDINGS, st.integers(0, 10_000).map(lambda size: size * MIB))
def test_guarantees_that_the_node_does_not_have_are_reduced_by_weight(holdings: list[Holding], capacity: int) -> None:
    found = memory.guaranteed(holdings, capacity)
    promised = sum(one.guarantee for one in holdings)
    assert min(promised, capacity) - len(holdings) <= sum(found.values()) <= min(promised, capacity)
    assert all(found[one.id] <= one.guarantee for one in holdings)
    kept = {one.id: (one.weight, found[one.id] / one.guarantee) for one in holdings if one.guarantee}
    for weight, part in kept.values():
        assert all(part <= other + 1e-6 for heavier, other in kept.values() if heavier > weight)


def test_equal_slivers_lose_against_their_weight() -> None:
    holdings = [Holding("low", 0, 100, 4 * GIB, GIB), Holding("high", 0, 200, 4 * GIB, GIB)]
    _, targets = memory.step(State(), SHORT, holdings, 0, 1)
    assert targets.take["low"] == pytest.approx(2 * targets.take["high"], rel=1e-6)
    assert sum(targets.take.values()) == pytest.approx(targets.needed, abs=2)


def test_who_holds_twice_as_much_idle_loses_twice_as_much() -> None:
    holdings = [Holding("one", 0, 100, 4 * GIB, GIB // 4), Holding("two", 0, 100, 4 * GIB, GIB // 2)]
    _, targets = memory.step(State(), Node(TOTAL, int(0.059 * TOTAL)), holdings, 0, 1)
    assert targets.take["two"] == pytest.approx(2 * targets.take["one"], rel=1e-6)


def test_what_is_not_idle_is_taken_only_when_nearly_nothing_is_left() -> None:
    busy = [Holding("promised", 4 * GIB, 100, 4 * GIB, 0), Holding("beyond", GIB, 100, 4 * GIB, 0)]
    assert memory.step(State(), SHORT, busy, 0, 1)[1].take == {}
    _, targets = memory.step(State(), URGENT, busy, 0, 1)
    assert set(targets.take) == {"beyond"}
    assert targets.take["beyond"] == int(memory.RATES[True] * 4 * GIB)


def test_the_promise_of_the_higher_class_holds_when_the_node_shrinks() -> None:
    """A derivative cloud: the memory below the node is taken away."""
    holdings = [Holding("low", 2 * GIB, 100, 2 * GIB, 0), Holding("high", 2 * GIB, 10_000, 2 * GIB, 0)]
    assert memory.guaranteed(holdings, 4 * GIB) == {"low": 2 * GIB, "high": 2 * GIB}
    found = memory.guaranteed(holdings, 3 * GIB)
    assert found == {"low": GIB, "high": 2 * GIB}
    assert memory.guaranteed([replace(one, weight=100) for one in holdings], 3 * GIB) == {
        "low": 3 * GIB // 2,
        "high": 3 * GIB // 2,
    }


@dataclass
class World:
    """A node on which slivers use memory: each wants some bytes, and what it wants and lost it reads back.

    hog: bytes of the node that are no sliver's, by the second.
    """

    hog: Callable[[float], int]
    slivers: dict[str, Holding]
    wanted: dict[str, int]
    charged: dict[str, int]

    def run(self, seconds: int) -> list[tuple[Node, State, Targets]]:
        """Each second one step of the policy. Slivers also hold what they have read once, until it is taken."""
        state, found, reread = State(), [], dict.fromkeys(self.slivers, 0)
        for second in range(seconds):
            holdings = [
                replace(
                    one,
                    charged=self.charged[name],
                    idle=max(0, self.charged[name] - self.wanted[name]),
                    reread=reread[name],
                )
                for name, one in self.slivers.items()
            ]
            node = Node(TOTAL, max(0, TOTAL - self.hog(second) - sum(self.charged.values())))
            state, targets = memory.step(state, node, holdings, second, 1)
            found.append((node, state, targets))
            for name in self.slivers:
                left = self.charged[name] - targets.take.get(name, 0)
                reread[name] = max(0, self.wanted[name] - left)
                self.charged[name] = max(left, self.wanted[name])
        return found


def changes(states: Sequence[bool]) -> int:
    return sum(one != other for one, other in itertools.pairwise(states))


@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.integers(0, 3000), st.sampled_from([50, 100, 400])), min_size=1, max_size=4
    ),
    st.integers(0, 8).map(lambda size: size * GIB),
)
def test_a_steady_load_makes_it_take_once_and_then_rest(sizes: list[tuple[int, int, int]], hog: int) -> None:
    slivers = {str(n): Holding(str(n), 0, weight, 0, 0) for n, (_, _, weight) in enumerate(sizes)}
    wanted = {str(n): used * MIB for n, (used, _, _) in enumerate(sizes)}
    charged = {str(n): (used + idle) * MIB for n, (used, idle, _) in enumerate(sizes)}
    found = World(lambda _: hog, slivers, wanted, charged).run(60)
    assert changes([state.short for _, state, _ in found]) <= 2
    node, state, _ = found[-1]
    assert not state.short or node.available < memory.HIGH * TOTAL


def test_without_the_gap_between_the_marks_it_swings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A noisy node, and a sliver that reads new files. In the control, taking ends at the mark at which it begins."""

    def swings() -> int:
        dice, state, states, charged = random.Random(1), State(), list[bool](), 14 * GIB
        for second in range(300):
            node = Node(TOTAL, TOTAL - GIB - dice.randrange(200) * MIB - charged)
            state, targets = memory.step(state, node, [Holding("a", 0, 100, charged, charged // 2)], second, 1)
            states.append(state.short)
            charged += 10 * MIB - targets.take.get("a", 0)
        return changes(states)

    usual = swings()
    monkeypatch.setattr(memory, "HIGH", memory.LOW)
    assert usual >= 1 and swings() > 4 * usual


def test_who_reads_back_what_it_lost_is_left_alone_for_a_while() -> None:
    """Its idle pages were no idle ones; another sliver gives instead."""
    first = [Holding("a", 0, 100, 4 * GIB, GIB), Holding("b", 0, 100, 4 * GIB, GIB)]
    state, targets = memory.step(State(), SHORT, first, 0, 1)
    assert set(targets.take) == {"a", "b"}
    again = [replace(first[0], reread=GIB // 2), first[1]]
    state, targets = memory.step(state, SHORT, again, 1, 1)
    assert set(targets.take) == {"b"}
    state, targets = memory.step(state, SHORT, first, 2, 1)
    assert set(targets.take) == {"b"}
    state, targets = memory.step(state, SHORT, first, 2 + memory.QUIET, 1)
    assert set(targets.take) == {"a", "b"}


@given(STATES, NODES, HOLDINGS)
def test_who_is_throttled_has_its_guarantee_and_more_than_its_share(
    before: State, node: Node, holdings: list[Holding]
) -> None:
    after, targets = memory.step(before, node, holdings, 1.0, 0.25)
    assert targets.most == after.most and set(targets.most) == ({one.id for one in holdings} if after.short else set())
    beyond = sum(max(0, one.charged - targets.guarantees[one.id]) for one in holdings)
    for one in holdings:
        exchanged = targets.exchange.get(one.id, 0)
        assert not exchanged or (after.short and one.charged - exchanged >= targets.guarantees[one.id])
    for one in holdings if after.short else []:
        assert targets.most[one.id] >= targets.guarantees[one.id]
        share = one.weight / sum(each.weight for each in holdings) * (beyond + node.available)
        if targets.most[one.id] > one.charged:
            assert targets.most[one.id] <= targets.guarantees[one.id] + share + 1, "it may grow to its share"


def test_a_sliver_beyond_its_share_cannot_grow_again_while_memory_is_short() -> None:
    """Nor is one stopped that is within its guarantee, or has less than its share of the rest."""
    node = Node(TOTAL, int(0.05 * TOTAL))
    hog, promised, small = (
        Holding("hog", 0, 100, 10 * GIB, 0),
        Holding("promised", 2 * GIB, 100, GIB, 0),
        Holding("small", 0, 100, GIB, 0),
    )
    state, targets = memory.step(State(), node, [hog, promised, small], 0, 0.25)
    assert targets.most["hog"] == hog.charged
    assert targets.most["promised"] > 3 * GIB and targets.most["small"] > 3 * GIB
    state, targets = memory.step(state, node, [replace(hog, charged=9 * GIB), promised, small], 1, 0.25)
    assert targets.most["hog"] == 9 * GIB, "what was taken does not come back"
    state, targets = memory.step(state, node, [hog, promised, small], 2, 0.25)
    assert targets.most["hog"] == 9 * GIB
    state, targets = memory.step(state, Node(TOTAL, int(0.11 * TOTAL)), [hog, promised, small], 3, 0.25)
    assert targets.most == {} and state.most == {}, "it may grow when memory is not short"


def test_a_throttled_sliver_that_waits_goes_on_slowly() -> None:
    """In the controls it does not wait, has less than it may, or memory is not short."""
    node, hog = Node(TOTAL, int(0.07 * TOTAL)), Holding("hog", GIB, 100, 10 * GIB, 0, waited=0.1)
    others = [Holding("other", 2 * GIB, 100, GIB, 0, waited=0.1)]
    before = State(short=True, most={"hog": 9 * GIB})
    found = memory.step(before, node, [hog, *others], 0, 0.25)[1]
    assert found.exchange == {"hog": int(memory.EXCHANGE * 0.25 * 10 * GIB)} and found.take == {}
    for state, one in ((before, replace(hog, waited=0.0)), (before, replace(hog, charged=GIB)), (State(), hog)):
        assert memory.step(state, node, [one, *others], 0, 0.25)[1].exchange == {}


def test_who_waits_for_memory_after_it_lost_some_is_left_alone_for_a_while() -> None:
    """In the controls it lost nothing, so it waits at its own limit, or waits for too short a time."""
    first = [Holding("a", 0, 100, 4 * GIB, GIB), Holding("b", 0, 100, 4 * GIB, GIB)]
    lost, _ = memory.step(State(), SHORT, first, 0, 1)
    for before, waited, losing in ((lost, 0.21, {"b"}), (lost, 0.19, {"a", "b"}), (State(), 2.0, {"a", "b"})):
        state, targets = memory.step(before, SHORT, [replace(first[0], waited=waited), first[1]], 2, 1)
        assert set(targets.take) == losing, "two seconds after the last step"
    state, _ = memory.step(lost, SHORT, [replace(first[0], waited=1.0), first[1]], 2, 1)
    assert set(memory.step(state, SHORT, first, 1 + memory.QUIET, 1)[1].take) == {"b"}
    assert set(memory.step(state, SHORT, first, 3 + memory.QUIET, 1)[1].take) == {"a", "b"}


def test_who_waits_for_what_was_taken_slowly_is_left_alone() -> None:
    """Also if it waits many times for a moment. Who waits for less than a thousandth of the time continues to lose."""
    holdings = [Holding("waits", 0, 100, 4 * GIB, GIB), Holding("idle", 0, 100, 4 * GIB, GIB)]
    state, _ = memory.step(State(), UNUSED, holdings, 0, 0.25)
    waiting = [replace(holdings[0], waited=0.0006), replace(holdings[1], waited=0.0004)]
    for number in range(1, 11):
        state, targets = memory.step(state, UNUSED, waiting, number / 2, 0.5)
        assert state.slow and (not targets.take or number == 10)
    assert set(targets.take) == {"idle"}
    assert set(memory.step(state, UNUSED, holdings, 2 * memory.SLOW_EVERY, 0.25)[1].take) == {"idle"}


def test_a_hog_costs_the_idle_and_not_the_promised() -> None:
    """The case of the thesis: memory 1 : 2, and a program of the node that takes 40 % of it after a minute."""
    slivers = {
        "low": Holding("low", 2 * GIB, 100, 0, 0),
        "high": Holding("high", 4 * GIB, 200, 0, 0),
        "idle": Holding("idle", 0, 100, 0, 0),
    }
    wanted = {"low": 2 * GIB, "high": 4 * GIB, "idle": GIB // 4}
    charged = {"low": 2 * GIB, "high": 4 * GIB, "idle": 7 * GIB}
    world = World(lambda second: 0 if second < 60 else int(0.4 * TOTAL), slivers, wanted, charged)
    found = world.run(120)
    assert {name for _, _, targets in found for name in targets.take} == {"idle"}
    assert found[-1][0].available >= memory.HIGH * TOTAL
    assert (world.charged["low"], world.charged["high"]) == (2 * GIB, 4 * GIB)


FULL = Node(TOTAL, TOTAL // 2, int(0.02 * TOTAL))  # half of it is page cache


def test_some_memory_stays_free_where_something_is_guaranteed() -> None:
    """The kernel takes page cache of all slivers alike. Controls: nothing is guaranteed, or the kernel spares it."""
    promised = Holding("promised", 4 * GIB, 100, 4 * GIB, GIB)
    others = [Holding("idle", 0, 100, 4 * GIB, GIB), Holding("busy", GIB, 100, 2 * GIB, 0)]
    state, targets = memory.step(State(), FULL, [promised, *others], 0, 0.25)
    assert set(targets.take) == {"idle"} and sum(targets.take.values()) == targets.needed
    assert state.full and not state.short
    for node, holdings in (
        (FULL, [replace(one, guarantee=0) for one in (promised, *others)]),
        (replace(FULL, spares=True), [promised, *others]),
        (replace(FULL, free=int(0.04 * TOTAL)), [promised, *others]),
    ):
        assert memory.step(State(), node, holdings, 0, 0.25)[1].take == {}


def test_what_is_in_use_beyond_guarantees_gives_way_before_nothing_is_free() -> None:
    """Also if its sliver reads it back at once, but no more than the kernel can take."""
    promised = Holding("promised", 4 * GIB, 100, 4 * GIB, GIB)
    busy = Holding("busy", 0, 100, 4 * GIB, 0, reread=GIB)
    before = State(taken={"busy": GIB}, full=True)
    _, targets = memory.step(before, FULL, [promised, busy], 0, 0.25)
    assert targets.take == {"busy": targets.needed}
    _, targets = memory.step(before, FULL, [promised, replace(busy, takeable=MIB)], 0, 0.25)
    assert targets.take == {"busy": MIB}


def test_taking_for_free_memory_ends_above_the_mark_at_which_it_begins() -> None:
    holdings = [Holding("promised", GIB, 100, GIB, 0), Holding("idle", 0, 100, 4 * GIB, GIB)]
    between = replace(FULL, free=int(0.045 * TOTAL))
    assert not memory.step(State(), between, holdings, 0, 1)[0].full
    state, _ = memory.step(State(), FULL, holdings, 0, 1)
    state, targets = memory.step(state, between, holdings, 1, 1)
    assert state.full and targets.take
    assert not memory.step(state, replace(FULL, free=int(0.06 * TOTAL) + 1), holdings, 2, 1)[0].full


def test_memory_that_falls_fast_is_taken_earlier() -> None:
    """Before the kernel has to. In the control, it falls slowly, or rises."""
    holdings = [Holding("promised", GIB, 100, GIB, 0), Holding("idle", 0, 100, 4 * GIB, 2 * GIB)]
    enough = replace(FULL, free=int(0.1 * TOTAL))
    for falling, takes in ((0.08 * TOTAL, True), (0.06 * TOTAL, False), (-0.5 * TOTAL, False)):
        state, targets = memory.step(State(), replace(enough, falling=falling), holdings, 0, 0.25)
        assert state.full is takes and bool(targets.take) is takes
    assert targets.needed == 0
    _, targets = memory.step(State(), replace(enough, falling=0.08 * TOTAL), holdings, 0, 0.25)
    assert targets.take == {"idle": pytest.approx(0.04 * TOTAL, abs=2)}


def test_available_memory_that_falls_fast_is_short_earlier() -> None:
    """So that who would grow is throttled before the kernel takes memory. In the controls, it falls slowly or rises."""
    holdings = [Holding("idle", 0, 100, 4 * GIB, 2 * GIB)]
    for sinking, takes in ((0.15 * TOTAL, True), (0.13 * TOTAL, False), (-0.5 * TOTAL, False)):
        node = Node(TOTAL, int(0.2 * TOTAL), sinking=sinking)
        state, targets = memory.step(State(), node, holdings, 0, 0.25)
        assert state.short is takes and bool(targets.take) is takes
    for sinking, throttles in ((0.05 * TOTAL, True), (0.04 * TOTAL, False), (-0.5 * TOTAL, False)):
        node = Node(TOTAL, int(0.2 * TOTAL), sinking=sinking)
        state, targets = memory.step(State(), node, holdings, 0, 0.25)
        assert bool(targets.most) is throttles and not state.short and not targets.take, "and earlier throttled"
    state, targets = memory.step(state, Node(TOTAL, int(0.2 * TOTAL), sinking=0.01 * TOTAL), holdings, 1, 0.25)
    assert targets.most == {}


UNUSED = Node(TOTAL, int(0.14 * TOTAL), int(0.08 * TOTAL), spares=True, slow=True)  # the rest is page cache
LOST = State(slow=True, again=10.0, taken={"0": 10 * MIB, "1": 10 * MIB}, quiet={"2": 60.0})


@given(st.sampled_from([State(), LOST]), st.integers(0, 4000), HOLDINGS, st.sampled_from([9.0, 10.0, 100.0]))
def test_with_time_only_idle_memory_is_taken_and_slowly(
    before: State, free: int, holdings: list[Holding], now: float
) -> None:
    node = replace(UNUSED, free=free * MIB)
    after, targets = memory.step(before, node, holdings, now, 0.25)
    assert not after.short and not after.full and not after.takes, "users learn nothing of it"
    held = {one.id: one for one in holdings}
    for name, amount in targets.take.items():
        assert 0 < amount <= min(held[name].idle, held[name].charged - targets.guarantees[name])
        assert amount <= memory.SLOW * memory.SLOW_EVERY * held[name].charged
    assert sum(targets.take.values()) <= targets.needed
    assert not set(targets.take) & set(after.quiet)
    if node.free is not None and node.free >= memory.UNUSED_HIGH * TOTAL:
        assert not after.slow and not targets.take
    if before.slow and now < before.again:
        assert not targets.take and (not after.slow or after.taken == before.taken), "it is not yet time"


def test_idle_memory_is_taken_slowly_only_while_little_is_free_and_if_wanted() -> None:
    holdings = [Holding("idle", 0, 100, 4 * GIB, GIB)]
    between = replace(UNUSED, free=int(0.12 * TOTAL))
    state, targets = memory.step(State(), UNUSED, holdings, 0, 0.25)
    assert state.slow and targets.take == {"idle": int(memory.SLOW * memory.SLOW_EVERY * 4 * GIB)}
    assert memory.step(state, between, holdings, memory.SLOW_EVERY, 0.25)[1].take, "until the higher mark"
    for node in (between, replace(UNUSED, slow=False), replace(UNUSED, free=None)):
        assert memory.step(State(), node, holdings, 0, 0.25) == (State(at=0), Targets({}, {"idle": 0}))


def test_slivers_do_not_pay_for_the_page_cache_of_the_node() -> None:
    """The control has no more of it than slivers hold idle."""
    holdings = [Holding("idle", 0, 100, 4 * GIB, GIB)]
    for others, takes in ((int(1.1 * GIB), False), (GIB, True)):
        node = replace(UNUSED, available=int(0.08 * TOTAL) + GIB + others)
        state, targets = memory.step(State(), node, holdings, 0, 0.25)
        assert state.slow and bool(targets.take) is takes


def test_who_wants_back_what_was_taken_slowly_is_left_alone() -> None:
    """Also if it reads it in many small parts. Who reads back little continues to lose."""
    holdings = [Holding("wants", 0, 100, 4 * GIB, GIB), Holding("idle", 0, 100, 4 * GIB, GIB)]
    state, targets = memory.step(State(), UNUSED, holdings, 0, 0.25)
    part = {"wants": int(targets.take["wants"] * memory.BACK / 10) + 1, "idle": int(targets.take["idle"] / 200)}
    reading = [replace(one, reread=part[one.id]) for one in holdings]
    for number in range(1, 11):
        state, targets = memory.step(state, UNUSED, reading, number / 4, 0.25)
        assert not targets.take and state.slow
    for now in (memory.SLOW_EVERY, memory.SLOW_QUIET, memory.SLOW_EVERY + memory.SLOW_QUIET + 1):
        state, targets = memory.step(state, UNUSED, holdings, now, 0.25)
        assert set(targets.take) == ({"idle"} if now <= memory.SLOW_QUIET else {"idle", "wants"})


def test_a_node_that_becomes_short_takes_fast_at_once() -> None:
    holdings = [Holding("idle", 0, 100, 4 * GIB, GIB)]
    state, _ = memory.step(State(), UNUSED, holdings, 0, 0.25)
    state, targets = memory.step(state, replace(UNUSED, available=int(0.05 * TOTAL)), holdings, 1, 1)
    assert state.short and not state.slow
    assert targets.take["idle"] > memory.SLOW * memory.SLOW_EVERY * 4 * GIB
