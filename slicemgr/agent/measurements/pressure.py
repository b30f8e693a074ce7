"""Take memory of the node for `slicectl bench memory`, as a program beside the slivers does, and record what follows.

For that time the memory controller works as the measurement needs. The program is slicemgr's own (`slicemgr.loads`),
and runs as the programs of `loads` do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from slicemgr import loads
from slicemgr.agent.chores.memory import MemoryController
from slicemgr.agent.measurements.loads import confined
from slicemgr.drivers import command
from slicemgr.drivers.kernel import counters
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.errors import Code, Failed, Refused
from slicemgr.human import size

_RESERVE = 0.05  # of the node's memory that must remain available
_TICK = 1.0  # seconds


class Pressure:
    """Does one measurement at a time. stop: set when the agent is stopping, which ends the program too."""

    def __init__(
        self,
        controller: MemoryController,
        stop: threading.Event,
        memory: Callable[[], Memory] = counters.memory,
    ) -> None:
        self._controller, self._stop, self._memory = controller, stop, memory
        self._busy = threading.Lock()

    def measure(self, params: Mapping[str, Any]) -> dict[str, object]:
        """Wait `before` seconds, hold `bytes` for `hold` seconds, and wait `after` seconds.

        The result has the time `at` which it began, and for each second the memory that was `available` and `free`,
        and all that the controller had `taken`; and `cpu`, seconds that the controller used. Raises Refused or Failed.
        """
        if not self._busy.acquire(blocking=False):
            hint = "wait until the operation has ended, see `slicectl op list`"
            raise Refused(Code.CONFLICT, "a measurement of memory is running on this node", hint=hint)
        with ExitStack() as undo:
            undo.callback(self._busy.release)
            self._check_room(int(params["bytes"]))
            undo.callback(setattr, self._controller, "mode", self._controller.mode)
            self._controller.mode = str(params["controller"]) or self._controller.mode
            return self._record(params, undo)

    def _check_room(self, wanted: int) -> None:
        now = self._memory()
        if wanted > now.available - _RESERVE * now.total:
            message = f"{size(wanted)} are too many: {size(now.available)} of the node's memory are available"
            hint = f"{size(int(_RESERVE * now.total))} of it must remain available"
            raise Refused(Code.CONFLICT, message, hint=hint, field="bytes")

    def _record(self, params: Mapping[str, Any], undo: ExitStack) -> dict[str, object]:
        before, hold, after = (int(params[name]) for name in ("before", "hold", "after"))
        begun, at = time.monotonic(), time.time()
        taken, cpu = self._controller.total, self._controller.cost
        found: dict[str, list[int]] = {"available": [], "free": [], "taken": []}
        program = None
        for second in range(before + hold + after):
            if second == before and params["bytes"]:
                program = self._program(int(params["bytes"]), hold, undo)
            if self._stop.wait(max(0.0, begun + (second + 1) * _TICK - time.monotonic())):
                raise Failed("the agent is stopping", hint="try again when it has restarted")
            if program is not None and program.ended and second < before + hold - 1:
                raise Failed(f"the program that holds memory ended: {program.failure()}")
            now = self._memory()
            found["available"].append(now.available)
            found["free"].append(now.free)
            found["taken"].append(self._controller.total - taken)
        return {"at": at, "cpu": self._controller.cost - cpu, **found}

    @staticmethod
    def _program(amount: int, seconds: int, undo: ExitStack) -> command.Conversation:
        text = undo.enter_context(Path(loads.__file__).with_name("memory.py").open("rb"))
        words = confined(["python3", "-I", "-", "hold", str(amount), str(seconds)])
        return undo.enter_context(command.converse(words, timeout=seconds + 60.0, stdin=text))
