"""Connections to the agents of other hosts: this process asks for one, and the host opens it.

A request registers the secret of a connection, and waits. The connection that comes with the secret, signed by the
node that was asked, is served by its own thread: it passes packets on between the node and the waiting request, which
uses its end as it uses the socket of the agent beside the service. One process serves the web, so both meet in it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from slicemgr.certificates import dial_tokens
from slicemgr.config import Config
from slicemgr.errors import SlicemgrError
from slicemgr.ipc import console_socket, tunnel
from slicemgr.model import Dial, DialPurpose
from slicemgr.policy import node_answers
from slicemgr.service.nodes import dials
from slicemgr.service.slices import consoles
from slicemgr.service.slices.consoles import RemoteConsole
from slicemgr.store import Store, StoreError
from slicemgr.store.updates import utcnow
from slicemgr.web.thread_limits import Kind, ThreadLimits

log = logging.getLogger(__name__)

_PATIENCE = 15.0  # seconds for a node to connect
_ASKED = 5.0  # seconds for a node that is asked a question to connect
_ANSWER = 5.0  # seconds for its answer, from then on
_LEAST = 0.001  # seconds; 0 would not wait
_WATCH = 2.0  # seconds between checks of the rights to open consoles


@dataclass(eq=False)
class _Waiting:
    """A request that waits for a node. far: the end of its socket that the node's packets go to."""

    identity: str
    far: socket.socket
    connected: threading.Event = field(default_factory=threading.Event)

    def end(self, why: SlicemgrError) -> None:
        """End the connection with a reason for the user."""
        with suppress(OSError):
            self.far.send(console_socket.error_packet(why))
        with suppress(OSError):
            self.far.shutdown(socket.SHUT_RDWR)


class Dials:
    """Thread-safe. patience: seconds for a node to connect."""

    def __init__(self, config: Config, store: Store, limits: ThreadLimits, patience: float = _PATIENCE) -> None:
        self._config, self._store, self._limits, self._patience = config, store, limits, patience
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}  # by secret
        self._open: dict[_Waiting, RemoteConsole] = {}  # consoles whose rights are watched
        self._watching = False

    @contextmanager
    def console(self, console: RemoteConsole) -> Iterator[socket.socket]:
        """The stream of a console or screen on another host. It ends when its user loses the right to it.

        Refused as by the agent, UNAVAILABLE if the host does not connect; Busy at a limit.
        """
        ticket = console.ticket
        purpose = DialPurpose.SCREEN if ticket.screen else DialPurpose.CONSOLE
        with self._connected(console.node, purpose, ticket.user, ticket.sliver) as (waiting, near):
            stream = console_socket.opened(near)
            self._watch(waiting, console)
            try:
                yield stream
            finally:
                with self._lock:
                    self._open.pop(waiting, None)

    def ask(self, node: str, question: bytes) -> bytes:
        """The answer of the agent of a node. SlicemgrError: it gives none in time, or a reason.

        question: of at most `console_socket.CHUNK` bytes.
        """
        with self._connected(node, DialPurpose.QUERY, patience=min(_ASKED, self._patience)) as (_, near):
            end = time.monotonic() + _ANSWER
            stream = console_socket.opened(near, _ANSWER)
            try:
                stream.send(console_socket.data_packet(question))
                return _whole_answer(stream, end)
            except OSError as error:
                raise dials.silent(node) from error

    def serve(self, identity: str, secret: str, accept: Callable[[], Any]) -> None:
        """Use the connection of a node until it ends. Refused(DENIED) unless this node was asked for it.

        accept: completes the handshake and returns the channel.
        """
        with self._lock:
            waiting = self._waiting.get(secret)
            if waiting is None or waiting.identity != identity:
                raise dial_tokens.void()
            del self._waiting[secret]
        with waiting.far:
            waiting.connected.set()
            tunnel.splice(accept(), waiting.far, console_socket.checked_output)

    @contextmanager
    def _connected(
        self, node: str, purpose: DialPurpose, user: str = "", sliver: str = "", *, patience: float | None = None
    ) -> Iterator[tuple[_Waiting, socket.socket]]:
        dial, identity = Dial(dial_tokens.new_secret(), purpose, user, sliver), dials.reachable(self._store, node)
        with ExitStack() as stack:
            stack.enter_context(self._limits.held(Kind.DIAL, node))  # for the thread of the node's connection
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(near)
            waiting = _Waiting(identity, far)
            stack.callback(self._forget, dial.secret, waiting)
            with self._lock:
                self._waiting[dial.secret] = waiting
            dials.ask(self._store, self._config, node, dial)
            if not waiting.connected.wait(self._patience if patience is None else patience):
                raise dials.silent(node)
            yield waiting, near

    def _forget(self, secret: str, waiting: _Waiting) -> None:
        with self._lock:
            if self._waiting.pop(secret, None) is not None:
                waiting.far.close()  # no node has come for it

    def _watch(self, waiting: _Waiting, console: RemoteConsole) -> None:
        with self._lock:
            self._open[waiting] = console
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._judge, name="rights of consoles", daemon=True).start()

    def _judge(self) -> None:
        """End the sessions whose users no longer have the right to them, as the agent does for its own."""
        pause = threading.Event()
        while True:
            pause.wait(_WATCH)
            with self._lock:
                found = dict(self._open)
                if not found:
                    self._watching = False
                    return
            try:
                with self._store.read() as c:
                    reasons = consoles.objections(c, [one.ticket for one in found.values()], utcnow())
            except StoreError as error:  # sessions continue, as slivers do
                log.warning("cannot read the console permissions: %s", error)
                continue
            for (waiting, console), why in zip(found.items(), reasons, strict=True):
                if why is not None:
                    log.info("a console of %s closed for %s: %s", console.name, console.ticket.user, why)
                    waiting.end(why)


def _whole_answer(stream: socket.socket, end: float) -> bytes:
    """The data until the end of the stream, or more than an answer has. Raises OSError, or the error of the agent.

    end: by the monotonic clock.
    """
    parts, size = list[bytes](), 0
    while size <= node_answers.LARGEST:
        stream.settimeout(max(_LEAST, end - time.monotonic()))
        packet = stream.recv(tunnel.LARGEST)
        if not packet:
            break
        part = console_socket.parse_output(packet)
        if isinstance(part, SlicemgrError):
            raise part
        parts.append(part)
        size += len(part)
    return b"".join(parts)
