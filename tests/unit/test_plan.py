"""plan: from every state of a host, also one left by a crash, to what is wanted."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.agent.plan import DomainState, Seen, Step, phase_after, plan
from slicemgr.model import GIB, MIB, Desired, Kind, Limits, Phase, PortBlock, Sliver

GENERATION = 3
SETTLE = (Step.PUBLISH, Step.VERIFY, Step.SSH)
START = (Step.IDENTITY, Step.PUBLISH, Step.DOMAIN, Step.VERIFY, Step.SSH)
RUNNING, PAUSED = DomainState.RUNNING, DomainState.PAUSED
BOOLS = (False, True)
EVERYTHING = [
    Seen(domain, generation, settled, root, traces, disk if root else None)
    for domain, generation, settled, root, traces, disk in itertools.product(
        (None, RUNNING, PAUSED), (0, GENERATION), BOOLS, BOOLS, BOOLS, (None, GIB, GIB // 2)
    )
    if root or disk is None
]


def sliver(desired: Desired) -> Sliver:
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
        limits=Limits(512 * MIB, GIB, 512, 1.0),
        ssh_keys=(),
        generation=GENERATION,
    )


@dataclasses.dataclass
class Host:
    """One sliver's part of a host; each step says what it cannot do without."""

    seen: Seen
    published: bool = False

    def apply(self, step: Step) -> None:
        seen = self.seen
        change = dataclasses.replace
        match step:
            case Step.ROOT | Step.RESIZE:
                assert seen.root is (step is Step.RESIZE)
                self.seen = change(seen, root=True, traces=True, disk=GIB)
            case Step.IDENTITY:
                assert seen.root, "written into a root that is not there"
                assert seen.domain is None, "written into the root of a running domain"
            case Step.PUBLISH:
                self.published = True
            case Step.DOMAIN:
                assert seen.root and seen.domain is None and self.published
                self.seen = change(seen, domain=RUNNING, generation=GENERATION, settled=False)
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
            case Step.STOP | Step.KILL:
                assert seen.domain is not None
                self.seen = change(seen, domain=None, settled=False)
            case Step.WITHDRAW:
                assert seen.domain is None, "an unpublished link belongs to a domain that runs"
                self.published = False
            case Step.REMOVE:
                assert seen.domain is None
                self.seen = change(seen, root=False, traces=False, disk=None)


def finished(desired: Desired, host: Host) -> bool:
    """Withdrawing rules is asked for again and again: it is what the last look at a sliver does."""
    left = plan(sliver(desired), host.seen)
    return left == ((Step.WITHDRAW,) if desired is Desired.ABSENT else ())


@pytest.mark.parametrize("desired", Desired)
@pytest.mark.parametrize("seen", EVERYTHING, ids=str)
def test_every_plan_leads_to_an_empty_one(desired: Desired, seen: Seen) -> None:
    host = Host(seen)
    for step in plan(sliver(desired), seen):
        host.apply(step)
    assert finished(desired, host)
    expected = {Desired.RUNNING: RUNNING, Desired.PAUSED: PAUSED}.get(desired)
    assert host.seen.domain is expected
    if expected is not None:
        assert host.seen.settled and host.seen.generation == GENERATION
    if desired is Desired.ABSENT:
        gone = dataclasses.replace(seen, domain=None, root=False, traces=False, disk=None)
        assert host.seen == dataclasses.replace(gone, settled=host.seen.settled)
        assert not host.published


@given(
    st.sampled_from(EVERYTHING),
    st.lists(st.tuples(st.sampled_from(list(Desired)), st.integers(0, 8)), max_size=6),
    st.sampled_from(list(Desired)),
)
def test_crashes_and_changes_of_mind_are_caught_up(
    seen: Seen, crashes: list[tuple[Desired, int]], last: Desired
) -> None:
    host = Host(seen)
    for desired, steps in crashes:
        for step in plan(sliver(desired), host.seen)[:steps]:
            host.apply(step)
    for step in plan(sliver(last), host.seen):
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
        (Desired.STOPPED, Seen(None, 0, False, True, True, MIB), (Step.RESIZE,)),
        (Desired.ABSENT, Seen(RUNNING, 0, True, True, True, MIB), (Step.KILL, Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Seen(RUNNING, 0, True, True, True), (Step.KILL, Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Seen(traces=True), (Step.WITHDRAW, Step.REMOVE)),
        (Desired.ABSENT, Seen(), (Step.WITHDRAW,)),
    ],
)
def test_the_steps_themselves(desired: Desired, seen: Seen, steps: tuple[Step, ...]) -> None:
    assert plan(sliver(desired), seen) == steps


def test_a_carried_out_plan_has_a_phase() -> None:
    assert {one: phase_after(one) for one in Desired} == {
        Desired.RUNNING: Phase.RUNNING,
        Desired.PAUSED: Phase.PAUSED,
        Desired.STOPPED: Phase.STOPPED,
        Desired.ABSENT: Phase.STOPPED,
    }
