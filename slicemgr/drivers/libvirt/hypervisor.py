"""libvirt, for both kinds. No decisions are made here: what is asked for is done, what is there is told.

All domains are transient: the database says what should be, libvirt only what is. A libvirtd that is away or hung
turns into Failed with Code.UNAVAILABLE: keepalive closes a connection whose other end does not answer. A call has its
connection for itself: libvirt 9.0 crashes when keepalive closes one on which several threads wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

import libvirt

from slicemgr import names
from slicemgr.config import LibvirtConfig
from slicemgr.drivers.libvirt import processes
from slicemgr.drivers.libvirt.console import Console
from slicemgr.drivers.libvirt.domain_xml import NAMESPACE
from slicemgr.drivers.libvirt.processes import body
from slicemgr.drivers.libvirt.screen import Screen
from slicemgr.errors import Code, Failed
from slicemgr.model import Kind

log = logging.getLogger(__name__)

_PROBES = 2  # unanswered probes before a connection counts as dead, and as long again after the last
_KEPT = 4  # connections that no call uses just now, of each kind
_NO_DRIVER = (libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_CONFIG_UNSUPPORTED)
_INIT_APPEARS = 5.0  # seconds until the container's init must exist after its domain was seen
_SHORT = 0.01
_LOOK = 0.5  # seconds, at most, between looks for a domain's end when no event comes
_UNNOTICED = 0.25  # seconds after which an ended libvirt_lxc counts as not noticed by libvirtd
_ASK_AGAIN = 1.0  # seconds between requests for a clean shutdown
_GUEST_ANSWERS = 15.0  # seconds after which a guest agent counts as hung
_QEMU_ANSWERS = 5.0  # seconds after which a QEMU that does not answer counts as hung

T = TypeVar("T")
_Device = TypeVar("_Device", Console, Screen)

_events = threading.Lock()
_events_running = False


@dataclass(frozen=True, slots=True)
class DomainSeen:
    """An active domain of ours. pid: of libvirt_lxc or QEMU. trouble: why it is paused though nobody asked for it."""

    sliver: str
    kind: Kind
    pid: int
    paused: bool
    generation: int
    trouble: str = ""


class Hypervisor:
    """Connections to libvirt's drivers, opened when first needed and again after libvirtd was away. Thread-safe."""

    def __init__(self, settings: LibvirtConfig) -> None:
        self._uris = {Kind.LXC: settings.lxc, Kind.KVM: settings.qemu}
        self._call_timeout = settings.call_timeout.total_seconds()
        self._connections: dict[Kind, Any] = {}  # that events come by
        self._idle: dict[Kind, list[Any]] = {kind: [] for kind in Kind}  # what calls are made on
        self._attempts: dict[Kind, _Attempt] = {}
        self._missing: set[Kind] = set()  # kinds without a driver
        self._generations: dict[Kind, dict[tuple[str, int], int]] = {kind: {} for kind in Kind}
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._changes = 0
        self._listeners: list[Callable[[str], None]] = []
        _start_events()

    def version(self, kind: Kind) -> str:
        """libvirt's version with this driver. Raises Failed (UNAVAILABLE) if it cannot be reached."""
        with self._calling(kind, "ask for the version") as connection:
            number = int(connection.getLibVersion())
        return f"libvirt {number // 1000000}.{number // 1000 % 1000}.{number % 1000}"

    def on_change(self, listener: Callable[[str], None]) -> None:
        """`listener(sliver)` is called, from another thread, when a domain of ours came or went."""
        self._listeners.append(listener)

    def domains(self) -> dict[str, DomainSeen]:
        """Every active domain of ours by sliver, of both kinds; a fixed number of calls, however many there are.

        A kind for which libvirt has no driver has none. Raises Failed if libvirt does not answer.
        """
        found: dict[str, DomainSeen] = {}
        for kind in self._kinds():
            found |= self._list(kind)
        return found

    def _kinds(self) -> list[Kind]:
        """Containers always, machines once their driver was reached: not every node has it."""
        if Kind.KVM not in self._connections and Kind.KVM not in self._missing:
            try:
                self._connect(Kind.KVM)
            except Failed as error:  # that no machine runs is only known where libvirt has noted none
                if error.code is Code.UNAVAILABLE and any(processes.noted(processes.QEMU_DIR)):
                    raise
        return [Kind.LXC, Kind.KVM] if Kind.KVM in self._connections else [Kind.LXC]

    def _list(self, kind: Kind) -> dict[str, DomainSeen]:
        with self._calling(kind, "list the domains") as connection:
            active = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
            paused = {one.name() for one in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED)}
            seen = {}
            for domain in active:
                sliver = names.sliver_of_domain(domain.name())
                if sliver is not None and domain.ID() > 0:
                    with _may_be_gone():
                        if not body(kind).alive(domain.ID(), sliver):
                            domain.destroy()  # see wait_gone
                            continue
                        seen[sliver] = self._seen(kind, sliver, domain, domain.name() in paused)
        known = self._generations[kind]
        for sliver, pid in list(known):
            if sliver not in seen or seen[sliver].pid != pid:
                known.pop((sliver, pid), None)
        return seen

    def domain(self, sliver: str) -> DomainSeen | None:
        """One sliver's domain, or None if it does not run."""
        for kind in self._kinds():
            with self._calling(kind, "look for a domain") as connection:
                domain = _lookup(connection, sliver)
                if domain is not None:
                    with _may_be_gone():
                        return self._seen(kind, sliver, domain, domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED)
        return None

    def _seen(self, kind: Kind, sliver: str, domain: Any, paused: bool) -> DomainSeen:
        its = body(kind)
        pid, known = its.pid(domain, sliver), self._generations[kind]
        generation = known.get((sliver, pid))
        if generation is None:
            text = domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE)
            generation = known[sliver, pid] = int(ET.fromstring(text).get("generation", "0"))
        trouble = self._trouble(kind, sliver) if paused else ""
        return DomainSeen(sliver, kind, pid, paused or its.frozen(domain, pid), generation, trouble)

    def _trouble(self, kind: Kind, sliver: str) -> str:
        with suppress(Failed), self._calling(kind, "ask why it is paused") as connection, _may_be_gone():
            domain = _lookup(connection, sliver)
            return "" if domain is None else _bounded(lambda: body(kind).trouble(domain))
        return ""

    def create(self, kind: Kind, xml: str, memory: int) -> int:
        """Start a transient domain; its id. Raises Failed with libvirt's reason.

        memory: bytes that it may take of the host.
        """
        with self._calling(kind, "start the domain") as connection:
            try:
                domain = connection.createXML(xml, libvirt.VIR_DOMAIN_START_VALIDATE)
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID or not _forget(connection, xml):
                    raise
                domain = connection.createXML(xml, libvirt.VIR_DOMAIN_START_VALIDATE)
            body(kind).started(domain, memory)
            return int(domain.ID())

    def pause(self, sliver: str) -> None:
        """Freeze every process."""
        self._freeze(sliver, True)

    def resume(self, sliver: str) -> None:
        self._freeze(sliver, False)

    def _freeze(self, sliver: str, frozen: bool) -> None:
        seen = self._need(sliver)
        if seen.paused == frozen:  # an earlier try was not answered
            return
        with self._calling(seen.kind, "pause or resume the domain") as connection:
            domain = _lookup(connection, sliver)
            if domain is None:
                raise Failed(f"{sliver} does not run")
            _bounded(lambda: body(seen.kind).freeze(domain, seen.pid, frozen))

    def container_inits(self) -> list[int]:
        """The first process of each container that runs, as the host numbers it. Raises Failed."""
        found = (processes.child(one.pid) for one in self._list(Kind.LXC).values())
        return [pid for pid in found if pid is not None]

    def init_pid(self, sliver: str) -> int:
        """The process whose cgroup is limited, as the host numbers it: a container's PID 1, or QEMU.

        Raises Failed if the sliver does not run.
        """
        seen = self._need(sliver)
        its, deadline = body(seen.kind), time.monotonic() + _INIT_APPEARS
        while (pid := its.limited(seen.pid)) is None:
            if time.monotonic() > deadline or not its.alive(seen.pid, sliver):
                raise Failed(f"the init of {sliver} does not run")
            time.sleep(_SHORT)
        return pid

    def grow_disk(self, sliver: str, size: int) -> None:
        """Let a running virtual machine see a larger disk, of `size` bytes."""
        with self._calling(Kind.KVM, "resize the disk") as connection:
            domain = _lookup(connection, sliver)
            if domain is not None and domain.blockInfo("vda")[0] < size:
                _bounded(lambda: domain.blockResize("vda", size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES))

    def set_guest_keys(self, sliver: str, put: list[str], gone: list[str]) -> None:
        """root's ssh keys inside a running virtual machine, by its guest agent. Raises Failed if none answers.

        put: lines that shall be there; gone: lines that shall not. All others stay, but for empty ones.
        """
        with self._calling(Kind.KVM, "hand the guest its ssh keys") as connection:
            domain = _lookup(connection, sliver)
            if domain is None:
                raise Failed(f"{sliver} does not run")
            # Between calls the agent's file ends without a newline: the empty line, put last, becomes one.
            for lines, how in (
                ([*gone, ""], libvirt.VIR_DOMAIN_AUTHORIZED_SSH_KEYS_SET_REMOVE),
                ([*put, ""], libvirt.VIR_DOMAIN_AUTHORIZED_SSH_KEYS_SET_APPEND),
            ):
                late = Failed("its guest agent does not answer")
                call = partial(domain.authorizedSSHKeysSet, "root", lines, how)
                _bounded(call, seconds=_GUEST_ANSWERS, late=late)

    def machine_stats(self) -> dict[str, dict[str, int]]:
        """What libvirt knows of every machine of ours, as `virsh domstats` names it, in one call for all.

        A QEMU that is busy or hangs is not waited for: it tells less. Raises Failed if libvirt does not answer.
        """
        wanted = libvirt.VIR_DOMAIN_STATS_BALLOON | libvirt.VIR_DOMAIN_STATS_BLOCK
        with self._calling(Kind.KVM, "read what the machines use") as connection:
            stats = connection.getAllDomainStats(wanted, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT)
            named = ((names.sliver_of_domain(domain.name()), values) for domain, values in stats)
            return {sliver: values for sliver, values in named if sliver is not None}

    def stop(self, sliver: str, grace: float) -> bool:
        """Ask for a clean shutdown, then end it by force after `grace` seconds; whether it was clean."""
        seen = self.domain(sliver)
        if seen is None:
            return True
        if seen.paused:
            with suppress(Failed):  # a QEMU that hangs, or is just going, is ended by force below
                self.resume(sliver)
        deadline = time.monotonic() + grace
        while True:
            self._ask_to_stop(seen)  # again and again: PID 1 does not hear what comes before its traps are set
            left = deadline - time.monotonic()
            if self.wait_gone(sliver, max(0.0, min(left, _ASK_AGAIN))):
                return True
            if left <= 0:
                self.kill(sliver)
                return False

    def _ask_to_stop(self, seen: DomainSeen) -> None:
        """One that cannot be asked (its QEMU hangs, it is just going) is ended by force later."""
        with suppress(Failed), self._calling(seen.kind, "shut the domain down") as connection:
            domain = _lookup(connection, seen.sliver)
            if domain is not None:
                _bounded(lambda: body(seen.kind).ask_to_stop(domain, seen.pid))

    def begin_kill(self, slivers: Iterable[str]) -> None:
        """Kill the inits of many containers without waiting; `kill` then finishes each.

        libvirtd tidies one domain after the other and sleeps 0.2 s over each whose libvirt_lxc has not quite ended:
        when they end together, it does so once. It is not asked who they are: busy tidying, it would not answer.
        """
        for sliver in slivers:
            controller = processes.noted_pid(processes.LXC_DIR, sliver)
            if controller is not None and processes.controls(controller, sliver):
                body(Kind.LXC).end(controller)

    def kill(self, sliver: str, timeout: float = 20.0) -> None:
        """End a domain at once and wait until libvirt has cleaned up; one that does not run is fine."""
        seen = self.domain(sliver)
        if seen is None:
            return
        its = body(seen.kind)
        if not seen.paused and its.limited(seen.pid) is None:
            with suppress(Failed):
                self.init_pid(sliver)
        if not seen.paused and its.end(seen.pid):
            if self.wait_gone(sliver, timeout):
                return
            log.warning("%s did not end with its init and is destroyed", names.domain(sliver))
        self._destroy(seen)
        if not self.wait_gone(sliver, timeout):
            raise Failed(f"{names.domain(sliver)} does not end", hint=f"virsh destroy {names.domain(sliver)}")

    def wait_gone(self, sliver: str, timeout: float) -> bool:
        """Wait until libvirt has no such domain; False if that takes longer than `timeout` seconds.

        Events wake it; it looks by itself as well, for there is more than one way to miss an end: an event is lost
        with its connection, libvirt_lxc is deaf to SIGCHLD until some time after its container runs, and libvirtd
        now and then does not notice that libvirt_lxc has ended (1 of 25, libvirt 9.0): that domain is destroyed.
        """
        deadline, pause, ended = time.monotonic() + timeout, _SHORT, 0.0
        while True:
            with self._changed:
                known = self._changes
            seen = self.domain(sliver)
            if seen is None:
                return True
            if body(seen.kind).alive(seen.pid, sliver):
                body(seen.kind).nudge(seen.pid)
            elif time.monotonic() - (ended := ended or time.monotonic()) > _UNNOTICED:
                self._destroy(seen)
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait_for(lambda known=known: self._changes != known, min(left, pause))  # type: ignore[misc]
            pause = min(2 * pause, _LOOK)

    def _destroy(self, seen: DomainSeen) -> None:
        with self._calling(seen.kind, "destroy the domain") as connection, _may_be_gone():
            domain = _lookup(connection, seen.sliver)
            if domain is not None:
                domain.destroy()

    def _need(self, sliver: str) -> DomainSeen:
        seen = self.domain(sliver)
        if seen is None:
            raise Failed(f"{sliver} does not run")
        return seen

    # consoles

    def console(self, sliver: str) -> Console:
        """Open the sliver's console, whoever else has it. Raises Failed if it does not run."""
        seen, path = self._device(sliver, "console", "tty")
        return _owned(Console(path), seen)

    def screen(self, sliver: str) -> Screen:
        """Connect to a virtual machine's screen. Raises Failed if it does not run, or has none."""
        seen, path = self._device(sliver, "graphics/listen", "socket")
        return _owned(Screen(path), seen)

    def _device(self, sliver: str, device: str, attribute: str) -> tuple[DomainSeen, str]:
        """Where libvirt has put a device of the running domain."""
        seen, name = self._need(sliver), device.partition("/")[0]
        with self._calling(seen.kind, f"look for the {name}") as connection:
            domain = _lookup(connection, sliver)
            if domain is None:
                raise Failed(f"{sliver} does not run")
            found = ET.fromstring(domain.XMLDesc()).find(f"devices/{device}[@{attribute}]")
        if found is None:
            raise Failed(f"{sliver} has no {name}")
        return seen, found.get(attribute, "")

    # connections

    @contextmanager
    def _calling(self, kind: Kind, what: str) -> Iterator[Any]:
        """A connection that nobody else uses. It is given back unless a call on it may still be under way."""
        connection = self._take(kind)
        try:
            yield connection
        except libvirt.libvirtError as error:
            if not connection.isAlive() or error.get_error_domain() == libvirt.VIR_FROM_RPC:
                raise _unavailable(kind, error) from error
            self._give_back(kind, connection)
            raise Failed(f"libvirt could not {what}: {error.get_error_message()}") from error
        else:
            self._give_back(kind, connection)

    def _take(self, kind: Kind) -> Any:
        self._connect(kind)
        idle = self._idle[kind]
        with suppress(IndexError):
            while True:
                connection = idle.pop()
                if connection.isAlive():
                    return connection
        attempt = _Attempt(self._uris[kind], None, self._call_timeout)
        attempt.ended.wait(self._call_timeout)
        if attempt.connection is None:
            raise _unavailable(kind, attempt.error or f"no answer in {self._call_timeout:g} s")
        return attempt.connection

    def _give_back(self, kind: Kind, connection: Any) -> None:
        if len(self._idle[kind]) < _KEPT:
            self._idle[kind].append(connection)
        else:
            with suppress(libvirt.libvirtError):
                connection.close()

    def _connect(self, kind: Kind) -> Any:
        """The connection that events come by, alive a moment ago. Opening has no keepalive yet: it has a time limit.

        Whoever comes while it hangs shares that limit: not every caller waits for as long.
        """
        with self._lock:
            connection = self._connections.get(kind)
            if connection is not None and connection.isAlive():
                return connection
            attempt = self._attempts.get(kind)
            if attempt is None:
                attempt = self._attempts[kind] = _Attempt(self._uris[kind], self._event, self._call_timeout)
        if not attempt.ended.wait(max(0.0, attempt.deadline - time.monotonic())):
            raise _unavailable(kind, f"no answer in {self._call_timeout:g} s")
        with self._lock:
            if self._attempts.get(kind) is attempt:
                del self._attempts[kind]
                if attempt.connection is not None:
                    self._connections[kind] = attempt.connection
        if attempt.connection is None:
            if attempt.error is not None and attempt.error.get_error_code() in _NO_DRIVER:
                if kind is not Kind.LXC:
                    self._missing.add(kind)
                message = f"libvirt has no driver for {kind}: {attempt.error}"
                raise Failed(message, hint="`slicectl doctor`") from attempt.error
            raise _unavailable(kind, attempt.error) from attempt.error
        return attempt.connection

    def _event(self, _connection: Any, domain: Any, event: int, _detail: int, _opaque: Any) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()
        sliver = names.sliver_of_domain(domain.name())
        if sliver is not None and event in (libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_STOPPED):
            for listener in self._listeners:
                listener(sliver)


class _Attempt:
    """One attempt to connect, in a thread of its own: libvirt.open waits without end for a libvirtd that hangs.

    timeout: seconds after which a libvirtd that does not answer counts as hung, here and on the open connection.
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
            with suppress(libvirt.libvirtError):  # test:/// has none
                connection.setKeepAlive(self._probe_interval, _PROBES)
            if listener is not None:
                connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, listener, None)
            self.connection = connection
        except libvirt.libvirtError as error:
            self.error = error
        finally:
            self.ended.set()


def _owned(found: _Device, seen: DomainSeen) -> _Device:
    if not found.belongs_to(seen.pid):
        found.close()
        raise Failed(f"{seen.sliver} does not run")
    return found


@contextmanager
def _may_be_gone() -> Iterator[None]:
    """A domain that was there a moment ago may have ended since, or be about to: it is found but does not run."""
    try:
        yield
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            raise


def _unavailable(kind: Kind, error: object) -> Failed:
    return Failed(
        f"libvirt does not answer for {kind}: {error}",
        hint="is libvirtd running? `slicectl doctor`",
        code=Code.UNAVAILABLE,
    )


def _lookup(connection: Any, sliver: str) -> Any | None:
    """The active domain. One whose end a libvirtd missed while it was away stays in its list, shut off."""
    domain = _listed(connection, names.domain(sliver))
    return domain if domain is not None and domain.ID() > 0 else None


def _listed(connection: Any, name: str) -> Any | None:
    try:
        return connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def _forget(connection: Any, xml: str) -> bool:
    """Take one that is in the list and shut off out of its successor's way; False if there is none."""
    old = _listed(connection, ET.fromstring(xml).findtext("name", ""))
    if old is None or old.ID() > 0:
        return False
    with suppress(libvirt.libvirtError):  # "domain is not running", and then it is forgotten
        old.destroy()
    return True


def _bounded(call: Callable[[], T], seconds: float = _QEMU_ANSWERS, late: Failed | None = None) -> T:
    """What a call that waits for QEMU says; `late`, or that QEMU hangs, if it does not come back in time.

    The thread that waits ends with the call: when QEMU goes on, or is killed.
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
    """libvirt's event loop, one for the process: it carries events and keepalive."""
    global _events_running
    with _events:
        if _events_running:
            return
        libvirt.virEventRegisterDefaultImpl()
        libvirt.registerErrorHandler(lambda _context, _error: None, None)  # every error is raised as well
        threading.Thread(target=_run_events, name="libvirt-events", daemon=True).start()
        _events_running = True


def _run_events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()
