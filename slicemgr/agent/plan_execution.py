"""Bring one sliver from its observed state to the desired state: observe, plan, apply.

Each step is reported to the caller. A step that fails is undone and ends the plan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TypeVar

from slicemgr import names
from slicemgr.agent import observe
from slicemgr.agent.apply import Applier
from slicemgr.agent.plan import Step, plan
from slicemgr.agent.worker_threads import Rest
from slicemgr.config import Config
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network import links
from slicemgr.errors import Code, SlicemgrError
from slicemgr.model import OperationState, Sliver

_UNAVAILABLE_LIMIT = 15.0  # seconds during which libvirt may be unavailable before a step fails
_ATTEMPT_INTERVAL = 0.5  # seconds between attempts during that time

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
        """The steps that are needed now."""
        return plan(
            sliver, self._repeat_while_unavailable(lambda: observe.one(self._config, self._hypervisor, sliver.id))
        )

    def begin_kill(self, slivers: Collection[str]) -> None:
        """Begin to kill containers that are to be deleted, all at the same time.

        Errors are ignored: the turn of each sliver ends what still runs.
        """
        with suppress(SlicemgrError):
            links.remove([names.link(one) for one in slivers])
            self._hypervisor.begin_kill(slivers)

    def carry_out(
        self, sliver: Sliver, steps: tuple[Step, ...], report: Report, unwanted: Callable[[], bool]
    ) -> Rest | None:
        """Apply `steps` up to the step that only waits; return the rest as a function, or None if there is no rest.

        unwanted: whether a later request has changed the desired state; the rest then does not wait.
        """
        waiting = steps.index(Step.SSH) if Step.SSH in steps else len(steps)
        self._apply(sliver, steps[:waiting], report, unwanted)
        if waiting == len(steps):
            return None
        return lambda: self._apply(sliver, steps[waiting:], report, unwanted)

    def _apply(self, sliver: Sliver, steps: tuple[Step, ...], report: Report, unwanted: Callable[[], bool]) -> None:
        for step in steps:
            progress = partial(report, step, OperationState.RUNNING)
            progress("")
            try:
                detail = self._repeat_while_unavailable(partial(self._applier.do, step, sliver, progress, unwanted))
            except SlicemgrError as error:
                report(step, OperationState.FAILED, str(error))
                self._applier.undo(step, sliver)
                raise
            report(step, OperationState.DONE, detail)

    def _repeat_while_unavailable(self, job: Callable[[], T]) -> T:
        """Repeat the job for up to 15 s while libvirt is unavailable, because it may be restarting."""
        deadline = time.monotonic() + _UNAVAILABLE_LIMIT
        while True:
            try:
                return job()
            except SlicemgrError as error:
                if (
                    error.code is not Code.UNAVAILABLE
                    or time.monotonic() > deadline
                    or self._stop.wait(_ATTEMPT_INTERVAL)
                ):
                    raise
