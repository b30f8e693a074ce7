"""Gives consoles of the node's slivers to who has a token for one: a thread for each, and nothing waits for it.

A sliver has one console: who comes later takes it over. Opening and leaving one changes nothing about the sliver.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from contextlib import ExitStack, suppress
from typing import Self

from slicemgr.config import Config
from slicemgr.drivers.console import Console, ConsoleEnded
from slicemgr.drivers.hypervisor import Hypervisor
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.model import Desired, Sliver
from slicemgr.store import Store, consoles, door, work
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

MOST = 64  # open at once
_TOKEN_WITHIN = 5.0  # seconds after connecting
_LAST_WORD = 1.0  # seconds for a client to make room for the reason of the end
_ENDING = 3.0  # seconds for all of them to end when the agent does
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Consoles:
    """A context manager: serves `config.console_socket` until its end, which is that of all open consoles."""

    def __init__(self, config: Config, store: Store, hypervisor: Hypervisor) -> None:
        self._config = config
        self._store = store
        self._hypervisor = hypervisor
        self._lock = threading.Lock()
        self._open: dict[str, _Session] = {}  # by sliver
        self._room = threading.BoundedSemaphore(MOST)
        self._threads: set[threading.Thread] = set()
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self._door = door.listen(self._config.console_socket)
        threading.Thread(target=self._accept, name="consoles", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._config.console_socket.unlink(missing_ok=True)
        self._door.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        with self._lock:
            ending, threads = list(self._open.values()), list(self._threads)
        for session in ending:
            session.end(Refused(Code.UNAVAILABLE, "the agent of the node stops", hint="attach again"))
        for thread in threads:
            thread.join(_ENDING / len(threads))

    def _accept(self) -> None:
        with self._door:
            while not self._stopping.is_set():
                try:
                    stream, _ = self._door.accept()
                except OSError as error:
                    if not self._stopping.wait(0.1):  # no descriptors left, for one
                        log.error("cannot accept a console: %s", error)
                    continue
                thread = threading.Thread(target=self._serve, args=(stream,), name="console", daemon=True)
                with self._lock:
                    self._threads.add(thread)
                thread.start()

    def _serve(self, stream: socket.socket) -> None:
        with stream:
            try:
                why = self._attend(stream)
            except SlicemgrError as error:
                why = error
            if why is not None:
                stream.settimeout(_LAST_WORD)
                with suppress(OSError):
                    stream.send(door.error(why))
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _attend(self, stream: socket.socket) -> SlicemgrError | None:
        """From the token to the end, and why that came; None if the client left."""
        if not self._room.acquire(blocking=False):
            raise Refused(Code.UNAVAILABLE, f"{MOST} consoles are open on the node", hint="leave one of them")
        with ExitStack() as stack:
            stack.callback(self._room.release)
            stream.settimeout(_TOKEN_WITHIN)
            try:
                token = stream.recv(256).decode("ascii", "replace")
            except OSError:
                return None
            user, sliver = self._admit(token)
            session = _Session(f"{sliver.slice_name}/{sliver.index}", stream)
            stack.callback(self._forget, sliver.id, session)
            self._take_over(sliver.id, session, user)
            console = stack.enter_context(self._console(sliver))
            log.info("console of %s opened by %s", session.name, user)
            stream.setblocking(False)
            with suppress(OSError):
                stream.send(door.OPENED)
            return session.pump(console)

    def _admit(self, token: str) -> tuple[str, Sliver]:
        ticket = consoles.take(self._store, token, utcnow())
        if ticket is None:
            message = f"the console's token is unknown, used or over {consoles.LIFETIME.seconds} s old"
            raise Refused(Code.UNAUTHENTICATED, message, hint="ask for another")
        with self._store.read() as c:
            rows = work.slivers(c, self._config.node.name, [ticket.sliver])
        if not rows:
            raise Refused(Code.NOT_FOUND, "the sliver is not on this node")
        sliver = rows[0].sliver
        if sliver.desired is not Desired.RUNNING:
            raise _not_running(f"{sliver.slice_name}/{sliver.index}")
        return ticket.user, sliver

    def _console(self, sliver: Sliver) -> Console:
        try:
            return self._hypervisor.console(sliver.id)
        except Failed as error:
            if error.code is Code.UNAVAILABLE or self._hypervisor.domain(sliver.id) is not None:
                raise
            raise _not_running(f"{sliver.slice_name}/{sliver.index}") from error

    def _take_over(self, sliver: str, session: _Session, user: str) -> None:
        with self._lock:
            before = self._open.get(sliver)
            self._open[sliver] = session
        if before is not None:
            before.end(Refused(Code.CONFLICT, f"{user} has taken the console of {session.name} over"))
            before.over.wait(_ENDING)  # or both would read, each one a part

    def _forget(self, sliver: str, session: _Session) -> None:
        session.over.set()
        with self._lock:
            if self._open.get(sliver) is session:
                del self._open[sliver]


class _Session:
    """One client at one console. over: it has let go of the console."""

    def __init__(self, name: str, stream: socket.socket) -> None:
        self.name = name
        self.over = threading.Event()
        self._stream = stream
        self._why: SlicemgrError | None = None

    def end(self, why: SlicemgrError) -> None:
        """End it soon, from another thread."""
        self._why = self._why or why
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RD)  # `pump` sees it, and can still say why

    def pump(self, console: Console) -> SlicemgrError | None:
        """Bytes both ways until somebody ends it. What one side does not take, the other is not asked for."""
        to_sliver = to_client = b""
        while self._why is None:
            from_client, from_sliver = self._wait(console, to_sliver, to_client)
            try:
                if from_client & select.POLLIN and not to_sliver:
                    to_sliver = self._stream.recv(door.CHUNK)
                    if not to_sliver:
                        break
                elif from_client & _GONE:
                    break
                if to_sliver:
                    to_sliver = to_sliver[console.write(to_sliver) :]
                if from_sliver and not to_client:
                    to_client = console.read(door.CHUNK)
                if to_client:
                    self._stream.send(door.data(to_client))
                    to_client = b""
            except ConsoleEnded:
                return Refused(Code.CONFLICT, f"{self.name} has stopped")
            except BlockingIOError:
                continue
            except OSError:
                break  # the client is gone
        return self._why

    def _wait(self, console: Console, to_sliver: bytes, to_client: bytes) -> tuple[int, int]:
        """What poll says of client and console."""
        poll = select.poll()
        poll.register(
            self._stream, select.POLLRDHUP | (select.POLLOUT if to_client else 0) | (0 if to_sliver else select.POLLIN)
        )
        wanted = (select.POLLOUT if to_sliver else 0) | (0 if to_client else select.POLLIN)
        if wanted:  # or its end would be told again and again before it can be passed on
            poll.register(console, wanted)
        ready = dict(poll.poll())
        return ready.get(self._stream.fileno(), 0), ready.get(console.fileno(), 0)


def _not_running(name: str) -> Refused:
    return Refused(Code.CONFLICT, f"{name} does not run", hint=f"`slicectl show {name.partition('/')[0]}` says why")
