"""Return the bytes granted to slivers for capture rings that no longer exist; see drivers/kernel.

A ring is granted before the kernel creates it, and a thread with little CPU time can stay between the two for long,
with its socket open. So if a namespace has no packet socket left, all that it was granted is returned. Otherwise the
granted sum is recorded, and what it exceeds the existing rings by is returned SETTLED seconds later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from slicemgr.agent.chores.runner import Chore
from slicemgr.config import Config
from slicemgr.drivers.kernel import capture_rings, packet_sockets
from slicemgr.drivers.kernel.capture_rings import Accounts
from slicemgr.drivers.kernel.packet_sockets import Found
from slicemgr.drivers.libvirt import processes

SETTLED = 60.0  # seconds
_INTERVAL = 5.0  # seconds
_ENDING = 5.0  # seconds that the agent waits at its end for a run in progress


@dataclass(slots=True)
class Ledger:
    """The bytes granted to each namespace, and the time at which that was recorded."""

    _noted: dict[int, tuple[int, float]] = field(default_factory=dict)

    def settle(
        self,
        now: float,
        granted: Mapping[int, int],
        returned: Mapping[int, int],
        examine: Callable[[int], Found | None],
    ) -> dict[int, int]:
        """The new value of each namespace's returned bytes, for those that are due. Pure but for `examine`.

        now: seconds. examine: the sockets and rings that a namespace has now; None if that is unknown.
        """
        open_accounts = {one: sum for one, sum in granted.items() if sum != returned.get(one, 0)}
        self._noted = {one: note for one, note in self._noted.items() if one in open_accounts}
        due = {}
        for cookie, total in open_accounts.items():
            before, when = self._noted.setdefault(cookie, (total, now))
            found = examine(cookie)
            if found is None or (found.sockets and now - when < SETTLED):
                continue
            due[cookie] = max(0, before - found.ring_bytes) if found.sockets else total
            self._noted[cookie] = (total, now)
        return due


class Captures:
    """Settles the accounts of capture rings, if the node can limit them."""

    def __init__(self, config: Config) -> None:
        self._programs = capture_rings.programs(config.node.run_dir)
        self._ledgers = {program: Ledger() for program in self._programs}
        self._inits: dict[int, int] = {}  # cookie of a namespace → the init of its sliver
        self._gone: dict[Path, set[int]] = {}  # cookies without a running sliver at the previous run

    def chores(self) -> list[Chore]:
        """The chore; none if the node has no program that counts rings."""
        chore = Chore(
            thread="captures",
            run=lambda: self.settle(time.monotonic()),
            interval=_INTERVAL,
            failure="cannot settle the accounts of capture rings",
            grace=_ENDING,
        )
        return [chore] if self._programs else []

    def settle(self, now: float) -> None:
        """Settle all accounts once, including those of other releases' slivers. Raises OSError."""
        for program, ledger in self._ledgers.items():
            with Accounts(program) as accounts:
                granted = accounts.granted()
                self._find(set(granted))
                due = ledger.settle(now, granted, accounts.returned(), self._examine)
                for cookie, returned in due.items():
                    accounts.give_back(cookie, returned)
                gone = set(granted) - set(self._inits)
                for cookie in gone & self._gone.get(program, set()):
                    accounts.forget(cookie)
                self._gone[program] = gone

    def _find(self, cookies: set[int]) -> None:
        """Find the inits of running slivers, if a cookie is unknown."""
        self._inits = {cookie: pid for cookie, pid in self._inits.items() if Path(f"/proc/{pid}").exists()}
        if cookies <= set(self._inits):
            return
        known = set(self._inits.values())
        for _, note in processes.noted(processes.LXC_DIR):
            with suppress(OSError, ValueError):
                init = processes.child(int(Path(note).read_text()))
                if init is not None and init not in known:
                    with packet_sockets.inside(init) as diagnosis:
                        self._inits[packet_sockets.cookie(diagnosis)] = init

    def _examine(self, cookie: int) -> Found | None:
        init = self._inits.get(cookie)
        if init is None:
            return None
        with suppress(ProcessLookupError, FileNotFoundError), packet_sockets.inside(init) as diagnosis:
            if packet_sockets.cookie(diagnosis) == cookie:
                return packet_sockets.find(diagnosis, capture_rings.SMALLEST)
        self._inits.pop(cookie, None)
        return None
