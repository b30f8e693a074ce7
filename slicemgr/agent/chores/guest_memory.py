"""Take memory from virtual machines by their balloons for the memory controller; see policy/balloons.py.

libvirt is asked once a second, only while the node may be short of memory or a balloon holds some. This is a thread of
its own, because the controller must not wait for libvirt. A machine whose size is being changed is left alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from slicemgr.agent import observe
from slicemgr.agent.chores.runner import Chore, First
from slicemgr.config import Config
from slicemgr.drivers.kernel import cgroup, counters, memory_groups
from slicemgr.drivers.libvirt.balloons import Balloons, GuestReport
from slicemgr.drivers.libvirt.machine_xml import STATISTICS
from slicemgr.errors import Failed
from slicemgr.model import SliverType
from slicemgr.policy import balloons
from slicemgr.policy.balloons import Machine, Report, State
from slicemgr.store import Store, incarnation, memory_promises
from slicemgr.store.memory_promises import Promise

log = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds between two looks, and between two reports of a guest meanwhile
_VALID = 3.0  # seconds for which a look counts
_AGAIN = 40.0  # seconds after which a balloon is set again if QEMU did not answer; libvirt waits for 30


@dataclass(slots=True)
class _Guest:
    pid: int
    full: int
    period: int  # seconds between two of its reports; 0: an earlier agent may have changed it
    state: State | None = None
    failed_at: float | None = None


@dataclass(slots=True)
class GuestMemory:
    """near: whether the node may soon be short; the controller sets it. takes: whether balloons may be set lower."""

    config: Config
    store: Store
    balloons: Balloons
    clock: Callable[[], float] = time.time
    near: bool = False
    takes: bool = False
    _guests: dict[str, _Guest] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _idle: dict[str, int] = field(default_factory=dict)  # bytes that can be taken now, less what is wanted
    _idle_at: float = 0.0
    _wanted: Counter[str] = field(default_factory=Counter)
    _taken: Counter[str] = field(default_factory=Counter)
    _settled: bool = False  # whether balloons that an earlier agent left lower have been set again

    def chore(self) -> Chore:
        return Chore(
            thread="balloons",
            run=lambda: self.step(time.monotonic()),
            interval=_INTERVAL,
            failure="cannot watch the memory of virtual machines",
            first=First.AT_ONCE,
            longest=5.0,
            grace=6.0,
        )

    # for the controller, from its thread

    def idle(self, sliver: str, now: float) -> int:
        """The bytes that can be taken of a machine. now: of a monotonic clock."""
        with self._lock:
            return self._idle.get(sliver, 0) if now - self._idle_at < _VALID else 0

    def want(self, sliver: str, amount: int) -> None:
        """Have bytes taken of a machine with the next look."""
        with self._lock:
            self._wanted[sliver] += amount
            self._idle[sliver] = max(0, self._idle.get(sliver, 0) - amount)

    def taken(self) -> dict[str, int]:
        """The bytes that were taken of machines since the last call."""
        with self._lock:
            taken = dict(self._taken)
            self._taken.clear()
            return taken

    # in its own thread

    def step(self, now: float) -> None:
        """One look. now: of a monotonic clock. Raises Failed."""
        with self._lock:
            wanted = dict(self._wanted)
            self._wanted.clear()
            self._idle = {}
        if self._settled and not self.near and not self._guests:
            return
        machines = self._machines()
        if machines is None:
            return
        for gone in self._guests.keys() - machines.keys():
            del self._guests[gone]
            self.balloons.forget(gone)
        if not machines:
            self._settled = True
            return
        reports, wall = self.balloons.reports(), self.clock()
        idle = {}
        for sliver, (pid, machine) in machines.items():
            guest = self._guests.get(sliver)
            if machine is None:  # again when its size is settled
                if guest is not None:
                    guest.state, guest.period = None, 0  # a resize has changed that, too
                continue
            if guest is None or (guest.pid, guest.full) != (pid, machine.full):
                if guest is not None:
                    self.balloons.forget(sliver)
                guest = self._guests[sliver] = _Guest(pid, machine.full, STATISTICS if self._settled else 0)
            if sliver in reports:
                idle[sliver] = self._look(sliver, guest, machine, reports[sliver], wanted.get(sliver, 0), now, wall)
        self._settled = True
        if not self.near:
            self._calm(machines)
        with self._lock:
            self._idle, self._idle_at = idle, now

    def _look(
        self, sliver: str, guest: _Guest, machine: Machine, found: GuestReport, wanted: int, now: float, wall: float
    ) -> int:
        """Set the balloon of one machine; the bytes that can be taken."""
        if self.near:
            self._ask(sliver, guest, round(_INTERVAL))
        if guest.failed_at is not None and now - guest.failed_at < _AGAIN:
            return 0
        report = Report(found.current, found.usable, found.unused, found.faults, found.swapped, wall - found.updated)
        reduced = guest.state is not None and guest.state.is_reduced(machine)
        calm = not self.near or (reduced and not self.takes)
        state, outcome = balloons.step(guest.state, machine, report, now, asked=wanted if self.takes else 0, calm=calm)
        guest.failed_at = None
        if outcome.balloon is not None:
            try:
                if not self.balloons.set(sliver, guest.pid, outcome.balloon, machine.full):
                    return 0
            except Failed as error:
                log.warning("the balloon of %s cannot be set: %s", sliver, error)
                guest.failed_at, guest.state = now, None  # it may be set later
                return 0
        guest.state = state
        with self._lock:
            self._taken[sliver] += outcome.taken
        return outcome.idle

    def _calm(self, machines: Mapping[str, tuple[int, Machine | None]]) -> None:
        """Forget the machines that have all their memory, and have them report as seldom as before."""
        for sliver, guest in list(self._guests.items()):
            machine = machines[sliver][1]
            if machine is not None and guest.state is not None and not guest.state.is_reduced(machine):
                self._ask(sliver, guest, STATISTICS)
                del self._guests[sliver]

    def _ask(self, sliver: str, guest: _Guest, seconds: int) -> None:
        """Have a guest report so often. libvirt cannot ask one without a bus."""
        if guest.period != seconds:
            guest.period = seconds
            with suppress(Failed):
                self.balloons.ask_every(sliver, seconds)

    def _machines(self) -> dict[str, tuple[int, Machine | None]] | None:
        """Main process of each machine, and its memory if it has the size of its row; None on hold.

        Those whose guests have plugged memory are left out: libvirt and QEMU count that differently.
        """
        running = counters.running()
        with self.store.read() as c:
            if incarnation.held(c) is not None:
                return None
            promises = memory_promises.of_node(c, self.config.node.name)
        machines: dict[str, tuple[int, Machine | None]] = {}
        for one in promises:
            if one.type != SliverType.KVM or one.id not in running:
                continue
            pid = running[one.id]
            try:
                if one.grows and self.balloons.has_plugged(one.id):
                    continue
                machines[one.id] = pid, self._machine(one, pid)
            except Failed:
                machines[one.id] = pid, None
        return machines

    def _machine(self, one: Promise, pid: int) -> Machine | None:
        group = memory_groups.group(one.id, pid)
        if group is None or observe.applied_memory(self.config, one.id, pid) != one.ceiling:
            return None
        held = memory_groups.held(group, cgroup.version(), swap=False)
        return None if held is None else Machine(one.ceiling, one.guarantee, held.charged)
