"""Find the slivers that differ from their desired state and may be repaired now. Pure: no clock, no host, no database.

After a failure, the wait before the next attempt doubles each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from slicemgr.agent.plan import Observed, Step, plan
from slicemgr.model import Sliver, SliverType

_KEYS_AGAIN = 60.0  # seconds before the ssh keys are sent again to a guest that did not accept them
_FIRST_RETRY, _LONGEST_RETRY = 5.0, 600.0  # seconds before the next attempt to repair a sliver


@dataclass(frozen=True, slots=True)
class Repair:
    """A sliver that differs from its desired state, and the steps that repair it."""

    sliver: Sliver
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Attempts:
    """The times at which each sliver may be repaired again. `now` is in seconds of a monotonic clock."""

    _failed: dict[str, tuple[float, float]] = field(default_factory=dict)  # sliver → (not before, next wait)
    _keys: dict[str, float] = field(default_factory=dict)  # sliver → not before, if only its ssh keys differ

    def may_repair(self, sliver: str, now: float) -> bool:
        """Whether the wait after the last failure is over."""
        return now >= self._failed.get(sliver, (0.0, 0.0))[0]

    def may_give_keys(self, sliver: str, now: float) -> bool:
        """Whether keys may be sent now; then not again for 60 s, since a guest without an agent never accepts them."""
        if now < self._keys.get(sliver, 0.0):
            return False
        self._keys[sliver] = now + _KEYS_AGAIN
        return True

    def succeeded(self, sliver: str) -> None:
        """Forget the failures of a sliver."""
        self._failed.pop(sliver, None)

    def failed(self, sliver: str, now: float) -> float:
        """Record a failure; the seconds until the next attempt."""
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
    """The repairs that are due, one at a time.

    observed: returns the observed state of a sliver. busy: whether work on it is in progress. machines_known: whether
    the node has found its acceleration; before, no machine is repaired.
    """
    for sliver in slivers:
        if not machines_known and sliver.type is SliverType.KVM:
            continue
        if busy(sliver.id) or not attempts.may_repair(sliver.id, now):
            continue
        steps = plan(sliver, observed(sliver.id))
        if steps and (steps != (Step.KEYS,) or attempts.may_give_keys(sliver.id, now)):
            yield Repair(sliver, steps)
