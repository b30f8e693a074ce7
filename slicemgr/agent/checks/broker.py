"""The check of the broker of a testbed, whose state the hub leaves on the machine of the service."""

from __future__ import annotations

from slicemgr.agent.checks.result import Check
from slicemgr.config import Config
from slicemgr.ipc import broker_state
from slicemgr.ipc.broker_state import BrokerState

_NAME = "broker"


def checks(config: Config) -> list[Check]:
    """Empty where there is no broker, and on hosts that joined."""
    if not config.hub.broker or config.joined:
        return []
    return [judge(broker_state.read(config.broker_file))]


def judge(state: BrokerState | None) -> Check:
    """state: None if it is not known. Pure."""
    if state is None:
        remedy = "start `slicemgr hub` on this machine, or see its log, and run the check again"
        return Check(_NAME, None, "its state is not known", remedy)
    if state.alarms:
        remedy = "give it memory or disk: see `When a part fails` in the manual"
        return Check(_NAME, False, f"it takes no messages: {', '.join(state.lacks())}", remedy)
    if state.outdated:
        return Check(_NAME, None, "; ".join(state.outdated), state.remedy())
    return Check(_NAME, True, f"{state.memory >> 20} of {state.memory_limit >> 20} MiB of memory are used")
