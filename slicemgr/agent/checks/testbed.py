"""The state of the database and of the testbed, from what the caller has read. Pure."""

from __future__ import annotations

from collections.abc import Collection

from slicemgr.agent.checks.result import Check
from slicemgr.ipc import clock_offset
from slicemgr.store.incarnation import REVIEW, Incarnation

_CLOCK = 5.0  # seconds by which clocks may differ


def hold(held: Incarnation | None) -> Check:
    """Whether the database is on hold after a restore. Pure."""
    if held is None:
        return Check("restore", True, "not on hold")
    detail = f"{held.says()}: no sliver is created, repaired, stopped or deleted"
    return Check("restore", False, detail, f"run `{REVIEW}` on the node of the service")


def counters(wrong: Collection[str]) -> Check:
    """Whether what slivers were allocated is counted correctly. wrong: the nodes for which it is not. Pure."""
    detail = f"they differ from the slivers of {', '.join(wrong)}" if wrong else "agree with the slivers of all nodes"
    return Check("allocation counters", not wrong, detail, "restart the agent, which counts again; then report a bug")


def clock(ahead: float | None) -> Check:
    """Whether the clock of a host that joined is right. ahead: seconds, compared with the centre's. Pure."""
    if ahead is None:
        return Check(
            "node clock", None, "not compared with the centre's", "start `slicemgr link`, and run the check again"
        )
    remedy = "run a time service, such as systemd-timesyncd or chrony, on this host and on the centre"
    return Check("node clock", True if abs(ahead) < _CLOCK else None, clock_offset.words(ahead), remedy)
