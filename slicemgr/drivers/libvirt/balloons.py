"""The balloons of running virtual machines: what their guests report, and how much memory is left to them.

A machine whose balloon was set lower gets its memory back also if the agent is killed: `sliver-balloons` keeps its full
size, and gives it back when its standard input ends. The next agent waits until that is done: a size that is given back
late could be beyond a limit that a resize has lowered since, and QEMU would be killed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libvirt

from slicemgr import names
from slicemgr.config import PACKAGE
from slicemgr.drivers.keeper import ENDS, Keeper
from slicemgr.drivers.libvirt import virtio_mem
from slicemgr.drivers.libvirt.connections import Connections, bounded
from slicemgr.errors import Failed
from slicemgr.model import KIB, SliverType

log = logging.getLogger(__name__)

KEEPER = PACKAGE / "libexec" / "sliver-balloons"


@dataclass(frozen=True, slots=True)
class GuestReport:
    """A guest's statistics, in bytes. updated: seconds since 1970 at which it last reported; 0: never.

    current is known without a report, from QEMU. The rest is 0 if the guest has no driver that knows it.
    """

    current: int
    usable: int = 0
    unused: int = 0
    faults: int = 0
    swapped: int = 0
    updated: int = 0


class Balloons:
    """The balloons of all machines. Thread-safe. While a machine is resized, its balloon is not set otherwise."""

    def __init__(self, connections: Connections, uri: str) -> None:
        self._connections, self._uri = connections, uri
        self._free = threading.Condition()
        self._busy: set[str] = set()
        self._resized: dict[str, tuple[int, int]] = {}  # sliver → process and size, which rows may not yet have
        self._keeper: Keeper | None = None

    @contextmanager
    def kept(self, lock: Path) -> Iterator[None]:
        """Balloons can be lowered within the context; at its end, all get their memory back.

        lock: a file. Waits for the program of an earlier agent. Raises Failed.
        """
        self._keeper = Keeper(KEEPER, lock, self._uri)
        try:
            yield
        finally:
            with self._free:
                keeper, self._keeper = self._keeper, None
            keeper.close()

    def reports(self) -> dict[str, GuestReport]:
        """What the guests of all machines report, by one call. Raises Failed if libvirt does not respond."""
        wanted, how = libvirt.VIR_DOMAIN_STATS_BALLOON, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        with self._connections.call(SliverType.KVM, "read the memory of virtual machines") as connection:
            stats = connection.getAllDomainStats(wanted, how)
            named = ((names.sliver_of_domain(domain.name()), values) for domain, values in stats)
            found = {sliver: parse(values) for sliver, values in named if sliver is not None}
        with self._free:
            self._resized = {sliver: size for sliver, size in self._resized.items() if sliver in found}
        return found

    def ask_every(self, sliver: str, seconds: int) -> None:
        """Have QEMU ask a guest for its statistics so often. Raises Failed."""
        with self._running(sliver, "ask the guest for its memory") as domain:
            bounded(lambda: domain.setMemoryStatsPeriod(seconds, libvirt.VIR_DOMAIN_AFFECT_LIVE))

    def has_plugged(self, sliver: str) -> bool:
        """Whether a guest has more memory than its machine started with, or is to get some. Raises Failed."""
        with self._running(sliver, "read the memory of the domain") as domain:
            size = virtio_mem.read(domain)
            return size is not None and max(size.requested, size.plugged) > 0

    def set(self, sliver: str, pid: int, memory: int, full: int) -> bool:
        """Have the balloon leave so many bytes. full: what the machine has without it. The guest may take its time.

        pid: of its QEMU. False: not now, because the machine is being resized, or has another size meanwhile. Raises
        Failed.
        """
        return bounded(lambda: self._set(sliver, pid, memory, full))

    def _set(self, sliver: str, pid: int, memory: int, full: int) -> bool:
        """No other caller sets it until libvirt has answered, however late."""
        with self._alone(sliver, wait=False) as alone:
            process, size = self._resized.get(sliver, (pid, full))
            if not alone or (process == pid and size != full):
                return False
            if memory < full:
                self._note(sliver, full)
            with self._running(sliver, "set the balloon") as domain:
                domain.setMemoryFlags(memory // KIB, libvirt.VIR_DOMAIN_AFFECT_LIVE)
            if memory >= full:
                self.forget(sliver)
            return True

    @contextmanager
    def resizing(self, sliver: str, pid: int, memory: int) -> Iterator[None]:
        """Within the context, nothing else sets the balloon of a machine, whose size is `memory` from then on.

        Raises Failed if QEMU does not answer who sets it now.
        """
        with self._alone(sliver, wait=True):
            self.forget(sliver)
            with self._free:
                self._resized[sliver] = pid, memory
            yield

    def forget(self, sliver: str) -> None:
        """Give nothing back to this machine when the agent ends."""
        with self._free:
            if self._keeper is not None:
                self._keeper.forget(names.domain(sliver))

    def _note(self, sliver: str, full: int) -> None:
        with self._free:
            if self._keeper is None:
                raise Failed("the agent is stopping")
            self._keeper.note(names.domain(sliver), full // KIB)

    @contextmanager
    def _alone(self, sliver: str, *, wait: bool) -> Iterator[bool]:
        """Whether the caller alone has the balloon of this machine, for which it waits if `wait`. Raises Failed."""
        with self._free:
            if wait and not self._free.wait_for(lambda: sliver not in self._busy, ENDS):
                raise Failed("its QEMU does not answer", hint="stop or delete the slice, which ends it by force")
            alone = sliver not in self._busy
            self._busy.add(sliver)
        try:
            yield alone
        finally:
            if alone:
                with self._free:
                    self._busy.remove(sliver)
                    self._free.notify_all()

    @contextmanager
    def _running(self, sliver: str, what: str) -> Iterator[Any]:
        with self._connections.call(SliverType.KVM, what) as connection:
            yield connection.lookupByName(names.domain(sliver))


def parse(stats: dict[str, int]) -> GuestReport:
    """A guest's statistics as libvirt names them, in KiB."""
    kib = {name: stats.get(f"balloon.{name}", 0) * KIB for name in ("current", "usable", "unused", "swap_in")}
    faults, updated = stats.get("balloon.major_fault", 0), stats.get("balloon.last-update", 0)
    known = "balloon.usable" in stats and "balloon.unused" in stats
    return GuestReport(kib["current"], kib["usable"], kib["unused"], faults, kib["swap_in"], updated if known else 0)
