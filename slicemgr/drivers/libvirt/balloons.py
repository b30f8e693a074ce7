"""The balloons of running virtual machines: what their guests report, and how much memory is left to them.

A machine whose balloon was set lower gets its memory back also if the agent is killed: `sliver-balloons` keeps its full
size, and gives it back when its standard input ends. Its lock is held until that is done, and the next agent waits for
it: a size that it gives back late could be beyond a limit that a resize has lowered since, and QEMU would be killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libvirt

from slicemgr import names
from slicemgr.config import PACKAGE
from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed, Conversation
from slicemgr.drivers.libvirt.connections import Connections, bounded
from slicemgr.errors import Failed
from slicemgr.model import KIB, SliverType

log = logging.getLogger(__name__)

KEEPER = PACKAGE / "libexec" / "sliver-balloons"
_LIFE = 86400.0  # seconds after which the program is started again
_ENDS = 60.0  # seconds, longer than the program of an earlier agent takes, and than libvirt waits for QEMU
_LOOK = 0.1  # seconds


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
        _await(lock)
        self._keeper = Keeper(lock, self._uri)
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
            if wait and not self._free.wait_for(lambda: sliver not in self._busy, _ENDS):
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


class Keeper:
    """The program that gives memory back when the agent ends; it runs while a balloon is lower. Not thread-safe."""

    def __init__(self, lock: Path, uri: str) -> None:
        self._words: tuple[str | Path, ...] = (KEEPER, lock, uri)
        self._sizes: dict[str, int] = {}
        self._stack = ExitStack()
        self._program: Conversation | None = None

    def note(self, domain: str, size: int) -> None:
        """Remember the full size of a domain, in KiB, before its balloon is set lower. Raises Failed."""
        if self._sizes.get(domain) == size and self._program is not None and not self._program.ended:
            return
        self._sizes[domain] = size
        try:
            if self._program is None or self._program.ended:
                self._start()
            else:
                self._program.say(f"{domain} {size}")
        except CommandFailed as error:
            raise Failed(f"no program would give memory back to virtual machines: {error}") from error

    def forget(self, domain: str) -> None:
        """The domain has its full size. A program without domains ends."""
        if self._sizes.pop(domain, None) is None or self._program is None:
            return
        with suppress(CommandFailed):  # it has ended, and gives nothing back
            self._program.say(f"{domain} 0")
        if not self._sizes:
            self.close()

    def close(self) -> None:
        """Have it give back what is noted, and wait for that."""
        self._stack.close()
        self._program = None
        self._sizes.clear()

    def _start(self) -> None:
        self._stack.close()
        self._program = self._stack.enter_context(command.converse(self._words, timeout=_LIFE))
        self._program.line()  # it has its lock
        for domain, size in self._sizes.items():
            self._program.say(f"{domain} {size}")


def parse(stats: dict[str, int]) -> GuestReport:
    """A guest's statistics as libvirt names them, in KiB."""
    kib = {name: stats.get(f"balloon.{name}", 0) * KIB for name in ("current", "usable", "unused", "swap_in")}
    faults, updated = stats.get("balloon.major_fault", 0), stats.get("balloon.last-update", 0)
    known = "balloon.usable" in stats and "balloon.unused" in stats
    return GuestReport(kib["current"], kib["usable"], kib["unused"], faults, kib["swap_in"], updated if known else 0)


def _await(lock: Path) -> None:
    """Wait until the program of an earlier agent has given back what it noted."""
    deadline = time.monotonic() + _ENDS
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > deadline:
                raise Failed(f"{KEEPER.name} of an earlier agent does not end", hint=f"it holds {lock}")
            time.sleep(_LOOK)
    finally:
        os.close(descriptor)
