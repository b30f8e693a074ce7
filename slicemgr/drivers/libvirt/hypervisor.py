"""libvirt's domains of both types. This module makes no decisions: it carries out requests and reports what runs.

All domains are transient: the database holds the desired state, libvirt only the actual one. A libvirtd that is down
or hung results in Failed with Code.UNAVAILABLE (see `connections`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

import libvirt
import libvirt_qemu

from slicemgr import names
from slicemgr.config import LibvirtConfig
from slicemgr.drivers.libvirt import processes
from slicemgr.drivers.libvirt.balloons import Balloons
from slicemgr.drivers.libvirt.connections import Connections, bounded
from slicemgr.drivers.libvirt.console import Console
from slicemgr.drivers.libvirt.domain_xml import NAMESPACE
from slicemgr.drivers.libvirt.processes import body
from slicemgr.drivers.libvirt.screen import Screen
from slicemgr.errors import Failed
from slicemgr.model import Init, Sliver, SliverType

log = logging.getLogger(__name__)

_INIT_APPEARS = 5.0  # seconds within which a container's init must exist after its domain was found
_SHORT = 0.01
_TRIES = 3  # of a start whose schema libvirt could not parse
_UNPARSED = "Unable to parse RNG"
_LOOK = 0.5  # seconds, at most, between checks for a domain's end without an event
_UNNOTICED = 0.25  # seconds after which libvirtd counts as having missed the end of a libvirt_lxc
_ASK_AGAIN = 1.0  # seconds between requests for a clean shutdown
_VIRTIO_MEM = 7_009_000, 5_001_000  # versions of libvirt and QEMU that have it
_GUEST_ANSWERS = 15.0  # seconds after which a guest agent counts as hung
_RENAME = r"""
hostname "$1"
echo "$1" >/etc/hostname
sed -i "s/^127\.0\.1\.1[[:space:]].*/127.0.1.1\t$1/" /etc/hosts
"""

_Device = TypeVar("_Device", Console, Screen)


@dataclass(frozen=True, slots=True)
class DomainSeen:
    """An active domain of slicemgr. pid: of libvirt_lxc or QEMU. trouble: why it is paused without a request."""

    sliver: str
    type: SliverType
    pid: int
    paused: bool
    generation: int
    trouble: str = ""


class Hypervisor:
    """The domains of both types. Thread-safe."""

    def __init__(self, settings: LibvirtConfig) -> None:
        self._connections = Connections(settings, self._event)
        self.balloons = Balloons(self._connections, settings.qemu)
        self._generations: dict[SliverType, dict[tuple[str, int], int]] = {one: {} for one in SliverType}
        self._changed = threading.Condition()
        self._changes = 0
        self._listeners: list[Callable[[str], None]] = []

    def version(self, sliver_type: SliverType) -> str:
        """libvirt's version with this driver. Raises Failed (UNAVAILABLE) if libvirt cannot be reached."""
        with self._connections.call(sliver_type, "read the version") as connection:
            number = int(connection.getLibVersion())
        return f"libvirt {number // 1000000}.{number // 1000 % 1000}.{number % 1000}"

    def has_machine(self, machine: str) -> bool:
        """Whether this node's QEMU has a machine of this name. False if libvirt cannot be asked."""
        try:
            with self._connections.call(SliverType.KVM, "read the machines of QEMU") as connection:
                connection.getDomainCapabilities(None, "x86_64", machine, None)
        except Failed:
            return False
        return True

    def has_virtio_mem(self) -> bool:
        """Whether this node's QEMU has the device virtio-mem, and libvirt changes its size. False as in has_machine."""
        try:
            with self._connections.call(SliverType.KVM, "read the version of QEMU") as connection:
                return bool(connection.getLibVersion() >= _VIRTIO_MEM[0] and connection.getVersion() >= _VIRTIO_MEM[1])
        except Failed:
            return False

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Register `listener(sliver)`: called from another thread when a domain of slicemgr starts or stops."""
        self._listeners.append(listener)

    def domains(self) -> dict[str, DomainSeen]:
        """Every active domain of slicemgr, of both types, by sliver; the number of calls is fixed.

        A type for which libvirt has no driver contributes no domains. Raises Failed if libvirt does not respond.
        """
        found: dict[str, DomainSeen] = {}
        for sliver_type in self._connections.types():
            found |= self._list(sliver_type)
        return found

    def _list(self, sliver_type: SliverType) -> dict[str, DomainSeen]:
        with self._connections.call(sliver_type, "list the domains") as connection:
            active = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
            paused = {one.name() for one in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED)}
            seen = {}
            for domain in active:
                sliver = names.sliver_of_domain(domain.name())
                if sliver is not None and domain.ID() > 0:
                    with _may_be_gone():
                        if not body(sliver_type).alive(domain.ID(), sliver):
                            domain.destroy()  # see wait_gone
                            continue
                        seen[sliver] = self._seen(sliver_type, sliver, domain, domain.name() in paused)
        known = self._generations[sliver_type]
        for sliver, pid in list(known):
            if sliver not in seen or seen[sliver].pid != pid:
                known.pop((sliver, pid), None)
        return seen

    def domain(self, sliver: str, sliver_type: SliverType | None = None) -> DomainSeen | None:
        """The domain of one sliver, or None if it does not run. Raises Failed if libvirt does not respond.

        sliver_type: the type of the sliver, if known: then only its connection is asked.
        """
        for one in self._connections.types() if sliver_type is None else (sliver_type,):
            with self._connections.call(one, "find a domain") as connection:
                domain = _lookup(connection, sliver)
                if domain is not None:
                    with _may_be_gone():
                        return self._seen(one, sliver, domain, domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED)
        return None

    def _seen(self, sliver_type: SliverType, sliver: str, domain: Any, paused: bool) -> DomainSeen:
        its = body(sliver_type)
        pid, known = its.pid(domain, sliver), self._generations[sliver_type]
        generation = known.get((sliver, pid))
        if generation is None:
            text = domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE)
            generation = known[sliver, pid] = int(ET.fromstring(text).get("generation", "0"))
        trouble = self._trouble(sliver_type, sliver) if paused else ""
        return DomainSeen(sliver, sliver_type, pid, paused or its.frozen(domain, pid), generation, trouble)

    def _trouble(self, sliver_type: SliverType, sliver: str) -> str:
        call = self._connections.call(sliver_type, "read the reason of the pause")
        with suppress(Failed), call as connection, _may_be_gone():
            domain = _lookup(connection, sliver)
            return "" if domain is None else bounded(lambda: body(sliver_type).trouble(domain))
        return ""

    def create(self, sliver_type: SliverType, xml: str, memory: int) -> int:
        """Start a transient domain and return its id. Raises Failed with libvirt's reason.

        memory: bytes of the host's memory that the domain may use.
        """
        with self._connections.call(sliver_type, "start the domain") as connection:
            try:
                domain = start(connection, xml)
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID or not _forget(connection, xml):
                    raise
                domain = start(connection, xml)
            body(sliver_type).started(domain, memory)
            return int(domain.ID())

    def pause(self, sliver: str) -> None:
        """Freeze every process of the sliver. Raises Failed."""
        self._freeze(sliver, True)

    def resume(self, sliver: str) -> None:
        """Thaw every process of the sliver. Raises Failed."""
        self._freeze(sliver, False)

    def _freeze(self, sliver: str, frozen: bool) -> None:
        seen = self._need(sliver)
        if seen.paused == frozen:  # an earlier attempt succeeded without a response
            return
        with self._running(seen.type, sliver, "pause or resume the domain") as domain:
            bounded(lambda: body(seen.type).freeze(domain, seen.pid, frozen))

    def container_inits(self) -> list[int]:
        """The first process of each running container, as the host's pid. Raises Failed."""
        found = (processes.child(one.pid) for one in self._list(SliverType.LXC).values())
        return [pid for pid in found if pid is not None]

    def init_pid(self, sliver: str) -> int:
        """The process whose cgroup has the limits, as the host's pid: a container's PID 1, or QEMU.

        Raises Failed if the sliver does not run.
        """
        seen = self._need(sliver)
        its, deadline = body(seen.type), time.monotonic() + _INIT_APPEARS
        while (pid := its.limited(seen.pid)) is None:
            if time.monotonic() > deadline or not its.alive(seen.pid, sliver):
                raise Failed(f"the init of {sliver} does not run")
            time.sleep(_SHORT)
        return pid

    def limit(self, sliver: Sliver, memory: int) -> None:
        """Give a running container the limits of its row that are in `LIVE_LIMITS`, and a machine its memory.

        memory: bytes of the host that it may use then. It waits while a guest gives memory back. Raises Failed.
        """
        seen = self._need(sliver.id)
        with ExitStack() as stack:
            if seen.type is SliverType.KVM:
                stack.enter_context(self.balloons.resizing(sliver.id, seen.pid, sliver.limits.memory))
            domain = stack.enter_context(self._running(seen.type, sliver.id, "change the limits of the domain"))
            try:
                body(seen.type).limit(domain, seen.pid, sliver, memory)
            except OSError as error:
                raise Failed(f"its limits cannot be changed: {error.strerror}") from error

    def grow_disk(self, sliver: str, size: int) -> None:
        """Announce a new disk size, in bytes, to a running virtual machine. A smaller size has no effect."""
        with self._connections.call(SliverType.KVM, "resize the disk") as connection:
            domain = _lookup(connection, sliver)
            if domain is not None and domain.blockInfo("vda")[0] < size:
                bounded(lambda: domain.blockResize("vda", size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES))

    def set_guest_keys(self, sliver: str, put: list[str], gone: list[str] | None) -> None:
        """Set root's ssh keys inside a running virtual machine by its guest agent.

        put: lines to add; gone: lines to remove, None if it never had any of slicemgr's. Other lines are kept, except
        empty ones. Raises Failed if the guest agent does not respond.
        """
        with self._running(SliverType.KVM, sliver, "write the ssh keys of the guest") as domain:
            # The agent ends its file without a newline; the empty line, added last, supplies it for the next call.
            add = ([*put, ""], libvirt.VIR_DOMAIN_AUTHORIZED_SSH_KEYS_SET_APPEND)
            remove = [] if gone is None else [([*gone, ""], libvirt.VIR_DOMAIN_AUTHORIZED_SSH_KEYS_SET_REMOVE)]
            for lines, how in (*remove, add):
                late = Failed("its guest agent does not answer")
                call = partial(domain.authorizedSSHKeysSet, "root", lines, how)
                bounded(call, seconds=_GUEST_ANSWERS, late=late)

    def guest_answers(self, sliver: str) -> bool:
        """Whether the guest agent of a virtual machine answers."""
        try:
            self._ask_guest(sliver, {"execute": "guest-ping"})
        except Failed:
            return False
        return True

    def set_guest_name(self, sliver: str, hostname: str) -> None:
        """Set the host name inside a running virtual machine by its guest agent, which does not wait for the end.

        Raises Failed if the guest agent does not respond.
        """
        words = {"path": "/bin/sh", "arg": ["-c", _RENAME, "sh", hostname], "capture-output": False}
        self._ask_guest(sliver, {"execute": "guest-exec", "arguments": words})

    def _ask_guest(self, sliver: str, request: dict[str, Any]) -> None:
        with self._running(SliverType.KVM, sliver, "ask the guest agent") as domain:
            late = Failed("its guest agent does not answer")
            call = partial(libvirt_qemu.qemuAgentCommand, domain, json.dumps(request), round(_GUEST_ANSWERS), 0)
            bounded(call, seconds=_GUEST_ANSWERS + 1, late=late)

    def machine_stats(self) -> dict[str, dict[str, int]]:
        """libvirt's statistics of every machine of slicemgr, named as in `virsh domstats`, by one call.

        A QEMU that is busy or hung is not waited for: its statistics are incomplete. Raises Failed if libvirt does not
        respond.
        """
        wanted = libvirt.VIR_DOMAIN_STATS_BALLOON | libvirt.VIR_DOMAIN_STATS_BLOCK
        with self._connections.call(SliverType.KVM, "read the usage of virtual machines") as connection:
            stats = connection.getAllDomainStats(wanted, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT)
            named = ((names.sliver_of_domain(domain.name()), values) for domain, values in stats)
            return {sliver: values for sliver, values in named if sliver is not None}

    def stop(self, sliver: str, grace: float) -> bool:
        """Request a clean shutdown and kill the domain after `grace` seconds. Whether it ended by itself."""
        seen = self.domain(sliver)
        if seen is None:
            return True
        if seen.paused:
            with suppress(Failed):  # a QEMU that hangs or is ending is killed below
                self.resume(sliver)
        deadline = time.monotonic() + grace
        while True:
            self._ask_to_stop(seen)  # repeated: PID 1 ignores signals until it has installed its handlers
            left = deadline - time.monotonic()
            if self.wait_gone(sliver, max(0.0, min(left, _ASK_AGAIN)), seen.type):
                return True
            if left <= 0:
                self.kill(sliver)
                return False

    def _ask_to_stop(self, seen: DomainSeen) -> None:
        """Request a clean shutdown. A failure is ignored: a domain that hangs is killed later."""
        with suppress(Failed), self._connections.call(seen.type, "shut the domain down") as connection:
            domain = _lookup(connection, seen.sliver)
            if domain is not None:
                text = domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE)
                init = Init(ET.fromstring(text).get("init", Init.MINIMAL))
                bounded(lambda: body(seen.type).ask_to_stop(domain, seen.pid, init))

    def begin_kill(self, slivers: Iterable[str]) -> None:
        """Kill the inits of many containers without waiting; `kill` then completes each.

        libvirtd cleans domains up one after the other and sleeps 0.2 s for each whose libvirt_lxc has not fully
        ended; when they end together, it sleeps once. The pids come from libvirt's pid files: a libvirtd that is
        cleaning up does not respond to calls.
        """
        for sliver in slivers:
            controller = processes.noted_pid(processes.LXC_DIR, sliver)
            if controller is not None and processes.controls(controller, sliver):
                body(SliverType.LXC).end(controller)

    def kill(self, sliver: str, timeout: float = 20.0) -> None:
        """Kill a domain and wait until libvirt has cleaned up; no effect if it does not run. Raises Failed."""
        seen = self.domain(sliver)
        if seen is None:
            return
        its = body(seen.type)
        if not seen.paused and its.limited(seen.pid) is None:
            with suppress(Failed):
                self.init_pid(sliver)
        if not seen.paused and its.end(seen.pid):
            if self.wait_gone(sliver, timeout, seen.type):
                return
            log.warning("%s did not end with its init and is destroyed", names.domain(sliver))
        self._destroy(seen)
        if not self.wait_gone(sliver, timeout, seen.type):
            raise Failed(f"{names.domain(sliver)} does not end", hint=f"virsh destroy {names.domain(sliver)}")

    def wait_gone(self, sliver: str, timeout: float, sliver_type: SliverType | None = None) -> bool:
        """Wait until libvirt has no such domain; False if that takes longer than `timeout` seconds.

        sliver_type: as in `domain`.

        Events end a wait early. The function polls as well, because an end can be missed: an event is lost with its
        connection, libvirt_lxc does not handle SIGCHLD until some time after its container starts, and libvirtd
        sometimes misses the end of a libvirt_lxc (1 of 25 with libvirt 9.0); such a domain is destroyed.
        """
        deadline, pause, ended = time.monotonic() + timeout, _SHORT, 0.0
        while True:
            with self._changed:
                known = self._changes
            seen = self.domain(sliver, sliver_type)
            if seen is None:
                return True
            if body(seen.type).alive(seen.pid, sliver):
                body(seen.type).nudge(seen.pid)
            elif time.monotonic() - (ended := ended or time.monotonic()) > _UNNOTICED:
                self._destroy(seen)
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait_for(lambda known=known: self._changes != known, min(left, pause))  # type: ignore[misc]
            pause = min(2 * pause, _LOOK)

    def _destroy(self, seen: DomainSeen) -> None:
        with self._connections.call(seen.type, "destroy the domain") as connection, _may_be_gone():
            domain = _lookup(connection, seen.sliver)
            if domain is not None:
                domain.destroy()

    @contextmanager
    def _running(self, sliver_type: SliverType, sliver: str, what: str) -> Iterator[Any]:
        """libvirt's object of a running domain, for one call; what: see `Connections.call`. Raises Failed."""
        with self._connections.call(sliver_type, what) as connection:
            domain = _lookup(connection, sliver)
            if domain is None:
                raise Failed(f"{sliver} does not run")
            yield domain

    def _need(self, sliver: str) -> DomainSeen:
        seen = self.domain(sliver)
        if seen is None:
            raise Failed(f"{sliver} does not run")
        return seen

    # consoles

    def console(self, sliver: str) -> Console:
        """Open the sliver's console, even if another client has it open. Raises Failed if the sliver does not run."""
        seen, path = self._device(sliver, "console", "tty")
        return _owned(Console(path), seen)

    def screen(self, sliver: str) -> Screen:
        """Connect to a virtual machine's screen. Raises Failed if the machine does not run or has no screen."""
        seen, path = self._device(sliver, "graphics/listen", "socket")
        return _owned(Screen(path), seen)

    def _device(self, sliver: str, device: str, attribute: str) -> tuple[DomainSeen, str]:
        """The running domain, and the path at which libvirt created its device. Raises Failed."""
        seen, name = self._need(sliver), device.partition("/")[0]
        with self._running(seen.type, sliver, f"find the {name}") as domain:
            found = ET.fromstring(domain.XMLDesc()).find(f"devices/{device}[@{attribute}]")
        if found is None:
            raise Failed(f"{sliver} has no {name}")
        return seen, found.get(attribute, "")

    # events

    def _event(self, _connection: Any, domain: Any, event: int, _detail: int, _opaque: Any) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()
        sliver = names.sliver_of_domain(domain.name())
        if sliver is not None and event in (libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_STOPPED):
            for listener in self._listeners:
                listener(sliver)


def _owned(found: _Device, seen: DomainSeen) -> _Device:
    if not found.belongs_to(seen.pid):
        found.close()
        raise Failed(f"{seen.sliver} does not run")
    return found


@contextmanager
def _may_be_gone() -> Iterator[None]:
    """Ignore the errors of a domain that has ended since it was found, or that is ending."""
    try:
        yield
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            raise


def _lookup(connection: Any, sliver: str) -> Any | None:
    """The active domain. A domain whose end libvirtd missed during an outage remains in its list as shut off."""
    domain = _listed(connection, names.domain(sliver))
    return domain if domain is not None and domain.ID() > 0 else None


def _listed(connection: Any, name: str) -> Any | None:
    try:
        return connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def start(connection: Any, xml: str) -> Any:
    """Start a transient domain. Raises libvirtError.

    libvirtd parses its schema for the first domain, and libxml2 prepares its types for the first schema. If two domains
    are the first at the same time, one is refused before anything is done.
    """
    for _ in range(_TRIES - 1):
        try:
            return connection.createXML(xml, libvirt.VIR_DOMAIN_START_VALIDATE)
        except libvirt.libvirtError as error:
            if _UNPARSED not in str(error):
                raise
            log.info("libvirt could not parse its schema; trying again")
    return connection.createXML(xml, libvirt.VIR_DOMAIN_START_VALIDATE)


def _forget(connection: Any, xml: str) -> bool:
    """Remove a domain that libvirt lists as shut off, so that its successor can start; False if there is none."""
    old = _listed(connection, ET.fromstring(xml).findtext("name", ""))
    if old is None or old.ID() > 0:
        return False
    with suppress(libvirt.libvirtError):  # libvirt raises "domain is not running", but removes the domain
        old.destroy()
    return True
