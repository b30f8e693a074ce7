"""The agent, which kills itself or other processes right before or right after a step, once.

Arguments: STEP before|after [PID[,PID…]]. PID 0 is the agent itself.
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
honest = Applier.do


def strike() -> None:
    while victims:
        os.kill(victims.pop(0), signal.SIGKILL)


def fatal(self: Applier, step: Step, sliver: Sliver, tell: Callable[[str], None]) -> str:
    if step is STEP and MOMENT == "before":
        strike()
    said = honest(self, step, sliver, tell)
    if step is STEP:
        strike()
    return said


Applier.do = fatal  # type: ignore[method-assign]
cli(["agent"])
