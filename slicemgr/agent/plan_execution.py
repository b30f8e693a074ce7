"""Brings one sliver from what the host has to what is desired: observe, plan, apply.

Each step is reported to the caller. A step that fails is undone and ends the plan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TypeVar

from slicemgr.agent import observe
from slicemgr.agent.apply import Applier
from slicemgr.agent.plan import Step, plan
from slicemgr.agent.worker_threads import Rest
from slicemgr.config import Config
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.errors import Code, SlicemgrError
from slicemgr.model import OperationState, Sliver

_PATIENCE = 15.0  # seconds during which libvirt may be away before a step gives up
_BETWEEN = 0.5  # seconds between attempts meanwhile

Report = Callable[[Step, OperationState, str], None]
T = TypeVar("T")


class PlanExecutor:
    """Thread-safe for different slivers; it must not be called twice at the same time for one sliver."""

    def __init__(self, config: Config, hypervisor: Hypervisor, applier: Applier, stop: threading.Event) -> None:
        self._config = config
        self._hypervisor = hypervisor
        self._applier = applier
        self._stop = stop

    def steps(self, sliver: Sliver) -> tuple[Step, ...]:
        """What is to be done now."""
        return plan(sliver, self._patiently(lambda: observe.one(self._config, self._hypervisor, sliver.id)))

    def begin_kill(self, slivers: Collection[str]) -> None:
        """Begin to end the containers among slivers that are to be deleted, all at the same time.

        Errors are left to the turn of each sliver, which ends what is still there.
        """
        with suppress(SlicemgrError):
            self._hypervisor.begin_kill(slivers)

    def carry_out(
        self, sliver: Sliver, steps: tuple[Step, ...], report: Report, unwanted: Callable[[], bool]
    ) -> Rest | None:
        """Apply `steps` up to where only waiting is left; that rest is returned, or None if there is none.

        unwanted: whether the sliver shall be something else by now; then there is nothing to wait for.
        """
        waiting = steps.index(Step.SSH) if Step.SSH in steps else len(steps)
        self._apply(sliver, steps[:waiting], report, unwanted)
        if waiting == len(steps):
            return None
        return lambda: self._apply(sliver, steps[waiting:], report, unwanted)

    def _apply(self, sliver: Sliver, steps: tuple[Step, ...], report: Report, unwanted: Callable[[], bool]) -> None:
        for step in steps:
            tell = partial(report, step, OperationState.RUNNING)
            tell("")
            try:
                detail = self._patiently(partial(self._applier.do, step, sliver, tell, unwanted))
            except SlicemgrError as error:
                report(step, OperationState.FAILED, str(error))
                self._applier.undo(step, sliver)
                raise
            report(step, OperationState.DONE, detail)

    def _patiently(self, job: Callable[[], T]) -> T:
        """Try again for a while when libvirt is away: it may be restarting."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return job()
            except SlicemgrError as error:
                if error.code is not Code.UNAVAILABLE or time.monotonic() > deadline or self._stop.wait(_BETWEEN):
                    raise
