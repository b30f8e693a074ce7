"""From whom a node takes memory back when it runs short, and what it still guarantees then. Pure.

What is idle is taken first, in proportion to what each sliver holds idle beyond its guarantee and against its weight.
Only if the node has nearly nothing left, the same is done with all that slivers hold beyond their guarantees; never
with the guarantees. A sliver that reads back what it lost, or whose programs wait for memory after it lost some, is
left alone for a while. Taking begins below one mark of available memory and ends above a higher one, and its rate is
limited, so that the node does not swing between both.

What is available is mostly page cache, and a kernel that takes it spares no guarantee. So where something is
guaranteed, what is beyond guarantees is taken already before nothing is free: idle or not, and without a limit of the
rate, because the kernel would take the same, of all slivers alike.

What is taken of a sliver that wants ever more comes back at once, and processors and disks then serve that exchange. So
while the node is short of memory, or will be in seconds, a sliver that has more than its share of what lies beyond
guarantees, by weight, is throttled: it hardly grows, and exchanges little of what it has. Only kernels of v2 can do
that.

While there is time, idle memory is taken slowly as soon as little is free, so that a program that wants memory gets it
without a search; not if most of what could be taken is the node's own page cache. A sliver that wants back a good part
of what it lost, or waits at all (TMO, ASPLOS 2022, takes memory until a program waits for 0.1 % of the time), is left
alone for longer than in a shortage.

Bytes, seconds, and bytes per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

LOW, HIGH = 0.06, 0.10  # parts of the node's memory that are available when taking begins and when it ends
FREE_LOW, FREE_HIGH = 0.03, 0.06  # the same of free memory, where something is guaranteed
AHEAD = 1.0  # seconds for which free and available memory are expected to fall as they did
THROTTLED_AHEAD = 3.0  # the same for who is throttled, since what has grown meanwhile must be taken
EXCHANGE = 0.02  # the part of what a throttled sliver holds that it can exchange in a second
URGENT = 0.03  # of the node's memory: with less available, what is not idle is taken, too
RATES = {False: 0.02, True: 0.20}  # the part of what a sliver holds that is taken in a second, slowly and fast
QUIET = 15.0  # seconds for which a sliver that reads back what it lost is left alone
REREAD = 0.01  # the part of what a sliver holds that it reads back in a second when it needs it
UNUSED_LOW, UNUSED_HIGH = 0.10, 0.14  # parts of the node's memory that are free when slow taking begins and ends
SLOW = 0.005  # the part of what a sliver holds that is then taken in a second
SLOW_EVERY = 5.0  # seconds between two such steps
BACK = 0.1  # the part of what a sliver lost that it reads back before the next one when it needs it
WAITED, SLOW_WAITED = 0.1, 0.001  # parts of the time in which a sliver waits for memory when it needs it
SLOW_QUIET = 120.0  # seconds for which such a sliver is left alone


@dataclass(frozen=True, slots=True)
class Holding:
    """What a sliver holds. charged: all of it. idle: the part that the kernel can take without hurting the sliver.

    reread: bytes that it read back since the last step, after the kernel had taken them. waited: seconds in which one
    of its programs waited for memory since then. weight: 1..10000. takeable: the part that the kernel can take at all;
    None: all of it.
    """

    id: str
    guarantee: int
    weight: int
    charged: int
    idle: int
    reread: int = 0
    takeable: int | None = None
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """total: the memory that the node has now. available: what programs could get without a loss for any other. free:
    the part of that which holds nothing; None: it is not known. falling, sinking: what is lost of free and of available
    memory in a second. spares: whether the kernel spares guarantees, so that no memory need be free. slow: whether idle
    memory is taken slowly.
    """

    total: int
    available: int
    free: int | None = None
    falling: float = 0.0
    spares: bool = False
    slow: bool = False
    sinking: float = 0.0

    @property
    def soon_free(self) -> float:
        """The free memory of the next moment, on which the node acts: it cannot act faster than memory is used."""
        return math.inf if self.free is None or self.spares else self.free - AHEAD * max(0.0, self.falling)

    @property
    def soon_available(self) -> int:
        """The same of available memory."""
        return self.available_in(AHEAD)

    def available_in(self, seconds: float) -> int:
        return self.available - int(seconds * max(0.0, self.sinking))

    def has_little_unused(self, *, before: bool) -> bool:
        """Whether idle memory is to be taken slowly. before: whether it was in the last step."""
        mark = (UNUSED_HIGH if before else UNUSED_LOW) * self.total
        return self.slow and self.free is not None and self.free < mark


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered from one step to the next. short: whether memory is being taken. quiet: until when a sliver is
    left alone, seconds of the clock of `now`. taken: bytes that each sliver lost in the last step. full: whether idle
    memory is being taken so that some is free. slow: whether that is done slowly, because there is time: again when the
    clock of `now` has this value; `taken` is then of the last time, and read, waited: bytes that slivers have read back
    since, and seconds for which they have waited. at: when this step was, by that clock. most: as in `Targets`.
    """

    short: bool = False
    quiet: Mapping[str, float] = field(default_factory=dict)
    taken: Mapping[str, int] = field(default_factory=dict)
    full: bool = False
    slow: bool = False
    again: float = -math.inf
    read: Mapping[str, int] = field(default_factory=dict)
    waited: Mapping[str, float] = field(default_factory=dict)
    at: float = -math.inf
    most: Mapping[str, int] = field(default_factory=dict)

    @property
    def takes(self) -> bool:
        """Whether memory is being taken because the node is short of it."""
        return self.short or self.full


@dataclass(frozen=True, slots=True)
class Targets:
    """take: bytes to take from slivers. guarantees: what is guaranteed to each, which is less than was promised if the
    node does not have it. needed: bytes that the node lacks; more than the sum of `take` if that is not enough. most:
    bytes that each may hold while the node is short of memory or soon will be; empty if it is not. exchange: bytes to
    take from slivers that hold as much as they may and wait for more, so that they go on.
    """

    take: Mapping[str, int]
    guarantees: Mapping[str, int]
    needed: int = 0
    most: Mapping[str, int] = field(default_factory=dict)
    exchange: Mapping[str, int] = field(default_factory=dict)


def step(before: State, node: Node, holdings: Sequence[Holding], now: float, elapsed: float) -> tuple[State, Targets]:
    """The targets of one step, and the state for the next. elapsed: since the last step."""
    quiet = _quiet(before, holdings, now, elapsed)
    has = node.available + sum(one.charged for one in holdings)
    guarantees = guaranteed(holdings, has - int(URGENT * node.total))
    available = node.soon_available
    short = available < (HIGH if before.short else LOW) * node.total
    full = node.soon_free < (FREE_HIGH if before.full else FREE_LOW) * node.total
    full = full and any(one.guarantee for one in holdings)
    tight = node.available_in(THROTTLED_AHEAD) < (HIGH if before.most else LOW) * node.total
    allowed = _allowed(before, node, holdings, guarantees) if short or tight else {}
    if not short and not full:
        if allowed or not node.has_little_unused(before=before.slow):
            return State(quiet=quiet, at=now, most=allowed), Targets({}, guarantees, most=allowed)
        return _slowly(replace(before, quiet=quiet, most={}), node, holdings, guarantees, now)
    needed = max(0, math.ceil(HIGH * node.total) - available) if short else 0
    if full:
        needed = max(needed, math.ceil(FREE_HIGH * node.total - node.soon_free))
    fast, urgent = available < LOW * node.total, full or available < URGENT * node.total
    most = {one.id: int(one.charged * (1.0 if full else min(1.0, RATES[fast] * elapsed))) for one in holdings}
    beyond = {one.id: _beyond(one, guarantees) for one in holdings}
    weights = {one.id: one.weight for one in holdings}
    idle = {
        one.id: 0 if one.id in quiet and not urgent else min(one.idle, beyond[one.id], most[one.id]) for one in holdings
    }
    take = _share(needed, idle, weights)
    if urgent and (left := needed - sum(take.values())) > 0:
        rest = {name: max(0, min(beyond[name], most[name]) - take[name]) for name in beyond}
        take = {name: take[name] + more for name, more in _share(left, rest, weights).items()}
    take = {name: amount for name, amount in take.items() if amount}
    exchange = {
        one.id: min(beyond[one.id], int(EXCHANGE * elapsed * one.charged))
        for one in holdings
        if one.waited and one.id in allowed and one.id not in take and one.charged >= allowed[one.id]
    }
    return State(short, quiet, take, full, at=now, most=allowed), Targets(take, guarantees, needed, allowed, exchange)


def _slowly(
    before: State, node: Node, holdings: Sequence[Holding], guarantees: dict[str, int], now: float
) -> tuple[State, Targets]:
    """Take some of what is idle, of slivers that do not want it back."""
    lost = before.taken if before.slow else {}
    read = {one.id: before.read.get(one.id, 0) + one.reread for one in holdings if one.id in lost}
    waited = {one.id: before.waited.get(one.id, 0.0) + one.waited for one in holdings if one.id in lost}
    if before.slow and now < before.again:
        return replace(before, read=read, waited=waited, at=now), Targets({}, guarantees)
    longest = SLOW_WAITED * (now - before.again + SLOW_EVERY)
    wanted = [name for name in read if read[name] > BACK * lost[name] or waited[name] > longest]
    quiet = {**before.quiet, **dict.fromkeys(wanted, now + SLOW_QUIET)}
    free, part, idle = node.free or 0, SLOW * SLOW_EVERY, sum(one.idle for one in holdings)
    losing = [one for one in holdings if one.id not in quiet] if 2 * idle >= node.available - free else []
    most = {one.id: min(one.idle, _beyond(one, guarantees), int(part * one.charged)) for one in losing}
    needed = math.ceil(UNUSED_HIGH * node.total) - free
    take = {name: n for name, n in _share(needed, most, {one.id: one.weight for one in holdings}).items() if n}
    return State(quiet=quiet, taken=take, slow=True, again=now + SLOW_EVERY, at=now), Targets(take, guarantees, needed)


def _allowed(before: State, node: Node, holdings: Sequence[Holding], guarantees: Mapping[str, int]) -> dict[str, int]:
    """What each may hold: its guarantee and its share, or the least that it held since the node is short, if more."""
    beyond = {one.id: max(0, one.charged - guarantees[one.id]) for one in holdings}
    pool = sum(beyond.values()) + max(0, node.available - int(URGENT * node.total))
    weights = sum(one.weight for one in holdings)
    found = {}
    for one in holdings:
        share = guarantees[one.id] + pool * one.weight // weights
        found[one.id] = max(share, min(one.charged, before.most.get(one.id, one.charged)))
    return found


def _beyond(one: Holding, guarantees: Mapping[str, int]) -> int:
    """The bytes that can be taken of what a sliver holds beyond its guarantee."""
    most = one.charged if one.takeable is None else one.takeable
    return max(0, min(one.charged - guarantees[one.id], most))


def guaranteed(holdings: Sequence[Holding], capacity: int) -> dict[str, int]:
    """What is guaranteed to each of the slivers if there are `capacity` bytes for all.

    If the promises exceed that, those of small weight are reduced first: each keeps a part that grows with its weight
    until it is whole.
    """
    capacity, full = max(0, capacity), {one.id: one.guarantee for one in holdings}
    reduced = sorted((one for one in holdings if one.guarantee), key=lambda one: -one.weight)
    if sum(full.values()) <= capacity:
        return full
    left = capacity
    for number, one in enumerate(reduced):
        others = sum(each.guarantee * each.weight for each in reduced[number:])
        if left * one.weight < others:  # from here on no sliver keeps all
            return full | {each.id: left * each.guarantee * each.weight // others for each in reduced[number:]}
        left -= one.guarantee
    return full


def _quiet(before: State, holdings: Sequence[Holding], now: float, elapsed: float) -> dict[str, float]:
    """Until when slivers are left alone, those included that have just shown that they need what they lost."""
    there = {one.id for one in holdings}
    kept = {name: until for name, until in before.quiet.items() if until > now and name in there}
    since = elapsed if before.at == -math.inf else now - before.at
    hurt = (one.id for one in holdings if _is_hurt(one, since))
    return kept | {name: now + QUIET for name in hurt if before.taken.get(name) or name in kept}


def _is_hurt(one: Holding, since: float) -> bool:
    return one.reread > REREAD * since * one.charged > 0 or one.waited > WAITED * since


def _share(needed: int, most: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
    """Divide `needed` bytes, or all that there is, in proportion to `most` and against the weights. most: of each."""
    given = dict.fromkeys(most, 0)
    open_ = {name: most[name] / weights[name] for name in most if most[name]}
    while (left := needed - sum(given.values())) > 0 and open_:
        whole = sum(open_.values())
        full = [name for name, part in open_.items() if left * part / whole >= most[name]]
        if not full:
            return given | _rounded(left, {name: left * part / whole for name, part in open_.items()})
        for name in full:
            given[name] = most[name]
            del open_[name]
    return given


def _rounded(whole: int, parts: Mapping[str, float]) -> dict[str, int]:
    """The parts as whole numbers whose sum is `whole`, each at most one more than it was."""
    found = {name: int(part) for name, part in parts.items()}
    for name in list(parts)[: whole - sum(found.values())]:
        found[name] += 1
    return found
