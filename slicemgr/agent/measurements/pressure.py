"""Take memory of the node for `slicectl bench memory`, as a program beside the slivers does, and record what follows.

For that time the memory controller works as the measurement needs. The program is slicemgr's own (`slicemgr.loads`),
and runs as the programs of `loads` do.
"""

from __future__ import annotations

import signal
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
from slicemgr.drivers.kernel import counters, memory_groups
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.errors import Code, Failed, Refused
from slicemgr.human import size

_RESERVE = 0.05  # of the node's memory that must remain available
_TICK = 1.0  # seconds
# As with a balloon below the node, no program can be ended to get this memory. Without CAP_SYS_RESOURCE it may end.
_SPARED = 'echo -1000 >/proc/$$/oom_score_adj 2>/dev/null; exec "$@"'
# How the kernel took memory: by its own thread or by the program that wanted some, of whom, and what came back.
_COUNTERS = (
    *("pgscan_kswapd", "pgscan_direct", "pgsteal_kswapd", "pgsteal_direct", "pgsteal_file", "pgsteal_anon"),
    *("pswpin", "pswpout", "zswpin", "zswpout", "oom_kill"),
    *("workingset_refault", "workingset_refault_file", "workingset_refault_anon"),
)


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
        and all that the controller had `taken`; `cpu`, seconds that the controller used, and `taking`, those of the
        kernel in its thread; `kernel`, how much the counters of /proc/vmstat grew while the bytes were held; and
        `killed`, whether the kernel ended the program that held them. Raises Refused or Failed.
        """
        if not self._busy.acquire(blocking=False):
            hint = "wait until the operation has ended, see `slicectl op list`"
            raise Refused(Code.CONFLICT, "a measurement of memory is running on this node", hint=hint)
        with ExitStack() as undo:
            undo.callback(self._busy.release)
            self._check_room(int(params["bytes"]))
            undo.callback(setattr, self._controller, "mode", self._controller.mode)
            self._controller.mode = str(params["controller"]) or self._controller.mode
            if params["swap"]:
                undo.enter_context(memory_groups.swap_allowed(self._controller.directories()))
            return self._record(params, undo)

    def _check_room(self, wanted: int) -> None:
        now = self._memory()
        if wanted > now.available + now.swap - _RESERVE * now.total:
            swap = f" and {size(now.swap)} of its swap" if now.swap_total else ""
            message = f"{size(wanted)} are too many: {size(now.available)} of the node's memory{swap} are available"
            hint = f"{size(int(_RESERVE * now.total))} of it must remain available"
            raise Refused(Code.CONFLICT, message, hint=hint, field="bytes")

    def _record(self, params: Mapping[str, Any], undo: ExitStack) -> dict[str, object]:
        before, hold, after = (int(params[name]) for name in ("before", "hold", "after"))
        begun, at = time.monotonic(), time.time()
        taken, cpu, taking = self._controller.total, self._controller.cost, self._controller.taking
        kernel: dict[str, int] = {}
        found: dict[str, list[int]] = {"available": [], "free": [], "taken": []}
        program, counted, killed = None, dict[str, int](), False
        for second in range(before + hold + after):
            if second == before:
                counted = _kernel_counters()
            if second == before and params["bytes"]:
                program = self._program(int(params["bytes"]), hold, undo, locked=params["locked"])
            if self._stop.wait(max(0.0, begun + (second + 1) * _TICK - time.monotonic())):
                raise Failed("the agent is stopping", hint="try again when it has restarted")
            if program is not None and program.ended and second < before + hold - 1:
                error = program.failure()
                if error.status != -signal.SIGKILL:
                    raise Failed(f"the program that holds memory ended: {error}")
                program, killed = None, True
            now = self._memory()
            found["available"].append(now.available)
            found["free"].append(now.free)
            found["taken"].append(self._controller.total - taken)
            if second == before + hold - 1:
                kernel = {name: value - counted.get(name, 0) for name, value in _kernel_counters().items()}
        times = {"cpu": self._controller.cost - cpu, "taking": self._controller.taking - taking}
        return {"at": at, **times, "kernel": kernel, "killed": killed, **found}

    @staticmethod
    def _program(amount: int, seconds: int, undo: ExitStack, *, locked: bool) -> command.Conversation:
        text = undo.enter_context(Path(loads.__file__).with_name("memory.py").open("rb"))
        load = ["python3", "-I", "-", "lock" if locked else "hold", str(amount), str(seconds)]
        words = confined(load, locks=locked)
        if locked:
            words = ["sh", "-c", _SPARED, "sh", *words]
        return undo.enter_context(command.converse(words, timeout=seconds + 60.0, stdin=text))


def _kernel_counters() -> dict[str, int]:
    """Pages, but of `oom_kill` processes; those that this kernel has."""
    known = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return {name: int(known[name]) for name in _COUNTERS if name in known}
