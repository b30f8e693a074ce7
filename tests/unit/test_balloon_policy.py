"""Properties of the policy of balloons, over drawn statistics, which a guest invents, and over simulated guests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.model import GIB, MIB
from slicemgr.policy import balloons
from slicemgr.policy.balloons import CLOSE, Machine, Report, State

FULL = 1 * GIB
ANY = st.one_of(st.integers(0, 2 * FULL), st.integers(-(1 << 70), 1 << 70))
REPORT = st.builds(Report, ANY, ANY, ANY, ANY, ANY, st.one_of(st.floats(-20, 20), st.floats(-1e12, 1e12)))
STEPS = st.lists(
    st.tuples(REPORT | st.none(), st.integers(0, 2 * FULL), st.integers(0, FULL), st.booleans()), max_size=30
)


@given(STEPS, st.integers(0, FULL), st.sampled_from([0.25, 1.0, 3.0]))
def test_whatever_a_guest_reports_it_keeps_its_guarantee_and_gets_no_more_than_its_memory(
    steps: list[tuple[Report | None, int, int, bool]], guarantee: int, pause: float
) -> None:
    state, gained = None, 0
    for number, (report, charged, asked, calm) in enumerate(steps):
        machine = Machine(FULL, guarantee, charged)
        state, outcome = balloons.step(state, machine, report, 1000 + number * pause, asked=asked, calm=calm)
        if outcome.balloon is not None:
            current = FULL if report is None else max(0, min(report.current, FULL))
            assert min(guarantee, current) <= outcome.balloon <= FULL
        assert 0 <= outcome.idle <= max(0, min(charged, FULL - guarantee))
        assert outcome.taken >= 0
        gained += outcome.taken
    assert gained <= FULL * len(steps)


@given(REPORT, st.integers(0, 2 * FULL), st.integers(0, FULL))
def test_old_statistics_let_nothing_be_taken(report: Report, charged: int, asked: int) -> None:
    machine = Machine(FULL, 0, charged)
    state, _ = balloons.step(None, machine, None, 0.0)
    for age in (balloons.STALE + 1, -balloons.STALE - 1, 1e9):
        _, outcome = balloons.step(state, machine, replace(report, age=age), 100.0, asked=asked)
        assert (outcome.balloon, outcome.idle) == (None, 0)


@dataclass
class Simulated:
    """A guest with the driver of a balloon, which gives so many bytes a second. used: by its programs. cache: of files.

    dead: whether it neither follows the balloon nor reports any more.
    """

    used: int
    cache: int
    speed: int = 200 * MIB
    overhead: int = 100 * MIB
    current: int = FULL
    target: int = FULL
    faults: int = 0
    dead: bool = False
    at: float = 0.0
    starved: int = 0  # steps in which its programs did not get what they needed

    @property
    def free(self) -> int:
        return self.current - self.used - self.cache

    @property
    def charged(self) -> int:
        """Free pages are reported to the node."""
        return self.overhead + self.used + self.cache

    def report(self, now: float) -> Report:
        return Report(self.current, self.free + self.cache, self.free, self.faults, 0, now - self.at)

    def move(self, elapsed: float, now: float) -> None:
        if self.dead:
            return
        self.at = now
        grows = min(int(self.speed * elapsed), self.current - self.target)
        if grows < 0:
            self.current = self.target
        else:
            self.cache -= min(self.cache, max(0, grows - self.free))
            self.current -= min(grows, self.free)

    def use(self, more: int) -> None:
        """Programs use so much more, which comes from free memory, then from the cache."""
        self.cache -= min(self.cache, max(0, more - self.free))
        self.starved += more > self.free
        self.used += min(more, self.free)


Each = Callable[[Simulated, int], None]


def run(
    guest: Simulated,
    seconds: int,
    *,
    guarantee: int = 0,
    asked: int = 20 * MIB,
    each: Each | None = None,
    calm: int = -1,
) -> list[int]:
    """What the balloon left after each second; the node wants some in each. calm: the second from which it does not."""
    state: State | None = None
    left = []
    for now in range(seconds):
        if each is not None:
            each(guest, now)
        guest.move(1.0, float(now))
        machine = Machine(FULL, guarantee, guest.charged)
        state, outcome = balloons.step(
            state, machine, guest.report(now + 0.5), now + 0.5, asked=asked, calm=0 <= calm <= now
        )
        if outcome.balloon is not None:
            guest.target = outcome.balloon
        left.append(guest.target)
    return left


def test_an_idle_guest_loses_its_cache_and_keeps_room() -> None:
    guest = Simulated(200 * MIB, 600 * MIB)
    left = run(guest, 120)
    assert left == sorted(left, reverse=True), "it never gets any back, because it needs none"
    usable = guest.free + guest.cache
    assert balloons.floor(Machine(FULL, 0, 0)) <= usable < balloons.floor(Machine(FULL, 0, 0)) + 2 * MIB
    assert guest.charged < 100 * MIB + 200 * MIB + 260 * MIB


def test_the_guarantee_bounds_the_balloon() -> None:
    assert min(run(Simulated(100 * MIB, 700 * MIB), 120, guarantee=700 * MIB)) == 700 * MIB


def test_a_guest_without_cache_is_left_alone() -> None:
    """What is free inside is the node's already: a balloon would bring nothing."""
    assert set(run(Simulated(500 * MIB, 0), 60)) == {FULL}


def test_free_memory_that_qemu_holds_is_taken() -> None:
    """Of a guest that does not report it."""
    silent = Simulated(200 * MIB, 0, overhead=900 * MIB)
    assert min(run(silent, 60)) < FULL - 100 * MIB


def test_a_guest_that_needs_memory_gets_all_of_it_and_keeps_it_for_a_while() -> None:
    """A program that grows by 50 MiB a second, from second 60 on."""
    guest = Simulated(200 * MIB, 600 * MIB)
    left = run(guest, 150, each=lambda guest, now: guest.use(50 * MIB) if 60 <= now < 72 else None)
    assert left[59] < 500 * MIB
    back = left.index(FULL, 60)
    assert back < 66 and guest.starved == 0
    assert set(left[back:]) == {FULL}
    assert guest.used == 800 * MIB


def test_a_guest_that_reads_again_what_it_lost_gets_it_back() -> None:
    """It has room, but its programs are pages of files: they fault."""

    def fault(guest: Simulated, now: int) -> None:
        guest.faults += 500 if now >= 60 else 0

    left = run(Simulated(200 * MIB, 600 * MIB), 180, each=fault)
    assert left[59] < FULL and set(left[62:]) == {FULL}


def test_a_guest_that_swings_is_seldom_disturbed() -> None:
    """It uses 400 MiB more for 20 of 40 seconds: the balloon does not follow each time."""

    def swing(guest: Simulated, now: int) -> None:
        if now % 40 < 20:
            guest.use(20 * MIB)
        else:
            guest.used -= 20 * MIB
            guest.cache += min(20 * MIB, guest.free)

    left = run(Simulated(200 * MIB, 300 * MIB), 600, each=swing)
    given = sum(after > before for before, after in itertools.pairwise(left))
    assert 1 <= given <= 600 / balloons.NEEDED + 1


def test_a_guest_that_gives_nothing_is_given_up() -> None:
    guest = Simulated(200 * MIB, 600 * MIB, speed=0)
    left = run(guest, 300)
    lower = [number for number, one in enumerate(left) if one < FULL]
    assert len(lower) <= balloons.STUCK + 2 and left[-1] == FULL


def test_a_guest_that_gives_a_part_keeps_the_rest() -> None:
    """It stops when it has given 60 MiB."""

    def stop(guest: Simulated, now: int) -> None:
        guest.speed = 20 * MIB if guest.current > FULL - 60 * MIB else 0

    guest = Simulated(200 * MIB, 600 * MIB)
    left = run(guest, 100, each=stop)
    assert left[-1] == guest.current == FULL - 60 * MIB


def test_nothing_is_asked_again_before_the_last_request_is_fulfilled() -> None:
    guest = Simulated(200 * MIB, 600 * MIB, speed=5 * MIB)
    left = run(guest, 60)
    moved = [number for number in range(1, len(left)) if left[number] != left[number - 1]]
    amounts = [left[number - 1] - left[number] for number in moved]
    for (one, amount), other in zip(zip(moved, amounts, strict=True), moved[1:], strict=False):
        assert other - one >= amount / (5 * MIB)


def test_a_guest_that_does_not_answer_any_more_gets_its_memory_back() -> None:
    def die(guest: Simulated, now: int) -> None:
        guest.dead = now >= 60

    left = run(Simulated(200 * MIB, 600 * MIB), 80, each=die)
    assert left[59] < FULL and left[-1] == FULL


def test_a_calm_node_gives_all_back() -> None:
    left = run(Simulated(200 * MIB, 600 * MIB), 100, calm=60)
    assert left[59] < FULL and set(left[60:]) == {FULL}


def test_what_an_earlier_agent_left_lower_is_set_again() -> None:
    report = Report(FULL // 2, FULL // 4, FULL // 4, 0, 0, 0.0)
    for calm in (False, True):
        _, outcome = balloons.step(None, Machine(FULL, 0, FULL), report, 0.0, calm=calm)
        assert outcome.balloon == FULL
    close = replace(report, current=FULL - CLOSE)
    assert balloons.step(None, Machine(FULL, 0, FULL), close, 0.0)[1].balloon is None


@pytest.mark.parametrize("charged", [0, FULL // 2])
def test_taken_is_what_the_group_lost(charged: int) -> None:
    """A guest that only reports that it gave memory brings nothing."""
    report = Report(FULL, FULL // 2, 0, 0, 0, 0.0)
    state, _ = balloons.step(None, Machine(FULL, 0, FULL), report, 0.0)
    state, asked = balloons.step(state, Machine(FULL, 0, FULL), report, 10.0, asked=100 * MIB)
    assert asked.balloon == FULL - 100 * MIB
    report = replace(report, current=FULL - 100 * MIB)
    lies, outcome = balloons.step(state, Machine(FULL, 0, FULL), report, 11.0)
    assert outcome.taken == 0
    lies, outcome = balloons.step(lies, Machine(FULL, 0, charged), report, 12.0)
    assert outcome.taken == 100 * MIB, "other memory that it lost is not the balloon's"
    assert balloons.step(lies, Machine(FULL, 0, 0), report, 13.0)[1].taken == 0
