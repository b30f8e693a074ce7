"""The choice from few nodes is the one that all nodes give, on any testbed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from bare_service import FACTS, SHA, Service
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Connection

from slicemgr.errors import Refused
from slicemgr.model import GIB, Limits, SliceSpec, SliverType, Spread, Where
from slicemgr.policy import allocate, quota
from slicemgr.service.nodes import nodes, preselection
from slicemgr.service.slices import image_choice
from slicemgr.service.slices import placement as service_placement
from slicemgr.store import allocations
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

PORTS, FIRST_PORT = 100, 10000
NAMES = ["n-1", "n10", "n2", "a", "a-b", "ab", "a1", "b9", "c", "n-10", "n100", "z"]  # which locales sort in other ways
FILES = {"disk": {"disk": "ready"}, "base": {"base": "ready"}, "both": {"disk": "ready", "base": "ready"}}
FAULTS: dict[str, dict[str, Any]] = {
    "drained": {"drained": True},
    "silent": {"agent_seen_at": timedelta(seconds=91)},
    "lost": {"silent_since": timedelta(minutes=9)},
    "never": {"agent_seen_at": None},
    "joined": {"state": "joined"},
    "own": {"identity": None},
}
FACTS_OF: dict[str, dict[str, Any]] = {
    "kvm": {"kinds": {"lxc": False, "kvm": True}},
    "pools": {"addresses": "8.8.8.0/24"},
    "arm": {"machine": "aarch64"},
    "silent about ports": {"ports_first": None, "ports_last": None},
    "half silent": {"ports_last": None},
    "no memory": {"memory": None},
    "true": {"memory": True},
}


COUNTED = ("slivers", "memory", "memory_guarantee", "disk", "ports")


@dataclass(frozen=True)
class Made:
    """A node. given: what its slivers have, as in COUNTED. scattered: its free ports have no blocks of 20."""

    memory: int = 4 * GIB
    given: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    site: str = ""
    fault: str = ""
    facts: str = ""
    files: str = ""
    scattered: bool = False


def usually(usual: Any, others: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda dice: st.sampled_from(list(others)) if dice >= 8 else st.just(usual))


NODES = st.lists(
    st.builds(
        Made,
        st.sampled_from([4 * GIB, 4 * GIB, 6 * GIB, 7 * GIB]),
        st.tuples(
            st.sampled_from([0, 0, 3, 12, 14, allocate.UID_RANGES]),
            st.sampled_from([0, 0, 1, 3, 11]).map(lambda memory: memory * 10 * GIB),
            st.sampled_from([0, 0, 1, 2, 5]).map(lambda guarantee: guarantee * GIB),
            st.sampled_from([0, 0, 2, 5]).map(lambda disk: disk * 50 * GIB),
            st.sampled_from([0, 0, 20, 60, 81]),
        ),
        st.sampled_from(["", "s", "t", "u"]),
        usually("", FAULTS),
        usually("", FACTS_OF),
        st.sampled_from(["", "", *FILES]),
        st.integers(0, 9).map(lambda dice: dice == 9),
    ),
    min_size=1,
    max_size=len(NAMES),
).map(lambda made: dict(zip(NAMES, made, strict=False)))


def wanted(
    count: int = 1, memory: int = 1, type: SliverType = SliverType.LXC, guarantee: int = 0, **where: Any
) -> SliceSpec:
    limits = Limits(memory=memory * GIB, disk=GIB, pids=100, cpu=1, memory_guarantee=guarantee * GIB)
    return SliceSpec("exp", type, SHA, count, limits, 20, timedelta(days=1), (), Where(**where))


SPECS = st.builds(
    lambda count, memory, type, guarantee, **where: wanted(count, memory, type, min(memory, guarantee), **where),
    st.integers(1, 9),
    st.sampled_from([1, 1, 2, 5]),
    st.sampled_from([SliverType.LXC, SliverType.LXC, SliverType.LXC, SliverType.KVM]),
    st.sampled_from([0, 0, 1, 2]),
    spread=st.sampled_from(Spread),
    apart=st.sampled_from(["", "", "", "holder"]),
    site=st.sampled_from(["", "", "", "s", "t"]),
    nodes=st.sampled_from([(), (), (), tuple(NAMES[:3]), tuple(NAMES[2:8])]),
)


@pytest.fixture(scope="module")
def service(both_stores: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One node has a slice, so that rows of slivers can be added to it; this node reports no more."""
    with Service(tmp_path_factory.mktemp("preselection")) as made:
        made.create("holder")
        with made.store.write() as c:
            c.execute(t.nodes.update().values(agent_seen_at=None))
        yield made


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few nodes are read that others are better often."""
    monkeypatch.setattr(service_placement, "_MORE", (0, 2))


class _Undo(Exception):
    """Ends a transaction without a change."""


def on_testbed(service: Service, made: Mapping[str, Made], work: Callable[[Connection], None]) -> None:
    """Do the work in a transaction in which there are these nodes."""
    try:
        with service.store.write() as c:
            _insert(c, made)
            work(c)
            raise _Undo
    except _Undo:
        pass


def _insert(c: Connection, made: Mapping[str, Made]) -> None:
    now = utcnow()
    facts = {name: _facts(one) for name, one in made.items()}
    c.execute(t.nodes.insert(), [_row(name, one, facts[name], now) for name, one in made.items()])
    counters = [
        {"node": name, **dict(zip(COUNTED, one.given, strict=True)), **allocations.announced(facts[name])}
        for name, one in made.items()
    ]
    c.execute(t.allocations.insert(), counters)
    usual = {"image": SHA, "state": "ready", "updated_at": now, "disk": "", "base": ""}
    if has := [{**usual, "node": name, **FILES[one.files]} for name, one in made.items() if one.files]:
        c.execute(t.image_nodes.insert(), has)
    for name, one in made.items():
        if one.scattered:
            _scatter(c, name)


def _facts(made: Made) -> dict[str, Any]:
    facts: dict[str, Any] = {**FACTS, "memory": made.memory, "disk_total": 8 * GIB, "addresses": "10.77.0.0/28"}
    facts.update(ports_first=FIRST_PORT, ports_last=FIRST_PORT + PORTS - 1)
    facts.update(FACTS_OF.get(made.facts, {}))
    return {key: value for key, value in facts.items() if value is not None}


def _row(name: str, made: Made, facts: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "address": f"{name}.example",
        "facts": facts,
        "site": made.site,
        "state": "active",
    }
    row |= {"next_port": PORTS if made.scattered else 0, "identity": f"node-{name}", "agent_seen_at": timedelta()}
    row |= {"drained": False, "silent_since": None, **FAULTS.get(made.fault, {})}
    return {key: now - value if isinstance(value, timedelta) else value for key, value in row.items()}


def _scatter(c: Connection, node: str) -> None:
    """Give the node slivers with one port each, between which no block of 20 is free."""
    usual = c.execute(t.slivers.select()).mappings().first()
    assert usual is not None
    rows = [
        {key: value for key, value in usual.items() if key != "serial"}
        | {"id": f"{node}-{number}", "idx": NAMES.index(node) * 5 + number + 1, "node": node}
        | {"address": f"10.77.0.{number + 1}", "uid_first": allocate.UID_FIRST + number * 65536}
        | {"port_first": FIRST_PORT + 10 + 20 * number, "port_count": 1}
        for number in range(5)
    ]
    c.execute(t.slivers.insert(), rows)


def place(c: Connection, service: Service, spec: SliceSpec, *, reasons: bool = False) -> tuple[str, ...]:
    return service_placement.place(c, service.config, spec, quota.UNLIMITED, reasons=reasons).nodes


def compared(c: Connection, service: Service, spec: SliceSpec) -> tuple[bool, bool]:
    """Whether few nodes gave a choice, and whether that is what all nodes give."""
    try:
        full = service_placement.place(c, service.config, spec, quota.UNLIMITED, reasons=True)
        image, apart = image_choice.find(c, SHA, spec.project), service_placement._apart(c, spec)
    except Refused:
        full = None
        if spec.where.apart:  # of a slice on no node
            return False, True
        image, apart = image_choice.find(c, SHA, spec.project), set()
    few = service_placement._of_few(c, service.config, spec, image, apart)
    if few is None:
        return False, True
    if full is None:
        return True, False
    order = {name: iter(grants) for name, (grants, _) in few.allocated.items()}
    grants = tuple(next(order[name]) for name in few.choice.nodes)
    return True, (few.choice.nodes, grants) == (full.nodes, full.grants)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NODES, SPECS)
def test_the_choice_from_few_nodes_is_that_from_all(service: Service, made: dict[str, Made], spec: SliceSpec) -> None:
    found: list[tuple[bool, bool]] = []
    on_testbed(service, made, lambda c: found.append(compared(c, service, spec)))
    assert found[0][1]


def drawn(dice: random.Random) -> dict[str, Made]:
    """A testbed of 12 nodes, most of which can be used."""

    def one() -> Made:
        amounts = dice.choice([0, 10, 20, 110]) * GIB, 0, dice.choice([0, 2]) * GIB, dice.choice([0, 20])
        slivers, faults, facts = dice.choice([0, 12]), ["", "", "", "drained"], ["", "", "", "kvm"]
        kinds = dice.choice("stu"), dice.choice(faults), dice.choice(facts), dice.choice(["", "base"])
        return Made(dice.choice([4, 6, 7]) * GIB, (slivers, *amounts), *kinds)

    return {name: one() for name in NAMES}


def outcomes(service: Service, spread: Spread) -> Counter[tuple[bool, bool]]:
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(25):
        dice = random.Random(seed)
        spec = wanted(dice.randrange(1, 7), spread=spread)
        on_testbed(service, drawn(dice), lambda c, spec=spec: found.update([compared(c, service, spec)]))  # type: ignore[misc]
    return found


@pytest.mark.parametrize("spread", Spread)
def test_few_nodes_suffice_mostly(service: Service, spread: Spread) -> None:
    found = outcomes(service, spread)
    assert found[True, False] == 0
    assert found[True, True] > found[False, True], found


@pytest.mark.parametrize("spread", Spread)
def test_without_the_bounds_other_nodes_are_chosen(
    service: Service, spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests above: nodes that were not read do not count."""
    select = preselection.select
    monkeypatch.setattr(preselection, "select", lambda *args: preselection.Few(select(*args).rows, ()))
    assert outcomes(service, spread)[True, False] > 0


@pytest.mark.parametrize("type", [SliverType.LXC, SliverType.KVM])
def test_an_image_is_there_if_the_file_that_the_type_needs_is(service: Service, type: SliverType) -> None:
    """a: the disk image. ab: the base. 0, the first one otherwise: neither."""
    right = {SliverType.LXC: "ab", SliverType.KVM: "a"}[type]

    def work(c: Connection) -> None:
        c.execute(t.nodes.update().values(facts={**FACTS, "kinds": {"lxc": True, "kvm": True}}))
        for reasons in (False, True):
            assert place(c, service, wanted(type=type), reasons=reasons) == (right,)
        c.execute(t.image_nodes.update().values(disk="fetching", base="fetching"))
        assert place(c, service, wanted(type=type)) == ("0",)

    on_testbed(service, {"0": Made(), "a": Made(files="disk"), "ab": Made(files="base")}, work)


def test_a_machine_whose_kernel_qemu_starts_needs_both_files(service: Service) -> None:
    """Its image has no boot loader, so that it boots in this way without being asked to."""

    def work(c: Connection) -> None:
        c.execute(t.nodes.update().values(facts={**FACTS, "kinds": {"kvm": True}}))
        assert place(c, service, wanted(type=SliverType.KVM)) == ("a",)
        c.execute(t.images.update().values(boot={"kernel": "/vmlinuz"}))
        assert place(c, service, wanted(type=SliverType.KVM)) == ("b9",)

    on_testbed(service, {"a": Made(files="disk"), "ab": Made(files="base"), "b9": Made(files="both")}, work)


def test_the_complete_search_is_not_needed_for_one_sliver(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(c: Connection) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(nodes, "every", None)  # the complete search would fail
            for spread in Spread:
                assert place(c, service, wanted(spread=spread)) == ("a",)

    on_testbed(service, {name: Made(site="s") for name in NAMES}, work)


def test_nor_for_the_slivers_of_a_lost_node(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best node is the lost one; its record may say that it reports."""

    def again(c: Connection, lost: str) -> tuple[str, ...]:
        return service_placement.place_again(c, service.config, wanted(), lost).nodes

    def work(c: Connection) -> None:
        monkeypatch.setattr(nodes, "every", None)  # the complete search would fail
        assert (again(c, "b"), again(c, "a")) == (("a",), ("b",))
        assert place(c, service, wanted()) == ("a",), "the control: the first of two equal nodes"

    on_testbed(service, {"a": Made(), "b": Made()}, work)
