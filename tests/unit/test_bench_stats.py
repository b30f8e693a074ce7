"""Statistics against values worked out elsewhere, and the guard's decisions."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
from fake_experiment import GIB, ROOMY
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.bench.frame import guard
from slicemgr.bench.frame.guard import Limits, Need
from slicemgr.bench.report import stats
from slicemgr.errors import Refused

# Student's own data on sleep ("The probable error of a mean", 1908): extra hours by two drugs.
SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
VALUES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40)


def test_mean_deviation_and_confidence_interval() -> None:
    summary = stats.summary(SLEEP_1)
    assert summary.mean == pytest.approx(0.75) and summary.deviation == pytest.approx(1.78901, rel=1e-5)
    assert [summary.low, summary.high] == pytest.approx([-0.5297804, 2.0297804], rel=1e-5)
    assert (summary.least, summary.most, summary.count) == (-1.6, 3.7, 10)


def test_one_value_has_no_interval() -> None:
    assert stats.summary([2.0]) == stats.Summary(1, 2.0, None, None, None, 2.0, 2.0)
    with pytest.raises(ValueError, match="no values"):
        stats.summary([])


def test_percentiles() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [stats.percentile(values, one) for one in (0.0, 0.4, 0.5, 0.95, 1.0)] == pytest.approx([15, 29, 35, 48, 50])
    with pytest.raises(ValueError, match="no values"):
        stats.percentile([], 0.5)


@given(VALUES)
def test_percentiles_lie_within_and_rise(values: list[float]) -> None:
    found = [stats.percentile(values, share / 20) for share in range(21)]
    assert found[0] == min(values) and found[-1] == max(values)
    assert all(low <= high * (1 + 1e-12) for low, high in itertools.pairwise(found))


def test_fairness_by_jain() -> None:
    assert stats.fairness([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert stats.fairness([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert stats.fairness([1.0, 2.0, 3.0]) == pytest.approx(36 / 42)
    assert stats.fairness([0.0, 0.0]) is None and stats.fairness([]) is None


def test_welch_of_few_values() -> None:
    difference = stats.difference(SLEEP_1, SLEEP_2)
    assert difference.test == "Welch" and difference.p == pytest.approx(0.07939, abs=1e-5)
    assert [difference.old, difference.new] == pytest.approx([0.75, 2.33])


def test_ranks_of_many_values() -> None:
    old = [float(one) for one in range(20)]
    difference = stats.difference(old, [one + 100 for one in old])
    assert difference.test == "Mann-Whitney" and difference.p is not None and difference.p < 1e-6
    # one value far out moves the mean and not the ranks
    moved = stats.difference(old, [*old[:-1], 1e6])
    assert moved.p is not None and moved.p > 0.9 and moved.change is not None and moved.change > 1000


@pytest.mark.parametrize(
    ("old", "new", "p", "test"),
    [
        ([1.0], [2.0, 3.0], None, "one value only"),
        ([1.0, 1.0], [1.0, 1.0], 1.0, "no spread"),
        ([1.0, 1.0], [2.0, 2.0], None, "no spread"),
    ],
)
def test_what_cannot_be_told(old: list[float], new: list[float], p: float | None, test: str) -> None:
    difference = stats.difference(old, new)
    assert (difference.p, difference.test) == (p, test)


def test_several_comparisons_at_once() -> None:
    # the example of Benjamini and Hochberg (1995), whose rule keeps the first four at 0.05
    chances = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719]
    chances += [0.6528, 0.7590, 1.0]
    found = stats.adjusted([None, *chances])
    assert found[0] is None
    assert [one is not None and one < 0.05 for one in found[1:]] == [True] * 4 + [False] * 11
    assert stats.adjusted([None]) == [None] and stats.adjusted([]) == []


def test_a_line_through_points() -> None:
    exact = stats.slope([0, 1, 2, 3], [1.0, 3.0, 5.0, 7.0])
    assert exact is not None
    assert [exact.value, exact.start, exact.fit] == pytest.approx([2, 1, 1])
    spread = stats.slope([0, 1, 2, 3], [1.0, 3.2, 4.8, 7.0])
    assert spread is not None and spread.low < 1.96 < spread.high
    assert stats.slope([1, 1, 2], [1.0, 2.0, 3.0]) is None


def test_what_is_missing_says_how_it_is_installed() -> None:
    program = "import sys\nsys.modules['scipy'] = None\nfrom slicemgr.bench.report import stats\nstats.summary([1, 2])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr
    assert "Refused: reports need scipy, which is not installed" in said and "pip install 'slicemgr[bench]'" in said


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "need", "says"),
    [
        ({}, Need(), None),
        ({"memory_available": GIB // 2}, Need(), "memory: 512 MiB of 16 GiB are free"),
        ({"memory_available": 2 * GIB}, Need(memory=GIB), None),
        ({"memory_available": 2 * GIB}, Need(memory=2 * GIB), "the next step takes about 2 GiB"),
        ({"disk_free": GIB}, Need(), "disk of the pool: 1 GiB of 100 GiB are free"),
        ({"disk_free": 3 * GIB}, Need(disk=2 * GIB), "disk of the pool"),
        ({"swap_free": GIB // 2}, Need(), "swap: 1.5 GiB of 2 GiB are in use, more than 50%"),
        ({"swap_total": 0, "swap_free": 0}, Need(), None),
        ({"pids": 30000}, Need(), "processes: 30000 of at most 32768"),
        ({"pids": 20000}, Need(pids=10000), "the next step takes about 10000"),
        ({"load": 100.0}, Need(), "load: 100 on 2 cores"),
        ({"load": 79.0}, Need(), None),
    ],
)
def test_the_guard_says_why(change: dict[str, int], need: Need, says: str | None) -> None:
    verdict = guard.verdict(replace(ROOMY, **change), need, Limits())
    assert verdict is None if says is None else verdict is not None and says in verdict


def test_what_the_next_step_takes_is_learnt_from_the_last() -> None:
    after = replace(ROOMY, memory_available=ROOMY.memory_available - 50, disk_used=ROOMY.disk_used - 9, pids=310)
    assert guard.growth(ROOMY, after, 5, 10) == Need(memory=100, disk=0, pids=20)
    assert guard.growth(ROOMY, after, 0, 10) == Need()


def test_facts_of_an_older_agent_are_refused() -> None:
    facts: dict[str, object] = {"memory": GIB, "memory_available": GIB, "cpus": 2}
    with pytest.raises(Refused, match="does not report its swap_total"):
        guard.state(facts)


def test_facts_of_a_node() -> None:
    facts: dict[str, object] = {name: getattr(ROOMY, name) for name in ROOMY.__slots__ if name != "memory_total"}
    assert guard.state({**facts, "memory": ROOMY.memory_total, "kernel": "6.18"}) == ROOMY
    assert (ROOMY.memory, ROOMY.swap) == (4 * GIB, 0)


def test_values_that_differ_by_rounding_alone_have_no_spread() -> None:
    """Nor does it warn, which would be an error here."""
    same = [0.1 * 3, 0.3, 0.1 + 0.2]
    assert stats.difference(same, same[::-1]).test == "no spread"
    assert stats.difference(same, same).p == 1.0
    assert stats.difference(same, [0.4] * 3).p is None
    one_side = stats.difference([1.0, 1.0, 1.0], [1.1, 1.2, 1.3])
    assert one_side.test == "Welch" and one_side.p is not None and 0 < one_side.p < 0.1
