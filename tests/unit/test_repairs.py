"""Which slivers are repaired by a comparison of host and rows, and when again after a failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from test_plan import GENERATION, sliver

from slicemgr.agent import repairs
from slicemgr.agent.plan import DomainState, Observed, Step
from slicemgr.agent.repairs import Attempts
from slicemgr.model import Desired, Sliver, SliverType

NOTHING = Observed()
WELL = Observed(DomainState.RUNNING, GENERATION, settled=True, root=True, traces=True, keys=())
OTHER_KEYS = dataclasses.replace(WELL, keys=("old",))


def named(id: str, sliver_type: SliverType = SliverType.LXC) -> Sliver:
    return dataclasses.replace(sliver(Desired.RUNNING), id=id, type=sliver_type)


def found(
    host: Mapping[str, Observed],
    attempts: Attempts | None = None,
    now: float = 0.0,
    *,
    busy: Collection[str] = (),
    machines_known: bool = True,
    machines: Collection[str] = (),
) -> dict[str, tuple[Step, ...]]:
    slivers = [named(id, SliverType.KVM if id in machines else SliverType.LXC) for id in host]
    due = repairs.find(
        slivers, host.__getitem__, attempts or Attempts(), now, busy=busy.__contains__, machines_known=machines_known
    )
    return {one.sliver.id: one.steps for one in due}


def test_a_repair_has_the_steps_that_are_missing() -> None:
    repaired = found({"a-0": NOTHING, "b-0": WELL})
    assert list(repaired) == ["a-0"]
    assert repaired["a-0"][0] is Step.ROOT and repaired["a-0"][-1] is Step.SSH


def test_what_is_under_way_is_left_to_its_turn() -> None:
    assert list(found({"a-0": NOTHING, "b-0": NOTHING}, busy={"a-0"})) == ["b-0"]


def test_a_machine_waits_until_the_node_knows_what_runs_it() -> None:
    host = {"a-0": NOTHING, "b-0": NOTHING}
    assert list(found(host, machines={"a-0"}, machines_known=False)) == ["b-0"]
    assert list(found(host, machines={"a-0"})) == ["a-0", "b-0"]


def test_after_each_failure_the_wait_doubles_up_to_ten_minutes_and_a_success_ends_it() -> None:
    attempts, now, waits = Attempts(), 100.0, []
    for _ in range(9):
        wait = attempts.failed("a-0", now)
        assert not found({"a-0": NOTHING}, attempts, now + wait - 0.1)
        assert found({"a-0": NOTHING, "b-0": NOTHING}, attempts, now + wait - 0.1).keys() == {"b-0"}
        now += wait
        assert found({"a-0": NOTHING}, attempts, now)
        waits.append(wait)
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    attempts.succeeded("a-0")
    assert found({"a-0": NOTHING}, attempts, now)
    assert attempts.failed("a-0", now) == 5.0


def test_keys_alone_are_given_once_in_a_minute() -> None:
    attempts = Attempts()
    assert found({"a-0": OTHER_KEYS}, attempts, 100.0) == {"a-0": (Step.KEYS,)}
    assert found({"a-0": OTHER_KEYS}, attempts, 159.9) == {}
    assert found({"a-0": NOTHING}, attempts, 159.9).keys() == {"a-0"}  # another repair does not wait for that
    assert found({"a-0": OTHER_KEYS}, attempts, 160.0) == {"a-0": (Step.KEYS,)}


def test_an_observation_that_fails_leaves_the_repairs_before_it() -> None:
    slivers = [named("a-0"), named("b-0")]
    due = repairs.find(
        slivers, {"a-0": NOTHING}.__getitem__, Attempts(), 0.0, busy=lambda _: False, machines_known=True
    )
    assert next(due).sliver.id == "a-0"
