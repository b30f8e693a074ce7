"""What people read as the state of a sliver or a slice, from what is desired and what was seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slicemgr.model import Desired, Phase

_ON_THE_WAY = {
    (Desired.RUNNING, Phase.STOPPED): "starting",
    (Desired.RUNNING, Phase.PAUSED): "resuming",
    (Desired.STOPPED, Phase.RUNNING): "stopping",
    (Desired.STOPPED, Phase.PAUSED): "stopping",
    (Desired.PAUSED, Phase.RUNNING): "pausing",
    (Desired.PAUSED, Phase.STOPPED): "starting",
}
# A slice is called by the first of these that one of its slivers is in.
_FIRST = ("deleting", "creating", "starting", "stopping", "pausing", "resuming")


def sliver_state(desired: Desired, phase: Phase) -> str:
    if desired is Desired.ABSENT:
        return "deleting"
    if phase is Phase.FAILED:
        return "failed"
    if phase is Phase.PENDING:
        return "creating"
    return _ON_THE_WAY.get((desired, phase), phase.value)


def slice_state(states: Sequence[str]) -> str:
    """The state of a slice from its slivers'; `partial`: some differ from the others for good, or failed."""
    present = set(states)
    for state in _FIRST:
        if state in present:
            return state
    return present.pop() if len(present) == 1 else "partial"
