"""Connections to libvirt's drivers, opened on first use and reopened after an outage of libvirtd.

Keepalive closes a connection whose peer does not respond. Each call uses a connection that no other call shares:
libvirt 9.0 crashes when keepalive closes a connection on which several threads wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import libvirt

from slicemgr.config import LibvirtConfig
from slicemgr.drivers.libvirt import processes
from slicemgr.errors import Code, Failed
from slicemgr.model import SliverType

_PROBES = 2  # keepalive probes without a response before a connection counts as dead, plus one more interval
_KEPT = 4  # idle connections of each type that stay open
_NO_DRIVER = (libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_CONFIG_UNSUPPORTED)
_QEMU_ANSWERS = 5.0  # seconds after which a QEMU that does not respond counts as hung

T = TypeVar("T")

_loop = threading.Lock()
_loop_running = False


class Connections:
    """The connections of one process to the drivers of both types. Thread-safe."""

    def __init__(self, settings: LibvirtConfig, listener: Callable[..., None]) -> None:
        """listener: called with each lifecycle event of a domain, as libvirt calls it, from another thread."""
        self._uris = {SliverType.LXC: settings.lxc, SliverType.KVM: settings.qemu}
        self._call_timeout = settings.call_timeout.total_seconds()
        self._listener = listener
        self._open: dict[SliverType, Any] = {}  # these connections carry the events
        self._idle: dict[SliverType, list[Any]] = {one: [] for one in SliverType}  # these connections carry the calls
        self._attempts: dict[SliverType, _Attempt] = {}
        self._missing: set[SliverType] = set()  # types without a driver
        self._lock = threading.Lock()
        _start_events()

    def types(self) -> list[SliverType]:
        """The types that this node has a driver for: always LXC, and KVM once its driver has been reached."""
        if SliverType.KVM not in self._open and SliverType.KVM not in self._missing:
            try:
                self._events(SliverType.KVM)
            except Failed as error:  # no machine runs for certain only if libvirt has no pid file of one
                if error.code is Code.UNAVAILABLE and any(processes.noted(processes.QEMU_DIR)):
                    raise
        return [SliverType.LXC, SliverType.KVM] if SliverType.KVM in self._open else [SliverType.LXC]

    @contextmanager
    def call(self, sliver_type: SliverType, what: str) -> Iterator[Any]:
        """Borrow a connection that no other call uses. what: completes an error message, as in `list the domains`.

        The connection is kept for later calls, unless this call failed and may still be in progress. Raises Failed.
        """
        connection = self._take(sliver_type)
        try:
            yield connection
        except libvirt.libvirtError as error:
            if not connection.isAlive() or error.get_error_domain() == libvirt.VIR_FROM_RPC:
                raise _unavailable(sliver_type, error) from error
            self._give_back(sliver_type, connection)
            raise Failed(f"libvirt could not {what}: {error.get_error_message()}") from error
        else:
            self._give_back(sliver_type, connection)

    def _take(self, sliver_type: SliverType) -> Any:
        self._events(sliver_type)
        idle = self._idle[sliver_type]
        with suppress(IndexError):
            while True:
                connection = idle.pop()
                if connection.isAlive():
                    return connection
        attempt = _Attempt(self._uris[sliver_type], None, self._call_timeout)
        attempt.ended.wait(self._call_timeout)
        if attempt.connection is None:
            raise _unavailable(sliver_type, attempt.error or f"no answer in {self._call_timeout:g} s")
        return attempt.connection

    def _give_back(self, sliver_type: SliverType, connection: Any) -> None:
        if len(self._idle[sliver_type]) < _KEPT:
            self._idle[sliver_type].append(connection)
        else:
            with suppress(libvirt.libvirtError):
                connection.close()

    def _events(self, sliver_type: SliverType) -> Any:
        """The connection that carries the events; it was alive when checked. Raises Failed.

        Keepalive does not cover the opening of a connection. The opening has a time limit of its own, which all
        waiting callers share.
        """
        with self._lock:
            connection = self._open.get(sliver_type)
            if connection is not None and connection.isAlive():
                return connection
            attempt = self._attempts.get(sliver_type)
            if attempt is None:
                attempt = _Attempt(self._uris[sliver_type], self._listener, self._call_timeout)
                self._attempts[sliver_type] = attempt
        if not attempt.ended.wait(max(0.0, attempt.deadline - time.monotonic())):
            raise _unavailable(sliver_type, f"no answer in {self._call_timeout:g} s")
        with self._lock:
            if self._attempts.get(sliver_type) is attempt:
                del self._attempts[sliver_type]
                if attempt.connection is not None:
                    self._open[sliver_type] = attempt.connection
        if attempt.connection is None:
            if attempt.error is not None and attempt.error.get_error_code() in _NO_DRIVER:
                if sliver_type is not SliverType.LXC:
                    self._missing.add(sliver_type)
                message = f"libvirt has no driver for {sliver_type}: {attempt.error}"
                raise Failed(message, hint="`slicectl doctor`") from attempt.error
            raise _unavailable(sliver_type, attempt.error) from attempt.error
        return attempt.connection


class _Attempt:
    """One attempt to connect, in its own thread, because libvirt.open waits without limit for a hung libvirtd.

    timeout: seconds after which a libvirtd that does not respond counts as hung, during the opening and afterwards.
    """

    def __init__(self, uri: str, listener: Callable[..., None] | None, timeout: float) -> None:
        self.ended = threading.Event()
        self.deadline = time.monotonic() + timeout
        self._probe_interval = max(1, int(timeout / (_PROBES + 1)))
        self.connection: Any = None
        self.error: libvirt.libvirtError | None = None
        threading.Thread(target=self._open, args=(uri, listener), name="libvirt-open", daemon=True).start()

    def _open(self, uri: str, listener: Callable[..., None] | None) -> None:
        try:
            connection = libvirt.open(uri)
            with suppress(libvirt.libvirtError):  # the driver test:/// has no keepalive
                connection.setKeepAlive(self._probe_interval, _PROBES)
            if listener is not None:
                connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, listener, None)
            self.connection = connection
        except libvirt.libvirtError as error:
            self.error = error
        finally:
            self.ended.set()


def _unavailable(sliver_type: SliverType, error: object) -> Failed:
    return Failed(
        f"libvirt does not answer for {sliver_type}: {error}",
        hint="is libvirtd running? `slicectl doctor`",
        code=Code.UNAVAILABLE,
    )


def bounded(call: Callable[[], T], seconds: float = _QEMU_ANSWERS, late: Failed | None = None) -> T:
    """The result of a call that waits for QEMU. Raises `late`, or Failed, if it takes longer than `seconds`.

    The thread of the call ends when the call returns: when QEMU continues or is killed.
    """
    result: list[T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            result.append(call())
        except Exception as error:  # noqa: BLE001 (raised in the caller's thread)
            errors.append(error)

    thread = threading.Thread(target=work, name="qemu-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if result:
        return result[0]
    raise late or Failed("its QEMU does not answer", hint="stop or delete the slice, which ends it by force")


def _start_events() -> None:
    """Start libvirt's event loop, once per process. It carries events and keepalive."""
    global _loop_running
    with _loop:
        if _loop_running:
            return
        libvirt.virEventRegisterDefaultImpl()
        libvirt.registerErrorHandler(lambda _context, _error: None, None)  # every error is raised as well
        threading.Thread(target=_run_events, name="libvirt-events", daemon=True).start()
        _loop_running = True


def _run_events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()
