"""Decides when an experiment must stop because the node runs out of resources. Pure: it uses the node's facts only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from slicemgr.errors import Code, Refused
from slicemgr.human import size

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class State:
    """The state of a node. Sizes are in bytes; load is the average of the last minute.

    disk_used includes metadata. disk_free hardly reflects them, because btrfs reports the space left for data there.
    """

    memory_total: int
    memory_available: int
    swap_total: int
    swap_free: int
    disk_total: int
    disk_used: int
    disk_free: int
    pids: int
    pids_max: int
    load: float
    cpus: int

    @property
    def memory(self) -> int:
        """Bytes of memory that are in use and not available without swapping."""
        return self.memory_total - self.memory_available

    @property
    def swap(self) -> int:
        return self.swap_total - self.swap_free


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a node, as shares of the whole. load: per core.

    memory, disk: the share that must stay free, at most `room` bytes. swap, pids: the share that may be in use.
    """

    memory: float = 0.06
    disk: float = 0.05
    room: int = 2 * _GIB
    swap: float = 0.5
    pids: float = 0.9
    load: float = 40.0


@dataclass(frozen=True, slots=True)
class Need:
    """The resources that the next step is going to use: bytes of memory and disk, and processes."""

    memory: int = 0
    disk: int = 0
    pids: int = 0


def state(facts: Mapping[str, object]) -> State:
    """The state of a node from its facts. Raises Refused if the agent does not report a required fact."""
    values: dict[str, float] = {}
    for name in (one.name for one in fields(State)):
        value = facts.get("memory" if name == "memory_total" else name)
        if not isinstance(value, int | float):
            hint = "it is of an older version: update it and start it again"
            raise Refused(Code.CONFLICT, f"the node's agent does not report its {name}", hint=hint, field="--node")
        values[name] = value
    return State(**values)  # type: ignore[arg-type]  # each is a number, which is all that is computed with


def state_without_memory(facts: Mapping[str, object]) -> State:
    """The state of a node whose memory is to be short: all of it counts as available. Raises Refused."""
    found = state(facts)
    return replace(found, memory_available=found.memory_total, swap_free=found.swap_total)


def verdict(now: State, need: Need, limits: Limits) -> str | None:
    """The reason why the next step must not begin, as part of a sentence; None if it may begin."""
    for what, left, whole, takes, share in (
        ("memory", now.memory_available, now.memory_total, need.memory, limits.memory),
        ("disk of the pool", now.disk_free, now.disk_total, need.disk, limits.disk),
    ):
        floor = min(int(share * whole), limits.room)
        if left - takes < floor:
            return (
                f"{what}: {size(left)} of {size(whole)} are free, the next step takes about {size(takes)}, "
                f"and {size(floor)} must stay free"
            )
    if now.swap > limits.swap * now.swap_total:
        return f"swap: {size(now.swap)} of {size(now.swap_total)} are in use, more than {limits.swap:.0%}"
    if now.pids + need.pids > limits.pids * now.pids_max:
        return (
            f"processes: {now.pids} of at most {now.pids_max}, the next step takes about {need.pids}, "
            f"and {1 - limits.pids:.0%} must stay free"
        )
    if now.load > limits.load * now.cpus:
        return f"load: {now.load:g} on {now.cpus} cores, more than {limits.load:g} for each"
    return None


def growth(before: State, after: State, made: int, more: int) -> Need:
    """The resources that `more` slivers will use if each costs as much as each of `made` slivers between two states."""
    if made < 1:
        return Need()
    spans = ((before.memory, after.memory), (before.disk_used, after.disk_used), (before.pids, after.pids))
    return Need(*(max(0, (now - then) * more // made) for then, now in spans))
