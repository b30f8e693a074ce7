"""`slicemgr make-centre`, in which a step fails after it was done: `faulty_conversion.py STEP WORDS...`.

STEP begins with `keep-`: the control, in which that step is not undone.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from slicemgr.conversion import steps
from slicemgr.conversion.conversion import Conversion, Step
from slicemgr.errors import Failed
from slicemgr.main import main

NAME = sys.argv.pop(1)
honest = steps.steps


def faulty(step: Step) -> Step:
    def do(conversion: Conversion) -> None:
        step.do(conversion)
        raise Failed(f"injected after {step.name}")

    return replace(step, do=do, undo=(lambda _: None) if NAME.startswith("keep-") else step.undo)


def changed() -> tuple[Step, ...]:
    return tuple(faulty(step) if step.name == NAME.removeprefix("keep-") else step for step in honest())


steps.steps = changed
main()
