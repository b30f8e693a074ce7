"""The choice of nodes for new slivers: what refuses a node, and what is preferred."""

from __future__ import annotations

import dataclasses
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from bare_service import FACTS
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.config import LimitsConfig, NetworkConfig
from slicemgr.errors import Code, Refused
from slicemgr.model import GIB, MIB, Init, Limits, SliceSpec, SliverType, Spread, Where
from slicemgr.policy import node_network, placement
from slicemgr.policy.placement import Candidate

LIMITS = LimitsConfig()
NETWORK = NetworkConfig(addresses="10.77.0.0/24", ports_first=10000, ports_last=10999)
EACH = Limits(memory=GIB, disk=GIB, pids=100, cpu=1)


def node(name: str = "n1", **values: Any) -> Candidate:
    """A node for which `facts` are added to the usual ones."""
    return Candidate(name, {**FACTS, **values.pop("facts", {})}, NETWORK, **values)


def spec(count: int = 1, where: Where | None = None, **values: Any) -> SliceSpec:
    usual = {"name": "exp", "type": SliverType.LXC, "image": "i", "limits": EACH, "ports": 20}
    usual |= {"lease": timedelta(days=1), "ssh_keys": (), "where": where or Where()}
    return SliceSpec(count=count, **{**usual, **values})


def chosen(nodes: list[Candidate], wanted: SliceSpec) -> tuple[str, ...]:
    fit, refused = placement.able(nodes, wanted)
    return placement.choose(fit, wanted, LIMITS, refused).nodes


def reasons(nodes: list[Candidate], wanted: SliceSpec, apart: tuple[str, ...] = ()) -> dict[str, str]:
    fit, refused = placement.able(nodes, wanted, apart)
    return {name: one.message for name, one in placement.choose(fit, wanted, LIMITS, refused).refused.items()}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"drained": True}, "is drained"),
        ({"silent": timedelta(seconds=91)}, "has not for 91 s reported"),
        ({"silent": None}, "has never reported"),
        ({"site": "b"}, "is at site b"),
        ({"trouble": "no pool"}, "cannot be used: no pool"),
        ({"facts": {"kinds": {"kvm": True}}}, "cannot run lxc"),
        ({"facts": {"cpus": 1}}, "2 CPU cores exceed"),
        ({"facts": {"net_rate": False}}, "lacks"),
        ({"facts": {"io_weight": False}}, "weights"),
        ({"facts": {"inits": {"minimal": True}}}, "cannot run systemd"),
        ({"facts": {"memory": GIB // 2}}, "1.0 GiB of memory exceed the capacity"),
        ({"disk": int(64 * GIB * LIMITS.disk_overcommit)}, "not enough disk"),
        ({"ports": 990}, "no blocks of 20 ports left"),
        ({"slivers": 254}, "no addresses left"),
    ],
)
def test_a_node_that_cannot_is_refused_with_the_reason(values: dict[str, Any], reason: str) -> None:
    facts = {"io_weight": True, "net_rate": True, "inits": {"systemd": True}}
    limits = dataclasses.replace(EACH, cpu=2, io_weight=10, net_in=10**6)
    wanted = spec(where=Where(site="a"), limits=limits, init=Init.SYSTEMD)
    able = node("able", site="a", facts=facts)
    other = node("other", **{"site": "a", **values, "facts": {**facts, **values.get("facts", {})}})
    assert chosen([other, able], wanted) == ("able",)
    found = reasons([other, able], wanted)
    assert set(found) == {"other"} and reason in found["other"]


def test_without_what_refuses_it_the_node_is_used() -> None:
    """The control of the test above."""
    assert chosen(
        [node("other", site="a", silent=timedelta(seconds=29)), node("third", site="a", memory=GIB)], spec()
    ) == ("other",)


def test_the_only_node_is_waited_for() -> None:
    assert chosen([node(silent=timedelta(hours=1))], spec()) == ("n1",)
    with pytest.raises(Refused, match="node n1 is drained") as caught:
        placement.able([node(drained=True)], spec())
    assert caught.value.code is Code.UNAVAILABLE


def test_requested_nodes_and_slices_to_stay_apart_from() -> None:
    nodes = [node(f"n{number}") for number in range(4)]
    assert set(chosen(nodes, spec(2, Where(nodes=("n1", "n3"))))) == {"n1", "n3"}
    assert reasons(nodes, spec(2, Where(nodes=("n1", "n3")))) == {
        "n0": "node n0 was not requested",
        "n2": "node n2 was not requested",
    }
    found = reasons(nodes, spec(where=Where(apart="other")), ("n0", "n2"))
    assert found["n0"] == "node n0 has slivers of slice other"
    for where, field in ((Where(nodes=("n1", "x")), "node"), (Where(site="x"), "site")):
        with pytest.raises(Refused, match="unknown") as caught:
            placement.able(nodes, spec(where=where))
        assert caught.value.field == field


def test_the_least_committed_node_is_preferred_and_an_image_that_is_there() -> None:
    busy, idle = node("a", memory=2 * GIB), node("b")
    assert chosen([busy, idle], spec()) == ("b",)
    assert chosen([dataclasses.replace(idle, name="c"), dataclasses.replace(idle, name="d", image=True)], spec()) == (
        "d",
    )
    full = node("d", image=True, memory=int(8 * GIB * LIMITS.memory_overcommit) - GIB)
    assert chosen([idle, full], spec()) == ("b",), "not at any price"


def test_the_error_of_several_nodes_has_their_reasons() -> None:
    nodes = [node(f"n{number}", drained=True) for number in range(8)]
    with pytest.raises(Refused) as caught:
        placement.able(nodes, spec(3))
    assert caught.value.message == "no node can run the slivers (3 slivers requested)"
    assert caught.value.hint.startswith("node n0 is drained; ") and caught.value.hint.endswith("; and 3 others")
    small = [node(name, facts={"memory": GIB}) for name in ("a", "b")]
    wanted = spec(200)
    with pytest.raises(Refused, match=r"the nodes have room for \d+ of them") as caught:
        placement.choose(small, wanted, LIMITS)
    assert caught.value.code is Code.QUOTA and "node a has room for" in caught.value.hint


def test_the_architecture_of_the_image() -> None:
    nodes = [node("arm", facts={"machine": "aarch64"}), node("pc", facts={"machine": "x86_64"}), node("old")]
    refused: placement.Refusals = {}
    assert [one.name for one in placement.of_architecture(nodes, spec(), "i686", refused)] == ["pc", "old"]
    assert list(refused) == ["arm"]
    assert len(placement.of_architecture(nodes, spec(), "", {})) == 3
    with pytest.raises(Refused, match="aarch64"):
        placement.of_architecture(nodes[:1], spec(), "x86_64", {})


def test_a_clone_is_on_the_nodes_of_the_original() -> None:
    each = ("b", "a", "b")
    wanted = spec(3, Where(nodes=("b", "a"), each=each))
    assert chosen([node(name) for name in "abc"], wanted) == each
    with pytest.raises(Refused, match="node a is drained"):
        chosen([node("a", drained=True), node("b"), node("c")], wanted)


NODES = st.lists(
    st.builds(
        lambda memory, disk, ports, slivers, site, drained: node(
            site=site, memory=memory * GIB, disk=disk * GIB, ports=ports, slivers=slivers, drained=drained
        ),
        st.integers(0, 16),
        st.integers(0, 130),
        st.integers(0, 1000),
        st.integers(0, 254),
        st.sampled_from(["", "a", "b"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
).map(lambda nodes: [dataclasses.replace(one, name=f"n{number}") for number, one in enumerate(nodes)])


def room(one: Candidate) -> int:
    """The number of slivers of `spec` that fit, counted one by one."""
    for count in range(60):
        more = count + 1
        fits = (
            one.memory + more * EACH.memory <= int(FACTS["memory"] * LIMITS.memory_overcommit)  # type: ignore[operator]
            and one.disk + more * EACH.disk <= int(FACTS["disk_total"] * LIMITS.disk_overcommit)  # type: ignore[operator]
            and one.ports + more * 20 <= 1000
            and one.slivers + more <= 254
        )
        if not fits:
            return count
    return 60


@given(NODES, st.integers(1, 40), st.sampled_from(Spread), st.randoms())
def test_every_sliver_gets_a_node_with_room_and_every_other_node_a_reason(
    nodes: list[Candidate], count: int, spread: Spread, random: Any
) -> None:
    wanted = spec(count, Where(spread=spread))
    free = {one.name: 0 if one.drained else room(one) for one in nodes}
    shuffled = list(nodes)
    random.shuffle(shuffled)
    try:
        fit, refused = placement.able(nodes, wanted)
        choice = placement.choose(fit, wanted, LIMITS, refused)
    except Refused:
        assert sum(free.values()) < count
        return
    given_ = Counter(choice.nodes)
    assert len(choice.nodes) == count
    assert all(given_[name] <= free[name] for name in given_)
    assert set(choice.refused) == {one.name for one in nodes} - set(given_)
    assert chosen(shuffled, wanted) == choice.nodes, "the order of the rows does not matter"
    left = {name for name in free if given_[name] < free[name]}
    if spread is Spread.NODE:
        assert all(given_[name] <= given_[other] + 1 for name in given_ for other in left)
    elif spread is Spread.PACK:
        assert len(left & set(given_)) <= 1, "at most one of the used nodes has room left"
    else:
        site = {one.name: one.site for one in nodes}
        by_site = Counter(site[name] for name in choice.nodes)
        assert all(by_site[one] <= by_site[site[other]] + 1 for one in by_site for other in left)


@pytest.mark.parametrize(
    "facts",
    [
        {"addresses": "8.8.8.0/24"},
        {"addresses": "10.0.0.0/7"},
        {"addresses": ["10.0.0.0/8"]},
        {"addresses": "10.0.0.1/24"},
        {"addresses": "fd00::/64"},
        {"ports_first": 22},
        {"ports_first": "10000; reboot"},
        {"ports_last": 1 << 40},
        {"ports_last": True},
        {"ports_first": 30000, "ports_last": 20000},
    ],
)
def test_pools_that_a_node_announces_are_checked(facts: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        node_network.announced(facts, NETWORK)


def test_pools_that_a_node_announces_are_its_own() -> None:
    assert node_network.announced({}, NETWORK) == NETWORK
    own = node_network.announced({"addresses": "10.9.0.0/16", "ports_first": 2000, "ports_last": 3000}, NETWORK)
    assert (own.addresses, own.ports_first, own.ports_last) == ("10.9.0.0/16", 2000, 3000)
    assert own.denied == NETWORK.denied


def test_a_thousand_nodes_cost_about_as_much_as_reading_them() -> None:
    """The choice does not compare each sliver with each node: 50 slivers cost less than 10 times what one costs."""
    calls = 0

    class Counting(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            nonlocal calls
            calls += 1
            return super().get(*args)

    def cost(count: int) -> int:
        nonlocal calls
        calls = 0
        chosen([Candidate(f"n{number}", Counting(FACTS), NETWORK) for number in range(1000)], small(count))
        return calls

    def small(count: int) -> SliceSpec:
        return spec(count, limits=dataclasses.replace(EACH, memory=MIB, disk=MIB))

    assert cost(50) < 2 * cost(1)
