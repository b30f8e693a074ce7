"""bench consolidation: what each sliver gets, when a promise counts as broken, and the verdict of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slicemgr.bench.experiments import consolidation as experiment
from slicemgr.bench.experiments.memory_loads import Sliver
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import consolidation as report
from slicemgr.client import Client
from slicemgr.errors import Refused
from slicemgr.model import GIB, MIB

PARAMETERS = experiment.ConsolidationParameters(lambda: Client("http://127.0.0.1:1", "x"), "n", ("", b""), "b-")


def test_both_policies_have_the_same_limit_and_use_the_same() -> None:
    static, elastic = (experiment.size(policy, PARAMETERS) for policy in experiment.POLICIES)
    assert (static.limit, static.used, static.burst) == (elastic.limit, elastic.used, elastic.burst)
    assert static.guarantee == static.limit == 2 * elastic.guarantee
    assert elastic.used < elastic.guarantee < elastic.used + elastic.burst < elastic.limit


def test_a_limit_in_which_the_workload_does_not_fit_is_refused_with_one_in_which_it_does() -> None:
    with pytest.raises(Refused, match="too little for the workload") as caught:
        experiment.size(experiment.ELASTIC, replace(PARAMETERS, memory="64M"))
    assert caught.value.field == "--memory"
    least = caught.value.hint.removeprefix("at least ")
    assert experiment.size(experiment.ELASTIC, replace(PARAMETERS, memory=least)).used >= 16 * MIB


def look(count: int, *speeds: float) -> dict[str, Any]:
    return {"n": count, "speeds": {f"s{at}": speed for at, speed in enumerate(speeds)}, "available": GIB}


def test_the_usual_speed_is_that_of_the_first_slivers() -> None:
    assert experiment.usual_speed([look(1, 10.0), look(2, 11.0, 12.0)]) == 0
    found = [look(1, 10.0), look(2, 11.0, 12.0), look(3, 1.0, 11.0, 12.0), look(4, 1.0, 1.0, 1.0)]
    assert experiment.usual_speed(found) == 11.0
    assert experiment.usual_speed([look(8, *[5.0] * 6), look(16, *[1.0] * 6)]) == 5.0, "whatever their number is"


def test_some_of_many_slivers_are_measured_but_not_the_one_that_uses_its_limit() -> None:
    there = [Sliver(str(number), (), MIB, 1) for number in range(20)]
    assert experiment.sample(there[:3], 1) == there[:3]
    for count in (4, 20):
        found = experiment.sample(there[:count], 1)
        assert len(found) == len({one.name for one in found}) == min(6, count - 1)
        assert there[count - 1] not in found and found == experiment.sample(there[:count], 1)


class Measured(experiment.Consolidation):
    """Whose slivers have these speeds in one measurement after the other."""

    def __init__(self, *speeds: float) -> None:
        self._parameters = PARAMETERS
        self._left = list(speeds)
        self.asked: list[int] = []

    def _facts(self) -> dict[str, Any]:
        return {"memory_available": GIB}

    def _speeds(self, some: Sequence[Sliver], newest: Sliver, found: experiment.Size) -> dict[str, float]:
        self.asked.append(len(some))
        slowest = self._left.pop(0)
        return {one.name: slowest if at == 0 else 100.0 for at, one in enumerate(some)}


@pytest.mark.parametrize(
    ("speeds", "asked", "broken"),
    [
        ((96.0,), [6], ""),
        ((50.0, 50.0, 96.0), [6, 1, 1], ""),
        ((50.0, 60.0, 70.0), [6, 1, 1], "kept 70 % of the usual speed"),
        ((50.0, 0.0, 0.0), [6, 1, 1], "kept 0 % of the usual speed"),
    ],
)
def test_a_promise_is_broken_if_the_same_sliver_is_too_slow_three_times(
    speeds: tuple[float, ...], asked: list[int], broken: str
) -> None:
    there = [Sliver(str(number), (), MIB, 1) for number in range(20)]
    measured = Measured(*speeds)
    _, why = measured._look(there, experiment.size("static", PARAMETERS), [look(4, *[100.0] * 6)])
    assert measured.asked == asked and why.endswith(broken) and bool(why) == bool(broken)


def step(turn: int, policy: str, fits: int, *, broken: bool = True) -> dict[str, Any]:
    looks = [look(count, *[100.0] * count) for count in range(1, fits + 1)]
    return {
        "turn": turn,
        "policy": policy,
        "memory": 2 * GIB,
        "fits": fits,
        "end": "sliver 1 kept 50 % of the usual speed" if broken else "the node refused it",
        "broken": broken,
        "looks": [*looks, look(fits + 1, 50.0, *[100.0] * fits)] if broken else looks,
    }


def result(*steps: dict[str, Any]) -> Run:
    found = {f"{one['turn']}/{one['policy']}": {"data": one} for one in steps}
    return Run(Path("run"), {"experiment": "consolidation", "parameters": PARAMETERS.recorded}, found)


@pytest.mark.parametrize(("fits", "turns", "reached"), [(15, 3, True), (14, 3, False), (15, 2, None)])
def test_the_verdict_follows_from_what_fits(fits: int, turns: int, reached: bool | None) -> None:
    steps = [step(turn, *one) for turn in range(1, turns + 1) for one in (("static", 10), ("elastic", fits))]
    content = report.content(result(*steps))
    (aim,) = content.aims
    assert aim.reached is reached and aim.measured.startswith(f"{fits / 10:.2f} ×")


def test_the_report_shows_the_slowest_sliver_and_why_it_ended() -> None:
    content = report.content(result(step(1, "static", 4, broken=False), step(1, "elastic", 6)))
    assert content.outcome == [
        "If the whole limit is promised, 4.0 slivers fit (1 repetition); then the node refused it.",
        "If a part of the limit is promised, 6.0 slivers fit (1 repetition); "
        "then sliver 1 kept 50 % of the usual speed.",
    ]
    (plot,) = content.plots
    assert [one.x[-1] for one in plot.series] == [4, 7] and plot.series[1].y[-1] == 0.5
    assert all(one.x for one in plot.series)
    assert [row[4:6] for row in content.tables[0].rows] == [[4, 0], [6, 1]]
    with pytest.raises(ValueError, match="no repetition"):
        report.content(result())
