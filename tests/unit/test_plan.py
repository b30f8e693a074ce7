"""plan: from every state of a host, also after a crash, to the desired state."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.agent.plan import DomainState, Observed, Step, phase_after, plan
from slicemgr.model import GIB, MIB, SPARE, Desired, Limits, Phase, PortBlock, Sliver, SliverSnapshot, SliverType

GENERATION = 3
SETTLE = (Step.PUBLISH, Step.VERIFY, Step.SSH)
START = (Step.IDENTITY, Step.PUBLISH, Step.DOMAIN, Step.VERIFY, Step.SSH)
RUNNING, PAUSED = DomainState.RUNNING, DomainState.PAUSED
BOOLS = (False, True)
EVERYTHING = [
    Observed(domain, generation, settled, root, traces, disk, shaped, keys)
    for domain, generation, settled, root, traces, disk, shaped, keys in itertools.product(
        (None, RUNNING, PAUSED), (0, GENERATION), BOOLS, BOOLS, BOOLS, (None, GIB, GIB // 2), BOOLS, (None, ("old",))
    )
    if root or (disk, keys) == (None, None)
]
EVERYTHING += [
    Observed(domain, GENERATION, settled, True, limits=(1.0,) if settled else None)
    for domain, settled in itertools.product((RUNNING, PAUSED), BOOLS)
]
EVERYTHING += [
    Observed(domain, generation, settled, root, unguarded=True)
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
        type=SliverType.LXC,
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
    """A sliver with another root: a restored one has an origin."""
    origin = "abcdefgh-0/aaaaaaaa" if epoch else ""
    return dataclasses.replace(sliver(desired), snapshots=snapshots, epoch=epoch, origin=origin)


def rebuilt(desired: Desired, epoch: int = 1) -> Sliver:
    """A sliver that was made again from its image on another node, and is now here again."""
    return dataclasses.replace(sliver(desired), epoch=epoch)


@dataclasses.dataclass
class Host:
    """The part of a host for one sliver; each step asserts its requirements."""

    observed: Observed
    want: Limits
    epoch: int = 0
    snapshots: frozenset[str] = frozenset()
    published: bool = False
    shaped_link: bool = False

    def apply(self, step: Step) -> None:
        observed = self.observed
        change = dataclasses.replace
        match step:
            case Step.ROOT:
                assert not observed.root or (observed.epoch != self.epoch and observed.domain is None)
                self.observed = change(observed, root=True, traces=True, disk=GIB, epoch=self.epoch, replaced=False)
            case Step.RESIZE:
                assert observed.root
                self.observed = change(observed, disk=GIB)
            case Step.IDENTITY:
                assert observed.root, "written into a root that is not there"
                assert observed.domain is None, "written into the root of a running domain"
                self.observed = change(observed, keys=())
            case Step.KEYS:
                assert observed.domain is not None and observed.keys == ("old",)
                self.observed = change(observed, keys=())
            case Step.PUBLISH:
                self.published = True
            case Step.DOMAIN:
                assert observed.root and observed.domain is None and self.published
                self.observed = change(observed, domain=RUNNING, generation=GENERATION, settled=False, unguarded=False)
                self.shaped_link = False
            case Step.SHAPE:
                assert observed.domain is not None, "there is no link without a domain"
                self.observed = change(observed, shaped=self.want.net_out is not None)
                self.shaped_link = True
            case Step.VERIFY:
                assert observed.domain is not None
            case Step.SSH:
                assert observed.domain is RUNNING, "a frozen sshd never answers"
                self.observed = change(observed, settled=True, limits=self.want.live)
            case Step.PAUSE:
                assert observed.domain is RUNNING
                self.observed = change(observed, domain=PAUSED)
            case Step.RESUME:
                assert observed.domain is PAUSED
                self.observed = change(observed, domain=RUNNING)
            case _:
                self._rest(step)

    def _rest(self, step: Step) -> None:
        observed = self.observed
        change = dataclasses.replace
        match step:
            case Step.LIMITS:
                assert observed.domain is not None
                self.observed = change(observed, limits=self.want.live)
            case Step.LINK:
                assert observed.domain is not None and observed.unguarded
                self.observed = change(observed, unguarded=False)
            case Step.STOP:
                assert observed.domain is not None or observed.shaped
                self._end(shaped=False)
            case Step.KILL:
                assert observed.domain is not None
                self._end(shaped=observed.shaped)
            case Step.WITHDRAW:
                assert observed.domain is None, "an unpublished link belongs to a domain that runs"
                self.published = False
            case Step.REMOVE:
                assert observed.domain is None
                self.observed = Observed(None, observed.generation, observed.settled)
            case Step.DISCARD:
                self.observed = change(observed, snapshots=observed.snapshots & self.snapshots, replaced=False)
            case Step.SNAPSHOT:
                self.observed = change(observed, snapshots=self.snapshots)

    def _end(self, *, shaped: bool) -> None:
        """The mark of a plan that was completed, with the limits, is that of one domain."""
        self.observed = dataclasses.replace(
            self.observed, domain=None, settled=False, limits=None, shaped=shaped, unguarded=False
        )


def finished(desired: Desired, host: Host) -> bool:
    """Rules are withdrawn at each observation of a deleted sliver, also when none are left."""
    left = plan(dataclasses.replace(sliver(desired), limits=host.want), host.observed)
    return left == ((Step.WITHDRAW,) if desired is Desired.ABSENT else ())


@pytest.mark.parametrize("desired", Desired)
@pytest.mark.parametrize("rates", RATES, ids=str)
def test_every_plan_leads_to_an_empty_one(desired: Desired, rates: dict[str, int]) -> None:
    for observed in EVERYTHING:
        leads_to_an_empty_one(desired, rates, observed)


def leads_to_an_empty_one(desired: Desired, rates: dict[str, int], observed: Observed) -> None:
    want = sliver(desired, **rates)
    host = Host(observed, want.limits, shaped_link=observed.settled)
    for step in plan(want, observed):
        host.apply(step)
    assert finished(desired, host)
    expected = {Desired.RUNNING: RUNNING, Desired.PAUSED: PAUSED}.get(desired)
    assert host.observed.domain is expected
    if expected is not None:
        assert host.observed.settled and host.observed.generation == GENERATION
        assert host.observed.shaped is ("net_out" in rates)
        assert host.shaped_link or not rates
    if desired is Desired.ABSENT:
        assert host.observed == Observed(None, observed.generation, host.observed.settled, disk=host.observed.disk)
        assert not host.published


@given(
    st.sampled_from(EVERYTHING),
    st.sampled_from(RATES),
    st.lists(st.tuples(st.sampled_from(list(Desired)), st.integers(0, 8)), max_size=6),
    st.sampled_from(list(Desired)),
)
def test_crashes_and_changes_of_mind_are_caught_up(
    observed: Observed, rates: dict[str, int], crashes: list[tuple[Desired, int]], last: Desired
) -> None:
    host = Host(observed, sliver(last, **rates).limits)
    for desired, steps in crashes:
        for step in plan(sliver(desired, **rates), host.observed)[:steps]:
            host.apply(step)
    for step in plan(sliver(last, **rates), host.observed):
        host.apply(step)
    assert finished(last, host)


@pytest.mark.parametrize(
    ("desired", "observed", "steps"),
    [
        (Desired.RUNNING, Observed(), (Step.ROOT, *START)),
        (Desired.RUNNING, Observed(traces=True), (Step.ROOT, *START)),
        (Desired.RUNNING, Observed(root=True, traces=True), START),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, False, True, True), SETTLE),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, True, True, True), ()),
        (Desired.RUNNING, Observed(PAUSED, GENERATION, True, True, True), (Step.RESUME,)),
        (Desired.RUNNING, Observed(PAUSED, GENERATION, False, True, True), (Step.RESUME, *SETTLE)),
        (Desired.RUNNING, Observed(RUNNING, 0, True, True, True), (Step.STOP, *START)),
        (Desired.PAUSED, Observed(), (Step.ROOT, *START, Step.PAUSE)),
        (Desired.PAUSED, Observed(RUNNING, GENERATION, True, True, True), (Step.PAUSE,)),
        (Desired.PAUSED, Observed(PAUSED, GENERATION, True, True, True), ()),
        (Desired.STOPPED, Observed(RUNNING, GENERATION, True, True, True), (Step.STOP,)),
        (Desired.STOPPED, Observed(root=True, traces=True), ()),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, True, True, True, GIB), ()),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, True, True, True, MIB), (Step.RESIZE,)),
        (Desired.RUNNING, Observed(PAUSED, GENERATION, True, True, True, MIB), (Step.RESIZE, Step.RESUME)),
        (Desired.RUNNING, Observed(None, 0, False, True, True, MIB), (Step.RESIZE, *START)),
        (Desired.PAUSED, Observed(PAUSED, GENERATION, True, True, True, MIB), (Step.RESIZE,)),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, True, True, True, keys=()), ()),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, True, True, True, keys=("old",)), (Step.KEYS,)),
        (Desired.PAUSED, Observed(RUNNING, GENERATION, True, True, True, keys=("old",)), (Step.KEYS, Step.PAUSE)),
        (Desired.RUNNING, Observed(None, 0, False, True, True, keys=("old",)), START),
        (Desired.STOPPED, Observed(root=True, traces=True, keys=("old",)), ()),
        (Desired.STOPPED, Observed(None, 0, False, True, True, MIB), (Step.RESIZE,)),
        (Desired.ABSENT, Observed(RUNNING, 0, True, True, True, MIB), (Step.KILL, Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Observed(RUNNING, 0, True, True, True), (Step.KILL, Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Observed(traces=True), (Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Observed(), (Step.WITHDRAW,)),
        (Desired.ABSENT, Observed(shaped=True), (Step.WITHDRAW, Step.REMOVE)),
        (Desired.STOPPED, Observed(root=True, traces=True, shaped=True), (Step.STOP,)),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, True, True, True, shaped=True), (Step.SHAPE,)),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, True, True, True, unguarded=True), (Step.LINK,)),
        (Desired.RUNNING, Observed(RUNNING, GENERATION, False, True, True, unguarded=True), (Step.LINK, *SETTLE)),
        (Desired.PAUSED, Observed(PAUSED, GENERATION, True, True, True, unguarded=True), (Step.LINK,)),
        (Desired.RUNNING, Observed(RUNNING, 0, True, True, True, unguarded=True), (Step.STOP, *START)),
        (Desired.STOPPED, Observed(RUNNING, GENERATION, True, True, True, unguarded=True), (Step.STOP,)),
    ],
)
def test_the_steps_themselves(desired: Desired, observed: Observed, steps: tuple[Step, ...]) -> None:
    assert plan(sliver(desired), observed) == steps


def test_a_host_key_that_is_not_in_the_rows_is_told_again() -> None:
    want = dataclasses.replace(sliver(Desired.RUNNING), host_key="")
    assert plan(want, Observed(RUNNING, GENERATION, True, True, True)) == (Step.KEYS,)
    assert plan(want, Observed(RUNNING, GENERATION, False, True, True)) == (*SETTLE, Step.KEYS)
    assert plan(want, Observed(root=True, traces=True)) == START


LIMITS = sliver(Desired.RUNNING).limits.live
TAKEN = Observed(RUNNING, GENERATION, True, True, True, GIB, keys=(), hostname=SPARE, limits=LIMITS)
OTHER = (1 * GIB, *LIMITS[1:])


def spare(desired: Desired) -> Sliver:
    return dataclasses.replace(sliver(desired), slice_name=SPARE, project="", spare=True)


def machine(desired: Desired) -> Sliver:
    return dataclasses.replace(sliver(desired), type=SliverType.KVM)


@pytest.mark.parametrize(
    ("want", "observed", "steps"),
    [
        (spare(Desired.RUNNING), TAKEN, ()),
        (sliver(Desired.RUNNING), TAKEN, (Step.NAME,)),
        (dataclasses.replace(sliver(Desired.RUNNING), ssh_keys=("key",)), TAKEN, (Step.NAME, Step.KEYS)),
        (sliver(Desired.RUNNING, net_in=1), TAKEN, (Step.SHAPE, Step.NAME)),
        (sliver(Desired.RUNNING, net_out=1), TAKEN, (Step.SHAPE, Step.NAME)),
        (sliver(Desired.PAUSED), TAKEN, (Step.NAME, Step.PAUSE)),
        (sliver(Desired.STOPPED), TAKEN, (Step.STOP,)),
        (sliver(Desired.RUNNING), dataclasses.replace(TAKEN, disk=MIB), (Step.RESIZE, Step.NAME)),
        (
            sliver(Desired.RUNNING),
            dataclasses.replace(TAKEN, settled=False, limits=None),
            (Step.PUBLISH, Step.LIMITS, Step.VERIFY, Step.SSH, Step.NAME),
        ),
        (sliver(Desired.RUNNING), dataclasses.replace(TAKEN, limits=OTHER), (Step.LIMITS, Step.NAME)),
        (sliver(Desired.RUNNING), dataclasses.replace(TAKEN, limits=None), (Step.LIMITS, Step.NAME)),
        (sliver(Desired.PAUSED), dataclasses.replace(TAKEN, limits=OTHER), (Step.LIMITS, Step.NAME, Step.PAUSE)),
        (spare(Desired.RUNNING), dataclasses.replace(TAKEN, limits=OTHER), ()),
        (machine(Desired.RUNNING), dataclasses.replace(TAKEN, limits=None), (Step.NAME,)),
        (sliver(Desired.RUNNING), dataclasses.replace(TAKEN, domain=None), START),
        (sliver(Desired.RUNNING), dataclasses.replace(TAKEN, hostname="exp-0"), ()),
        (spare(Desired.ABSENT), TAKEN, (Step.KILL, Step.WITHDRAW, Step.REMOVE)),
    ],
)
def test_a_spare_that_was_taken_gets_limits_and_name_before_its_keys(
    want: Sliver, observed: Observed, steps: tuple[Step, ...]
) -> None:
    assert plan(want, observed) == steps


def test_a_running_container_gets_limits_that_were_changed() -> None:
    known = dataclasses.replace(TAKEN, hostname="exp-0", limits=OTHER)
    assert plan(sliver(Desired.RUNNING), known) == (Step.LIMITS,)
    assert plan(sliver(Desired.RUNNING), dataclasses.replace(known, limits=LIMITS)) == ()
    assert plan(sliver(Desired.RUNNING), dataclasses.replace(known, limits=None)) == (), "started by an earlier version"
    assert plan(sliver(Desired.STOPPED), known) == (Step.STOP,), "it gets them at its next start"


def test_a_running_machine_gets_its_memory_and_no_other_limit() -> None:
    known = dataclasses.replace(TAKEN, hostname="exp-0", limits=OTHER)
    paused = dataclasses.replace(known, domain=PAUSED)
    assert plan(machine(Desired.RUNNING), known) == (Step.LIMITS,)
    assert plan(machine(Desired.PAUSED), known) == (Step.LIMITS, Step.PAUSE)
    assert plan(machine(Desired.RUNNING), paused) == (Step.RESUME, Step.LIMITS)
    assert plan(machine(Desired.PAUSED), paused) == (), "a paused guest gives nothing back"
    assert plan(machine(Desired.RUNNING), dataclasses.replace(known, limits=None)) == ()
    assert plan(machine(Desired.RUNNING), dataclasses.replace(known, limits=(LIMITS[0], 9.0, *LIMITS[2:]))) == ()


OF_ANOTHER = dataclasses.replace(TAKEN, hostname="theirs-0")


@pytest.mark.parametrize(
    ("want", "steps"),
    [
        (spare(Desired.RUNNING), ()),
        (spare(Desired.ABSENT), ()),
        (sliver(Desired.RUNNING), (Step.KILL, Step.KEEP, Step.ROOT, *START)),
        (sliver(Desired.ABSENT), (Step.KILL, Step.WITHDRAW, Step.REMOVE)),
    ],
)
def test_rows_older_than_a_slice_give_nobody_its_data(want: Sliver, steps: tuple[Step, ...]) -> None:
    assert plan(want, OF_ANOTHER) == steps


SHAPED_START = (Step.IDENTITY, Step.PUBLISH, Step.DOMAIN, Step.SHAPE, Step.VERIFY, Step.SSH)


@pytest.mark.parametrize(
    ("rates", "observed", "steps"),
    [
        ({"net_in": 1}, Observed(root=True, traces=True), SHAPED_START),
        ({"net_out": 1}, Observed(root=True, traces=True, shaped=True), SHAPED_START),
        ({"net_in": 1}, Observed(RUNNING, GENERATION, False, True, True), (Step.SHAPE, *SETTLE)),
        ({"net_in": 1}, Observed(RUNNING, GENERATION, True, True, True), ()),
        ({"net_out": 1}, Observed(RUNNING, GENERATION, True, True, True), (Step.SHAPE,)),
        ({"net_out": 1}, Observed(RUNNING, GENERATION, True, True, True, shaped=True), ()),
        ({"net_out": 1}, Observed(PAUSED, GENERATION, True, True, True), (Step.RESUME, Step.SHAPE)),
    ],
)
def test_a_rate_is_a_step_of_its_own(rates: dict[str, int], observed: Observed, steps: tuple[Step, ...]) -> None:
    assert plan(sliver(Desired.RUNNING, **rates), observed) == steps


MADE, DUE = SliverSnapshot("aaaaaaaa", True, 5), SliverSnapshot("bbbbbbbb", False)
BOTH = frozenset({MADE.id, DUE.id})
AGAIN = (Step.ROOT, *START)


@pytest.mark.parametrize(
    ("want", "observed", "steps"),
    [
        (other(Desired.RUNNING, DUE), Observed(RUNNING, GENERATION, True, True, True), (Step.SNAPSHOT,)),
        (other(Desired.STOPPED, DUE), Observed(root=True, traces=True), (Step.SNAPSHOT,)),
        # made, and its report was lost: it is observed again
        (
            other(Desired.RUNNING, DUE),
            Observed(PAUSED, GENERATION, True, True, True, snapshots=frozenset({DUE.id})),
            (Step.SNAPSHOT, Step.RESUME),
        ),
        # lost: one of now would be another
        (other(Desired.RUNNING, MADE), Observed(RUNNING, GENERATION, True, True, True), ()),
        (
            other(Desired.RUNNING, MADE),
            Observed(RUNNING, GENERATION, True, True, True, snapshots=BOTH),
            (Step.DISCARD,),
        ),
        (
            other(Desired.STOPPED, DUE),
            Observed(RUNNING, GENERATION, True, True, True, snapshots=frozenset({MADE.id})),
            (Step.DISCARD, Step.SNAPSHOT, Step.STOP),
        ),
        (other(Desired.ABSENT, DUE), Observed(traces=True, snapshots=BOTH), (Step.WITHDRAW, Step.REMOVE)),
        (other(Desired.RUNNING, epoch=1), Observed(RUNNING, GENERATION, True, True, True), (Step.KILL, *AGAIN)),
        (other(Desired.PAUSED, epoch=1), Observed(PAUSED, 0, True, True, True), (Step.KILL, *AGAIN, Step.PAUSE)),
        (other(Desired.RUNNING, epoch=1), Observed(root=True, traces=True, disk=MIB), AGAIN),
        (other(Desired.RUNNING, epoch=1), Observed(traces=True), AGAIN),
        (other(Desired.RUNNING, epoch=1), Observed(RUNNING, GENERATION, True, True, True, epoch=1), ()),
        (other(Desired.STOPPED, epoch=1), Observed(root=True, traces=True, disk=MIB), (Step.ROOT,)),
        (other(Desired.STOPPED, epoch=2), Observed(RUNNING, 0, True, True, True, epoch=1), (Step.STOP, Step.ROOT)),
        # between the exchange and the deletion of the old root
        (
            other(Desired.RUNNING, epoch=1),
            Observed(root=True, traces=True, epoch=1, replaced=True),
            (Step.DISCARD, *START),
        ),
        (other(Desired.RUNNING, epoch=1), Observed(traces=True, replaced=True), AGAIN),
    ],
)
def test_snapshots_and_other_roots(want: Sliver, observed: Observed, steps: tuple[Step, ...]) -> None:
    assert plan(want, observed) == steps


@given(
    st.sampled_from(EVERYTHING),
    st.integers(0, 2),
    st.booleans(),
    st.frozensets(st.sampled_from((MADE.id, DUE.id, "cccccccc"))),
    st.lists(st.tuples(st.sampled_from(list(Desired)), st.integers(0, 9)), max_size=5),
    st.sampled_from([one for one in Desired if one is not Desired.ABSENT]),
)
def test_a_restore_that_dies_anywhere_ends_with_the_wanted_root(
    observed: Observed,
    epoch: int,
    replaced: bool,
    there: frozenset[str],
    deaths: list[tuple[Desired, int]],
    last: Desired,
) -> None:
    """Whatever was begun before, by however many agents: the root is the one of the rows, and nothing is left over."""
    observed = dataclasses.replace(observed, epoch=epoch if observed.root else 0, replaced=replaced, snapshots=there)
    host = Host(observed, sliver(last).limits, epoch=1, snapshots=BOTH)
    for desired, steps in [*deaths, (last, 99)]:
        for step in plan(other(desired, MADE, DUE, epoch=1), host.observed)[:steps]:
            host.apply(step)
    wanted = other(last, MADE, dataclasses.replace(DUE, made=True), epoch=1)
    assert plan(wanted, host.observed) == ()
    assert not host.observed.root or (host.observed.epoch == 1 and not host.observed.replaced)
    assert host.observed.snapshots <= BOTH


@pytest.mark.parametrize("desired", [one for one in Desired if one is not Desired.ABSENT])
def test_an_earlier_copy_is_moved_away_whole(desired: Desired) -> None:
    """Its snapshots, too; the new one begins as on a node that never had it."""
    fresh = plan(rebuilt(desired), Observed())
    for observed in EVERYTHING:
        earlier = dataclasses.replace(observed, root=True, snapshots=BOTH, replaced=True)
        kill = (Step.KILL,) if observed.domain else ()
        assert plan(rebuilt(desired), earlier) == (*kill, Step.KEEP, *fresh)
        assert Step.KEEP not in plan(rebuilt(desired), dataclasses.replace(earlier, epoch=1))
        assert Step.KEEP not in plan(other(desired, epoch=1), earlier), "restored on this node"
        assert Step.KEEP not in plan(sliver(desired), earlier)
    assert Step.KEEP not in plan(rebuilt(Desired.ABSENT), Observed(root=True, traces=True))


def test_a_carried_out_plan_has_a_phase() -> None:
    assert {one: phase_after(one) for one in Desired} == {
        Desired.RUNNING: Phase.RUNNING,
        Desired.PAUSED: Phase.PAUSED,
        Desired.STOPPED: Phase.STOPPED,
        Desired.ABSENT: Phase.STOPPED,
    }
