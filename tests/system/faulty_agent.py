"""The agent, which sends itself or another process a signal right before or right after a step, once.

Arguments: STEP before|after [PID [SIGNAL]]. SIGNAL: its number (SIGKILL).
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
victims = [int(sys.argv[3]) if len(sys.argv) > 3 else os.getpid()]
SIGNAL = int(sys.argv[4]) if len(sys.argv) > 4 else signal.SIGKILL
honest = Applier.do


def strike() -> None:
    if victims:
        os.kill(victims.pop(), SIGNAL)


def fatal(self: Applier, step: Step, sliver: Sliver, tell: Callable[[str], None]) -> str:
    if step is STEP and MOMENT == "before":
        strike()
    said = honest(self, step, sliver, tell)
    if step is STEP:
        strike()
    return said


Applier.do = fatal  # type: ignore[method-assign]
cli(["agent"])
