"""Serve consoles and screens of the node's slivers to clients that have a token, with one thread per session.

A sliver has one console, and a virtual machine one screen: a new session ends an earlier one. Opening and closing a
session does not change the sliver. A session whose user loses the right to it ends within seconds. On a host that has
joined a testbed the service judges the rights, and the link brings its orders.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Self

from slicemgr.config import Config
from slicemgr.drivers.libvirt.console import Console, ConsoleEnded
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.libvirt.screen import Screen
from slicemgr.drivers.libvirt.terminal_size import TerminalSize
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.ipc import console_socket, unix_socket
from slicemgr.model import Desired, Sliver, SliverType
from slicemgr.policy.consoles import objection
from slicemgr.store import Store, StoreError, console_rights, console_tickets, pending
from slicemgr.store.console_tickets import Ticket
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

MOST = 64  # open sessions, at most
_LARGEST_FIRST = 1024  # bytes of a token or an order
_TOKEN_WITHIN = 5.0  # seconds after connecting
_REASON_WITHIN = 1.0  # seconds for a client to accept the reason of the end
_WATCH = 2.0  # seconds between checks of the rights to open sessions
_ENDING = 3.0  # seconds for all sessions to end with the agent
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Consoles:
    """A context manager: serves `config.console_socket` until its end, which ends all open sessions."""

    def __init__(self, config: Config, store: Store, hypervisor: Hypervisor) -> None:
        self._config = config
        self._store = store
        self._hypervisor = hypervisor
        self._lock = threading.Lock()
        self._open: dict[tuple[str, bool], _Session] = {}  # key: sliver, and whether it is the screen
        self._room = threading.BoundedSemaphore(MOST)
        self._threads: set[threading.Thread] = set()
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self._listener = console_socket.listen(self._config.console_socket, self._config.web.user)
        threading.Thread(target=self._accept, name="consoles", daemon=True).start()
        threading.Thread(target=self._watch, name="console rights", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._config.console_socket.unlink(missing_ok=True)
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        with self._lock:
            ending, threads = list(self._open.values()), list(self._threads)
        for session in ending:
            session.end(Refused(Code.UNAVAILABLE, "the agent of the node is stopping", hint="attach again"))
        for thread in threads:
            thread.join(_ENDING / len(threads))

    def _accept(self) -> None:
        for stream in unix_socket.connections(self._listener, self._stopping, "a console"):
            thread = threading.Thread(target=self._serve, args=(stream,), name="console", daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()

    def _watch(self) -> None:
        """End the sessions whose users no longer have the right to them.

        While the database cannot be read, sessions continue, as slivers do.
        """
        while not self._stopping.wait(_WATCH):
            with self._lock:
                sessions = [one for one in self._open.values() if not one.ordered]
            try:
                for session, why in self._objections(sessions):
                    log.info("%s of %s closed for %s: %s", session.what, session.name, session.ticket.user, why)
                    session.end(why)
            except StoreError as error:
                log.warning("cannot read the console permissions: %s", error)

    def _objections(self, sessions: list[_Session]) -> list[tuple[_Session, Refused]]:
        if not sessions:
            return []
        now = utcnow()
        with self._store.read() as c:
            found = console_rights.read(c, [one.ticket for one in sessions])
        judged = ((one, ended_by(found, one.ticket, now, one.name)) for one in sessions)
        return [(one, why) for one, why in judged if why is not None]

    def _serve(self, stream: socket.socket) -> None:
        with stream:
            try:
                why = self._attend(stream)
            except SlicemgrError as error:
                log.info("a console was refused: %s", error)
                why = error
            if why is not None:
                stream.settimeout(_REASON_WITHIN)
                with suppress(OSError):
                    stream.send(console_socket.error_packet(why))
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _attend(self, stream: socket.socket) -> SlicemgrError | None:
        """Serve the client from its token to its end; the reason of the end, or None if the client closed it."""
        if not self._room.acquire(blocking=False):
            raise Refused(Code.UNAVAILABLE, f"the node already has {MOST} open consoles", hint="close one of them")
        with ExitStack() as stack:
            stack.callback(self._room.release)
            stream.settimeout(_TOKEN_WITHIN)
            try:
                first = stream.recv(_LARGEST_FIRST)
            except OSError:
                return None
            order = self._order(stream, first)
            ticket, sliver = self._admit(first) if order is None else self._granted(order)
            session = _Session(f"{sliver.slice_name}/{sliver.index}", ticket, stream, ordered=order is not None)
            stack.callback(self._forget, session)
            self._take_over(session)
            console = self._console(sliver, ticket)
            stack.callback(console.close)
            log.info("%s of %s opened by %s", session.what, session.name, ticket.user)
            stream.setblocking(False)
            with suppress(OSError):
                stream.send(console_socket.OPENED)
            return session.pump(console, self._resizing(stack, sliver, ticket))

    def _resizing(
        self, stack: ExitStack, sliver: Sliver, ticket: Ticket
    ) -> Callable[[console_socket.TerminalSize], None]:
        """A function that sets the size of the sliver's terminal; only a container's terminal has one."""
        if sliver.type is not SliverType.LXC or ticket.screen:
            return lambda size: None
        windows: list[TerminalSize] = []

        def resize(size: console_socket.TerminalSize) -> None:
            try:
                if not windows:
                    windows.append(stack.enter_context(TerminalSize(self._hypervisor.init_pid(sliver.id))))
                windows[0].resize(*size)
            except (OSError, Failed) as error:  # the container is starting or ending
                log.debug("the console of %s keeps its size: %s", sliver.id, error)

        return resize

    def _order(self, stream: socket.socket, first: bytes) -> console_socket.Order | None:
        """The order of the link; None for anything else. Only root brings one, and only where the centre judges."""
        if not self._config.joined or not console_socket.is_from_root(stream):
            return None
        return console_socket.parse_order(first)

    def _granted(self, order: console_socket.Order) -> tuple[Ticket, Sliver]:
        return Ticket(order.user, order.sliver, screen=order.screen), self._sliver(order.sliver)

    def _admit(self, first: bytes) -> tuple[Ticket, Sliver]:
        ticket = console_tickets.take(self._store, first.decode("ascii", "replace"), utcnow())
        if ticket is None:
            message = f"the console's token is unknown, used or over {console_tickets.LIFETIME.seconds} s old"
            raise Refused(Code.UNAUTHENTICATED, message, hint="request a new token")
        with self._store.read() as c:
            why = ended_by(console_rights.read(c, [ticket]), ticket, utcnow())
        if why is not None:  # the right was lost after the token was issued
            raise why
        return ticket, self._sliver(ticket.sliver)

    def _sliver(self, id_: str) -> Sliver:
        with self._store.read() as c:
            rows = pending.slivers(c, self._config.node.name, [id_])
        if not rows:
            raise Refused(Code.NOT_FOUND, "the sliver is not on this node")
        sliver = rows[0].sliver
        if sliver.desired is not Desired.RUNNING:
            raise _not_running(f"{sliver.slice_name}/{sliver.index}")
        return sliver

    def _console(self, sliver: Sliver, ticket: Ticket) -> Console | Screen:
        try:
            return self._hypervisor.screen(sliver.id) if ticket.screen else self._hypervisor.console(sliver.id)
        except Failed as error:
            if error.code is Code.UNAVAILABLE or self._hypervisor.domain(sliver.id) is not None:
                raise
            raise _not_running(f"{sliver.slice_name}/{sliver.index}") from error

    def _take_over(self, session: _Session) -> None:
        with self._lock:
            before = self._open.get(session.key)
            self._open[session.key] = session
        if before is not None:
            message = f"{session.ticket.user} opened the {session.what} of {session.name}, which closed this session"
            before.end(Refused(Code.CONFLICT, message))
            before.over.wait(_ENDING)  # two readers would each get a part of the output

    def _forget(self, session: _Session) -> None:
        session.over.set()
        with self._lock:
            if self._open.get(session.key) is session:
                del self._open[session.key]


class _Session:
    """One client at one console or screen. over: set when it no longer uses it. ordered: the service judges it."""

    def __init__(self, name: str, ticket: Ticket, stream: socket.socket, *, ordered: bool = False) -> None:
        self.name, self.ordered = name, ordered
        self.ticket = ticket
        self.what = "screen" if ticket.screen else "console"
        self.key = (ticket.sliver, ticket.screen)
        self.over = threading.Event()
        self._stream = stream
        self._why: SlicemgrError | None = None

    def end(self, why: SlicemgrError) -> None:
        """End the session soon. Called from another thread."""
        self._why = self._why or why
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RD)  # ends `pump`, which can still send the reason

    def pump(
        self, console: Console | Screen, resize: Callable[[console_socket.TerminalSize], None]
    ) -> SlicemgrError | None:
        """Pass bytes in both directions until either side or `end` ends the session.

        No more is read from one side than the other side accepts.
        """
        to_sliver = to_client = b""
        while self._why is None:
            from_client, from_sliver = self._wait(console, to_sliver, to_client)
            try:
                if from_client & select.POLLIN and not to_sliver:
                    asked = console_socket.parse_input(self._stream.recv(console_socket.CHUNK + 1))
                    if not asked:
                        break
                    if isinstance(asked, console_socket.TerminalSize):
                        resize(asked)
                    else:
                        to_sliver = asked
                elif from_client & _GONE:
                    break
                if to_sliver:
                    to_sliver = to_sliver[console.write(to_sliver) :]
                if from_sliver and not to_client:
                    to_client = console.read(console_socket.CHUNK)
                if to_client:
                    self._stream.send(console_socket.data_packet(to_client))
                    to_client = b""
            except ConsoleEnded:
                return Refused(Code.CONFLICT, f"{self.name} has stopped")
            except BlockingIOError:
                continue
            except OSError:
                break  # the client has closed the connection
        return self._why

    def _wait(self, console: Console | Screen, to_sliver: bytes, to_client: bytes) -> tuple[int, int]:
        """Wait for either side; the poll events of client and console."""
        poll = select.poll()
        poll.register(
            self._stream, select.POLLRDHUP | (select.POLLOUT if to_client else 0) | (0 if to_sliver else select.POLLIN)
        )
        wanted = (select.POLLOUT if to_sliver else 0) | (0 if to_client else select.POLLIN)
        if wanted:  # poll would report the end repeatedly before it can be passed on
            poll.register(console, wanted)
        ready = dict(poll.poll())
        return ready.get(self._stream.fileno(), 0), ready.get(console.fileno(), 0)


def ended_by(found: console_rights.Rights, ticket: Ticket, now: datetime, name: str = "the sliver") -> Refused | None:
    """Why the console must be closed; None if it may stay open. name: of the sliver, whose row may be deleted."""
    account, credential = found.accounts.get(ticket.user), found.credentials.get(ticket.credential)
    return objection(ticket.user, account, credential, found.targets.get(ticket.sliver), now, name)


def _not_running(name: str) -> Refused:
    return Refused(
        Code.CONFLICT, f"{name} is not running", hint=f"show the reason with `slicectl show {name.partition('/')[0]}`"
    )
