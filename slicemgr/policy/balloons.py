"""How much memory a node can take of a virtual machine by its balloon, and when the guest gets it back. Pure.

What the guest itself reports decides, and it may lie: it then loses more than it can spare, or keeps what it has, as a
guest without a balloon does. What it could give is what it can use less a floor, so that it keeps working. Most of what
is free inside is the node's already, because guests report free pages. So the balloon has to hold that first; it brings
nothing, and does not count as idle.

Memory that a guest gets back costs the node only what the guest then touches. So it gets all of it at once: when it
needs it, when it does not answer any more, and when the node is calm. A guest that needed it is left alone for a while.
It is known within about two seconds that a guest needs memory; a program that needs more than the floor within that
time fails, or the guest's kernel ends one. So the floor is high.

Bytes and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slicemgr.model import MIB

PART, LEAST = 1 / 4, 64 * MIB  # of the guest's memory, and bytes: what it can use at least after it gave memory
NEEDS = 0.75  # the part of that floor below which it needs memory back
FAULTS, SWAPPED = 100.0, 1.0 * MIB  # faults and bytes in a second that it reads back when it needs memory
STALE = 5.0  # seconds after which statistics mean nothing
NEEDED = 120.0  # seconds for which a guest that needed memory back is left alone
STUCK = 10.0  # seconds in which a guest must have given some memory
STUBBORN = 600.0  # seconds for which a guest that did not is left alone
OVERHEAD = 384 * MIB  # bytes that QEMU uses beside the guest's memory at most
CLOSE = MIB  # a balloon counts as set if it differs by less


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as the node knows it. full: its memory without a balloon. charged: what the group of its QEMU holds."""

    full: int
    guarantee: int
    charged: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a guest reports. current: memory without what the balloon holds. usable: what its programs could get of it.
    unused: the part of that which is free. faults, swapped: major faults and bytes swapped in since its start. age:
    seconds since it did.
    """

    current: int
    usable: int
    unused: int
    faults: int
    swapped: int
    age: float


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered of a machine. Times are of the clock of `now`.

    target: what the balloon was last to leave. moved, moved_at: the memory that the guest had then, and when it last
    changed. quiet: until when nothing is taken. report, reported_at: its last statistics that were not stale. grown: by
    how much the balloon was to grow the last time, with `charged` held before; credited: what of that counts as taken.
    """

    target: int
    moved: int
    moved_at: float
    reported_at: float
    report: Report | None = None
    quiet: float = 0.0
    charged: int = 0
    grown: int = 0
    credited: int = 0

    def is_reduced(self, machine: Machine) -> bool:
        """Whether the balloon is to hold memory."""
        return self.target < machine.full - CLOSE


@dataclass(frozen=True, slots=True)
class Outcome:
    """balloon: what it is to leave from now on; None: as before. taken: bytes that the node has got since the last
    step. idle: bytes that can be taken now.
    """

    balloon: int | None = None
    taken: int = 0
    idle: int = 0


def floor(machine: Machine) -> int:
    """What a guest can use at least after it gave memory."""
    return max(LEAST, int(machine.full * PART))


def step(
    before: State | None, machine: Machine, report: Report | None, now: float, *, asked: int = 0, calm: bool = False
) -> tuple[State, Outcome]:
    """One step of a machine. asked: bytes that the node wants of it. calm: whether the node needs none."""
    report = _possible(report, machine)
    current = machine.full if report is None else report.current
    if before is None:  # an earlier agent may have left less
        state = State(machine.full, current, now, now)
        return state, Outcome(machine.full if current < machine.full - CLOSE else None)
    fresh = report is not None and abs(report.age) <= STALE
    state = replace(before, moved=current, moved_at=now) if report is not None and current != before.moved else before
    state, taken = _credit(state, machine)
    if not fresh or report is None:
        if state.is_reduced(machine) and (calm or now - state.reported_at > STALE):
            return _give_back(state, machine, now, 0.0 if calm else NEEDED), Outcome(machine.full, taken)
        return state, Outcome(None, taken)
    last, since, state = state.report, now - state.reported_at, replace(state, report=report, reported_at=now)
    if state.is_reduced(machine):
        if calm:
            return _give_back(state, machine, now, 0.0), Outcome(machine.full, taken)
        if _needs(report, last, since, machine):
            return _give_back(state, machine, now, NEEDED), Outcome(machine.full, taken)
    if current > state.target + CLOSE:  # it has not yet given all
        if now - state.moved_at <= STUCK:
            return state, Outcome(None, taken)
        return replace(state, target=current, quiet=now + STUBBORN), Outcome(current, taken)
    if calm or now < state.quiet or current < state.target - CLOSE or report.age >= now - state.moved_at:
        return state, Outcome(None, taken)  # it does not yet have all again, or has not reported since it has
    room, dead = _room(report, machine), _dead(report, machine)
    idle = max(0, min(room - dead, machine.charged))
    amount = min(asked, idle)
    if amount <= 0:
        return state, Outcome(None, taken, idle)
    target = current - min(room, amount + dead)
    state = replace(state, target=target, moved=current, moved_at=now)
    return replace(state, charged=machine.charged, grown=current - target, credited=0), Outcome(target, taken)


def _possible(report: Report | None, machine: Machine) -> Report | None:
    """No more than the machine has."""
    if report is None:
        return None
    current = max(0, min(report.current, machine.full))
    usable = max(0, min(report.usable, current))
    return replace(report, current=current, usable=usable, unused=max(0, min(report.unused, usable)))


def _room(report: Report, machine: Machine) -> int:
    """By how much the balloon can grow."""
    return max(0, min(report.usable - floor(machine), report.current - machine.guarantee))


def _dead(report: Report, machine: Machine) -> int:
    """What is free inside and not for certain held by QEMU: only beyond it does the balloon bring anything."""
    certain = machine.charged - OVERHEAD - (report.current - report.unused)
    return report.unused - max(0, min(certain, report.unused))


def _needs(report: Report, last: Report | None, since: float, machine: Machine) -> bool:
    if report.usable < NEEDS * floor(machine):
        return True
    if last is None or since <= 0:
        return False
    return report.faults - last.faults > FAULTS * since or report.swapped - last.swapped > SWAPPED * since


def _credit(state: State, machine: Machine) -> tuple[State, int]:
    """What the group holds less than before the balloon grew counts as taken, up to that growth."""
    fell = min(state.charged - machine.charged, state.grown)
    taken = max(0, fell - state.credited)
    return replace(state, credited=state.credited + taken), taken


def _give_back(state: State, machine: Machine, now: float, alone: float) -> State:
    """alone: seconds for which nothing is taken."""
    quiet = max(state.quiet, now + alone)
    return replace(state, target=machine.full, moved_at=now, quiet=quiet, grown=0, credited=0)
