"""Which slivers are not as desired and may be repaired now. Pure: no clock, no host, no database.

A sliver whose repair failed is tried again later, each time after twice the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from slicemgr.agent.plan import Observed, Step, plan
from slicemgr.model import Kind, Sliver

_KEYS_AGAIN = 60.0  # seconds before the ssh keys are offered again to a guest that did not take them
_FIRST_RETRY, _LONGEST_RETRY = 5.0, 600.0  # seconds before the repair of a sliver is tried again


@dataclass(frozen=True, slots=True)
class Repair:
    """A sliver that is not as desired, and what has to be done about it."""

    sliver: Sliver
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Attempts:
    """When each sliver may be repaired again. `now` is in seconds of a clock that never goes back."""

    _failed: dict[str, tuple[float, float]] = field(default_factory=dict)  # sliver → (not before, next wait)
    _keys: dict[str, float] = field(default_factory=dict)  # sliver → not before, where only its ssh keys differ

    def may_repair(self, sliver: str, now: float) -> bool:
        return now >= self._failed.get(sliver, (0.0, 0.0))[0]

    def may_give_keys(self, sliver: str, now: float) -> bool:
        """Whether it is time; then not again for a minute, because a guest without an agent never takes them."""
        if now < self._keys.get(sliver, 0.0):
            return False
        self._keys[sliver] = now + _KEYS_AGAIN
        return True

    def succeeded(self, sliver: str) -> None:
        self._failed.pop(sliver, None)

    def failed(self, sliver: str, now: float) -> float:
        """Note it; the seconds until the next attempt."""
        _, wait = self._failed.get(sliver, (0.0, _FIRST_RETRY))
        self._failed[sliver] = (now + wait, min(2 * wait, _LONGEST_RETRY))
        return wait


def find(
    slivers: Iterable[Sliver],
    observed: Callable[[str], Observed],
    attempts: Attempts,
    now: float,
    *,
    busy: Callable[[str], bool],
    machines_known: bool,
) -> Iterator[Repair]:
    """The repairs that are due, one by one.

    observed: what the host has of a sliver. busy: whether work on it is under way already. machines_known: whether
    the node has found out what runs virtual machines; before that none is repaired.
    """
    for sliver in slivers:
        if not machines_known and sliver.kind is Kind.KVM:
            continue
        if busy(sliver.id) or not attempts.may_repair(sliver.id, now):
            continue
        steps = plan(sliver, observed(sliver.id))
        if steps and (steps != (Step.KEYS,) or attempts.may_give_keys(sliver.id, now)):
            yield Repair(sliver, steps)
