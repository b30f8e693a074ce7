"""The agent, which sends itself or other processes a signal right before or right after a step, once.

Arguments: STEP before|after [PID[,PID…] [SIGNAL]]. PID 0 is the agent itself. SIGNAL: its number (SIGKILL).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from slicemgr.agent.apply import Applier
from slicemgr.agent.plan import Step
from slicemgr.main import cli
from slicemgr.model import Sliver

STEP, MOMENT = Step(sys.argv[1]), sys.argv[2]
victims = [int(word) or os.getpid() for word in (sys.argv[3] if len(sys.argv) > 3 else "0").split(",")]
SIGNAL = int(sys.argv[4]) if len(sys.argv) > 4 else signal.SIGKILL
honest = Applier.do


def strike() -> None:
    while victims:
        os.kill(victims.pop(0), SIGNAL)


def fatal(
    self: Applier, step: Step, sliver: Sliver, progress: Callable[[str], None], unwanted: Callable[[], bool]
) -> str:
    if step is STEP and MOMENT == "before":
        strike()
    detail = honest(self, step, sliver, progress, unwanted)
    if step is STEP:
        strike()
    return detail


Applier.do = fatal  # type: ignore[method-assign]
cli(["agent"])
