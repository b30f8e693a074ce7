"""plan: from every state of a host, also one left by a crash, to what is wanted."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.agent.plan import DomainState, Seen, Step, phase_after, plan
from slicemgr.model import GIB, MIB, Desired, Kind, Limits, Phase, PortBlock, Sliver, SliverSnapshot

GENERATION = 3
SETTLE = (Step.PUBLISH, Step.VERIFY, Step.SSH)
START = (Step.IDENTITY, Step.PUBLISH, Step.DOMAIN, Step.VERIFY, Step.SSH)
RUNNING, PAUSED = DomainState.RUNNING, DomainState.PAUSED
BOOLS = (False, True)
EVERYTHING = [
    Seen(domain, generation, settled, root, traces, disk, shaped, keys)
    for domain, generation, settled, root, traces, disk, shaped, keys in itertools.product(
        (None, RUNNING, PAUSED), (0, GENERATION), BOOLS, BOOLS, BOOLS, (None, GIB, GIB // 2), BOOLS, (None, ("old",))
    )
    if root or (disk, keys) == (None, None)
]
EVERYTHING += [
    Seen(domain, generation, settled, root, unguarded=True)
    for domain, generation, settled, root in itertools.product((RUNNING, PAUSED), (0, GENERATION), BOOLS, BOOLS)
]


RATES: tuple[dict[str, int], ...] = ({}, {"net_in": 10**6}, {"net_out": 10**6})


def sliver(desired: Desired, **rates: int) -> Sliver:
    return Sliver(
        id="abcdefgh-0",
        serial=1,
        tag="abcdefgh",
        slice_name="exp",
        index=0,
        kind=Kind.LXC,
        desired=desired,
        image="0" * 64,
        arch="x86_64",
        address="10.77.0.1",
        ports=PortBlock(10000, 20),
        uid_first=0x70000000,
        limits=Limits(512 * MIB, GIB, 512, 1.0, **rates),
        ssh_keys=(),
        host_key="ssh-ed25519 AAAA",
        generation=GENERATION,
    )


def other(desired: Desired, *snapshots: SliverSnapshot, epoch: int = 0) -> Sliver:
    return dataclasses.replace(sliver(desired), snapshots=snapshots, epoch=epoch)


@dataclasses.dataclass
class Host:
    """One sliver's part of a host; each step says what it cannot do without."""

    seen: Seen
    want: Limits
    epoch: int = 0
    snapshots: frozenset[str] = frozenset()
    published: bool = False
    shaped_link: bool = False

    def apply(self, step: Step) -> None:
        seen = self.seen
        change = dataclasses.replace
        match step:
            case Step.ROOT:
                assert not seen.root or (seen.epoch != self.epoch and seen.domain is None)
                self.seen = change(seen, root=True, traces=True, disk=GIB, epoch=self.epoch, replaced=False)
            case Step.RESIZE:
                assert seen.root
                self.seen = change(seen, disk=GIB)
            case Step.IDENTITY:
                assert seen.root, "written into a root that is not there"
                assert seen.domain is None, "written into the root of a running domain"
                self.seen = change(seen, keys=())
            case Step.KEYS:
                assert seen.domain is not None and seen.keys == ("old",)
                self.seen = change(seen, keys=())
            case Step.PUBLISH:
                self.published = True
            case Step.DOMAIN:
                assert seen.root and seen.domain is None and self.published
                self.seen = change(seen, domain=RUNNING, generation=GENERATION, settled=False, unguarded=False)
                self.shaped_link = False
            case Step.SHAPE:
                assert seen.domain is not None, "there is no link without a domain"
                self.seen = change(seen, shaped=self.want.net_out is not None)
                self.shaped_link = True
            case Step.VERIFY:
                assert seen.domain is not None
            case Step.SSH:
                assert seen.domain is RUNNING, "a frozen sshd never answers"
                self.seen = change(seen, settled=True)
            case Step.PAUSE:
                assert seen.domain is RUNNING
                self.seen = change(seen, domain=PAUSED)
            case Step.RESUME:
                assert seen.domain is PAUSED
                self.seen = change(seen, domain=RUNNING)
            case _:
                self._rest(step)

    def _rest(self, step: Step) -> None:
        seen = self.seen
        change = dataclasses.replace
        match step:
            case Step.LINK:
                assert seen.domain is not None and seen.unguarded
                self.seen = change(seen, unguarded=False)
            case Step.STOP:
                assert seen.domain is not None or seen.shaped
                self.seen = change(seen, domain=None, settled=False, shaped=False, unguarded=False)
            case Step.KILL:
                assert seen.domain is not None
                self.seen = change(seen, domain=None, settled=False, unguarded=False)
            case Step.WITHDRAW:
                assert seen.domain is None, "an unpublished link belongs to a domain that runs"
                self.published = False
            case Step.REMOVE:
                assert seen.domain is None
                self.seen = Seen(None, seen.generation, seen.settled)
            case Step.DISCARD:
                self.seen = change(seen, snapshots=seen.snapshots & self.snapshots, replaced=False)
            case Step.SNAPSHOT:
                self.seen = change(seen, snapshots=self.snapshots)


def finished(desired: Desired, host: Host) -> bool:
    """Withdrawing rules is asked for again and again: it is what the last look at a sliver does."""
    left = plan(dataclasses.replace(sliver(desired), limits=host.want), host.seen)
    return left == ((Step.WITHDRAW,) if desired is Desired.ABSENT else ())


@pytest.mark.parametrize("desired", Desired)
@pytest.mark.parametrize("rates", RATES, ids=str)
@pytest.mark.parametrize("seen", EVERYTHING, ids=str)
def test_every_plan_leads_to_an_empty_one(desired: Desired, rates: dict[str, int], seen: Seen) -> None:
    want = sliver(desired, **rates)
    host = Host(seen, want.limits, shaped_link=seen.settled)
    for step in plan(want, seen):
        host.apply(step)
    assert finished(desired, host)
    expected = {Desired.RUNNING: RUNNING, Desired.PAUSED: PAUSED}.get(desired)
    assert host.seen.domain is expected
    if expected is not None:
        assert host.seen.settled and host.seen.generation == GENERATION
        assert host.seen.shaped is ("net_out" in rates)
        assert host.shaped_link or not rates
    if desired is Desired.ABSENT:
        assert host.seen == Seen(None, seen.generation, host.seen.settled, disk=host.seen.disk)
        assert not host.published


@given(
    st.sampled_from(EVERYTHING),
    st.sampled_from(RATES),
    st.lists(st.tuples(st.sampled_from(list(Desired)), st.integers(0, 8)), max_size=6),
    st.sampled_from(list(Desired)),
)
def test_crashes_and_changes_of_mind_are_caught_up(
    seen: Seen, rates: dict[str, int], crashes: list[tuple[Desired, int]], last: Desired
) -> None:
    host = Host(seen, sliver(last, **rates).limits)
    for desired, steps in crashes:
        for step in plan(sliver(desired, **rates), host.seen)[:steps]:
            host.apply(step)
    for step in plan(sliver(last, **rates), host.seen):
        host.apply(step)
    assert finished(last, host)


@pytest.mark.parametrize(
    ("desired", "seen", "steps"),
    [
        (Desired.RUNNING, Seen(), (Step.ROOT, *START)),
        (Desired.RUNNING, Seen(traces=True), (Step.ROOT, *START)),
        (Desired.RUNNING, Seen(root=True, traces=True), START),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, False, True, True), SETTLE),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, True, True, True), ()),
        (Desired.RUNNING, Seen(PAUSED, GENERATION, True, True, True), (Step.RESUME,)),
        (Desired.RUNNING, Seen(PAUSED, GENERATION, False, True, True), (Step.RESUME, *SETTLE)),
        (Desired.RUNNING, Seen(RUNNING, 0, True, True, True), (Step.STOP, *START)),
        (Desired.PAUSED, Seen(), (Step.ROOT, *START, Step.PAUSE)),
        (Desired.PAUSED, Seen(RUNNING, GENERATION, True, True, True), (Step.PAUSE,)),
        (Desired.PAUSED, Seen(PAUSED, GENERATION, True, True, True), ()),
        (Desired.STOPPED, Seen(RUNNING, GENERATION, True, True, True), (Step.STOP,)),
        (Desired.STOPPED, Seen(root=True, traces=True), ()),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, True, True, True, GIB), ()),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, True, True, True, MIB), (Step.RESIZE,)),
        (Desired.RUNNING, Seen(PAUSED, GENERATION, True, True, True, MIB), (Step.RESIZE, Step.RESUME)),
        (Desired.RUNNING, Seen(None, 0, False, True, True, MIB), (Step.RESIZE, *START)),
        (Desired.PAUSED, Seen(PAUSED, GENERATION, True, True, True, MIB), (Step.RESIZE,)),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, True, True, True, keys=()), ()),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, True, True, True, keys=("old",)), (Step.KEYS,)),
        (Desired.PAUSED, Seen(RUNNING, GENERATION, True, True, True, keys=("old",)), (Step.KEYS, Step.PAUSE)),
        (Desired.RUNNING, Seen(None, 0, False, True, True, keys=("old",)), START),
        (Desired.STOPPED, Seen(root=True, traces=True, keys=("old",)), ()),
        (Desired.STOPPED, Seen(None, 0, False, True, True, MIB), (Step.RESIZE,)),
        (Desired.ABSENT, Seen(RUNNING, 0, True, True, True, MIB), (Step.KILL, Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Seen(RUNNING, 0, True, True, True), (Step.KILL, Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Seen(traces=True), (Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Seen(), (Step.WITHDRAW,)),
        (Desired.ABSENT, Seen(shaped=True), (Step.WITHDRAW, Step.REMOVE)),
        (Desired.STOPPED, Seen(root=True, traces=True, shaped=True), (Step.STOP,)),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, True, True, True, shaped=True), (Step.SHAPE,)),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, True, True, True, unguarded=True), (Step.LINK,)),
        (Desired.RUNNING, Seen(RUNNING, GENERATION, False, True, True, unguarded=True), (Step.LINK, *SETTLE)),
        (Desired.PAUSED, Seen(PAUSED, GENERATION, True, True, True, unguarded=True), (Step.LINK,)),
        (Desired.RUNNING, Seen(RUNNING, 0, True, True, True, unguarded=True), (Step.STOP, *START)),
        (Desired.STOPPED, Seen(RUNNING, GENERATION, True, True, True, unguarded=True), (Step.STOP,)),
    ],
)
def test_the_steps_themselves(desired: Desired, seen: Seen, steps: tuple[Step, ...]) -> None:
    assert plan(sliver(desired), seen) == steps


def test_a_host_key_that_is_not_in_the_rows_is_told_again() -> None:
    want = dataclasses.replace(sliver(Desired.RUNNING), host_key="")
    assert plan(want, Seen(RUNNING, GENERATION, True, True, True)) == (Step.KEYS,)
    assert plan(want, Seen(RUNNING, GENERATION, False, True, True)) == (*SETTLE, Step.KEYS)
    assert plan(want, Seen(root=True, traces=True)) == START


SHAPED_START = (Step.IDENTITY, Step.PUBLISH, Step.DOMAIN, Step.SHAPE, Step.VERIFY, Step.SSH)


@pytest.mark.parametrize(
    ("rates", "seen", "steps"),
    [
        ({"net_in": 1}, Seen(root=True, traces=True), SHAPED_START),
        ({"net_out": 1}, Seen(root=True, traces=True, shaped=True), SHAPED_START),
        ({"net_in": 1}, Seen(RUNNING, GENERATION, False, True, True), (Step.SHAPE, *SETTLE)),
        ({"net_in": 1}, Seen(RUNNING, GENERATION, True, True, True), ()),
        ({"net_out": 1}, Seen(RUNNING, GENERATION, True, True, True), (Step.SHAPE,)),
        ({"net_out": 1}, Seen(RUNNING, GENERATION, True, True, True, shaped=True), ()),
        ({"net_out": 1}, Seen(PAUSED, GENERATION, True, True, True), (Step.RESUME, Step.SHAPE)),
    ],
)
def test_a_rate_is_a_step_of_its_own(rates: dict[str, int], seen: Seen, steps: tuple[Step, ...]) -> None:
    assert plan(sliver(Desired.RUNNING, **rates), seen) == steps


MADE, DUE = SliverSnapshot("aaaaaaaa", True, 5), SliverSnapshot("bbbbbbbb", False)
BOTH = frozenset({MADE.id, DUE.id})
AGAIN = (Step.ROOT, *START)


@pytest.mark.parametrize(
    ("want", "seen", "steps"),
    [
        (other(Desired.RUNNING, DUE), Seen(RUNNING, GENERATION, True, True, True), (Step.SNAPSHOT,)),
        (other(Desired.STOPPED, DUE), Seen(root=True, traces=True), (Step.SNAPSHOT,)),
        # made, and the report of it was lost: it is looked at again
        (
            other(Desired.RUNNING, DUE),
            Seen(PAUSED, GENERATION, True, True, True, snapshots=frozenset({DUE.id})),
            (Step.SNAPSHOT, Step.RESUME),
        ),
        # lost: one of now would be another
        (other(Desired.RUNNING, MADE), Seen(RUNNING, GENERATION, True, True, True), ()),
        (
            other(Desired.RUNNING, MADE),
            Seen(RUNNING, GENERATION, True, True, True, snapshots=BOTH),
            (Step.DISCARD,),
        ),
        (
            other(Desired.STOPPED, DUE),
            Seen(RUNNING, GENERATION, True, True, True, snapshots=frozenset({MADE.id})),
            (Step.DISCARD, Step.SNAPSHOT, Step.STOP),
        ),
        (other(Desired.ABSENT, DUE), Seen(traces=True, snapshots=BOTH), (Step.WITHDRAW, Step.REMOVE)),
        (other(Desired.RUNNING, epoch=1), Seen(RUNNING, GENERATION, True, True, True), (Step.KILL, *AGAIN)),
        (other(Desired.PAUSED, epoch=1), Seen(PAUSED, 0, True, True, True), (Step.KILL, *AGAIN, Step.PAUSE)),
        (other(Desired.RUNNING, epoch=1), Seen(root=True, traces=True, disk=MIB), AGAIN),
        (other(Desired.RUNNING, epoch=1), Seen(traces=True), AGAIN),
        (other(Desired.RUNNING, epoch=1), Seen(RUNNING, GENERATION, True, True, True, epoch=1), ()),
        (other(Desired.STOPPED, epoch=1), Seen(root=True, traces=True, disk=MIB), (Step.ROOT,)),
        (other(Desired.STOPPED, epoch=2), Seen(RUNNING, 0, True, True, True, epoch=1), (Step.STOP, Step.ROOT)),
        # between the exchange and the end of what was there
        (
            other(Desired.RUNNING, epoch=1),
            Seen(root=True, traces=True, epoch=1, replaced=True),
            (Step.DISCARD, *START),
        ),
        (other(Desired.RUNNING, epoch=1), Seen(traces=True, replaced=True), AGAIN),
    ],
)
def test_snapshots_and_other_roots(want: Sliver, seen: Seen, steps: tuple[Step, ...]) -> None:
    assert plan(want, seen) == steps


@given(
    st.sampled_from(EVERYTHING),
    st.integers(0, 2),
    st.booleans(),
    st.frozensets(st.sampled_from((MADE.id, DUE.id, "cccccccc"))),
    st.lists(st.tuples(st.sampled_from(list(Desired)), st.integers(0, 9)), max_size=5),
    st.sampled_from([one for one in Desired if one is not Desired.ABSENT]),
)
def test_a_restore_that_dies_anywhere_ends_with_the_wanted_root(
    seen: Seen, epoch: int, replaced: bool, there: frozenset[str], deaths: list[tuple[Desired, int]], last: Desired
) -> None:
    """Whatever was begun before, by however many agents: the root is the one of the rows, and nothing is left over."""
    seen = dataclasses.replace(seen, epoch=epoch if seen.root else 0, replaced=replaced, snapshots=there)
    host = Host(seen, sliver(last).limits, epoch=1, snapshots=BOTH)
    for desired, steps in [*deaths, (last, 99)]:
        for step in plan(other(desired, MADE, DUE, epoch=1), host.seen)[:steps]:
            host.apply(step)
    wanted = other(last, MADE, dataclasses.replace(DUE, made=True), epoch=1)
    assert plan(wanted, host.seen) == ()
    assert not host.seen.root or (host.seen.epoch == 1 and not host.seen.replaced)
    assert host.seen.snapshots <= BOTH


def test_a_carried_out_plan_has_a_phase() -> None:
    assert {one: phase_after(one) for one in Desired} == {
        Desired.RUNNING: Phase.RUNNING,
        Desired.PAUSED: Phase.PAUSED,
        Desired.STOPPED: Phase.STOPPED,
        Desired.ABSENT: Phase.STOPPED,
    }
