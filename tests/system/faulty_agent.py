"""The agent, which kills itself with SIGKILL right before or right after a step. Arguments: STEP before|after."""

from __future__ import annotations

import os
import signal
import sys

from slicemgr.agent.apply import Applier
from slicemgr.agent.plan import Step
from slicemgr.main import cli
from slicemgr.model import Sliver

STEP, MOMENT = Step(sys.argv[1]), sys.argv[2]
honest = Applier.do


def fatal(self: Applier, step: Step, sliver: Sliver) -> str:
    if step is STEP and MOMENT == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    said = honest(self, step, sliver)
    if step is STEP:
        os.kill(os.getpid(), signal.SIGKILL)
    return said


Applier.do = fatal  # type: ignore[method-assign]
cli(["agent"])
