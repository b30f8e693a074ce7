"""gunicorn's threaded worker, changed so that threads get complete requests only.

gunicorn gives a thread to each new connection, which then waits for the client: a few clients that send nothing or send
slowly occupy all threads. Here the event loop, which gunicorn has for idle connections, reads the requests: a thread
gets one when header and body have arrived, or the header of an upload. The loop enforces deadlines, counts connections
by address, and delivers a response to a client that is still sending. It never blocks.

This is a subclass of gunicorn's gthread worker in version 27: it replaces accept, finish_request and the sweeps of idle
connections, and uses its event loop, thread pool and request handling as they are.
"""

from __future__ import annotations

import errno
import resource
import selectors
import socket
import time
from collections import Counter, deque
from contextlib import suppress
from functools import partial
from typing import Any

import h11
from gunicorn.workers.gthread import ThreadWorker

from slicemgr.service.accounts.attempts import network
from slicemgr.web.connection import LARGEST_HEADER, Connection, Pace, Phase, TooSlow, problem, refusal

_CHUNK = 256 << 10
_AT_ONCE = 64  # connections accepted before other events are handled
_END = 10.0  # seconds for a client to read the last response and stop sending
_STOP = 2.0  # seconds for idle connections when the service stops
_RESERVE = 256  # descriptors for other purposes
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TRANSIENT = (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Worker(ThreadWorker):  # type: ignore[misc]
    """`app` has `web`, the settings, and `refusals`, the counters of refused requests."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self._config = self.app.web
        self._refusals = self.app.refusals
        self._pace = Pace(self._config)
        self._most = _allow_descriptors(self._config.connections)
        self._waiting: dict[Phase, dict[Connection, None]] = {phase: {} for phase in Phase}  # the oldest first
        self._places: Counter[str] = Counter()
        self._share = max(1, self.cfg.threads - max(1, self.cfg.threads // 16))  # threads for one address, at most
        self._running: Counter[str] = Counter()  # threads by address
        self._queues: dict[str, deque[Connection]] = {}  # complete requests of addresses at their limit
        self._buffered = 0
        self._spans = {
            Phase.END: _END,
            Phase.IDLE: float(self.cfg.keepalive),
            Phase.HEADER: self._config.header_time.total_seconds(),
            Phase.BODY: self._pace.seconds,
        }

    # connections come

    def accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, address = listener.accept()
            except OSError as error:
                if error.errno in _NO_DESCRIPTOR and self._give_up_one():
                    continue
                if error.errno in (*_TRANSIENT, *_NO_DESCRIPTOR):
                    return
                raise
            connection = Connection(self.cfg, sock, address, listener.getsockname(), self._pace)
            self.nr_conns += 1
            self._admit(connection, address[0])

    def _admit(self, connection: Connection, address: str) -> None:
        if self.nr_conns > self._most and not self._give_up_one():
            self._refusals.add("connections")
            self._refuse(connection, problem(503, "unavailable", "too many connections", retry_after=1))
        elif self._config.proxies or self._count(connection, address):
            self._wait(connection, Phase.HEADER)

    def _count(self, connection: Connection, address: str) -> bool:
        """Whether the address may have another connection; otherwise it is refused."""
        place = network(address)
        if self._places[place] >= self._config.connections_per_address:
            self._refusals.add("connections_per_address")
            hint = f"the limit is {self._config.connections_per_address} (web.connections_per_address)"
            answer = problem(429, "too_many", "too many connections from your address", hint, retry_after=1)
            self._refuse(connection, answer)
            return False
        connection.place = place
        self._places[place] += 1
        return True

    def _uncount(self, connection: Connection) -> None:
        if connection.place is not None:
            self._places[connection.place] -= 1
            if not self._places[connection.place]:
                del self._places[connection.place]
            connection.place = None

    def _give_up_one(self) -> bool:
        """Close a connection in favour of another one: the oldest of the least important phase."""
        for waiting in self._waiting.values():
            for connection in waiting:
                self._refusals.add("connections")
                self._drop(connection)
                return True
        return False

    # requests come

    def _wait(self, connection: Connection, phase: Phase) -> None:
        """Let the loop wait for the client."""
        connection.sock.setblocking(False)
        self.poller.register(connection.sock, selectors.EVENT_READ, partial(self._receive, connection))
        self._enter(connection, phase)

    def _enter(self, connection: Connection, phase: Phase) -> None:
        self._waiting[connection.phase].pop(connection, None)
        connection.phase, connection.since = phase, time.monotonic()
        self._waiting[phase][connection] = None

    def _leave(self, connection: Connection) -> None:
        self._waiting[connection.phase].pop(connection, None)
        with suppress(KeyError, ValueError, OSError):
            self.poller.unregister(connection.sock)

    def _receive(self, connection: Connection, _sock: socket.socket) -> None:
        if connection not in self._waiting[connection.phase]:  # closed by an earlier event of this iteration
            return
        try:
            data = connection.sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data and connection.phase is Phase.BODY:  # the client may still read, after it has closed its half
            hint = "send the whole body, or a correct Content-Length"
            self._refuse(connection, problem(400, "invalid", "the body of the request is incomplete", hint))
        elif not data:
            self._drop(connection)
        elif connection.phase is not Phase.END:
            self._feed(connection, data)

    def _feed(self, connection: Connection, data: bytes) -> None:
        """Process received data; a thread gets the request once it is complete."""
        if connection.phase is Phase.IDLE:
            self._enter(connection, Phase.HEADER)
        self._buffered += len(data)
        connection.kept += len(data)
        known = connection.header is not None
        try:
            ready = connection.feed(data)
        except (h11.ProtocolError, ValueError) as error:
            status = error.error_status_hint if isinstance(error, h11.ProtocolError) else 400
            self._refuse(connection, problem(status, "invalid", f"not a valid HTTP request: {error}"))
            return
        if connection.header is not None and not known and not self._begin(connection, ready):
            return
        if not self._fits(connection):
            return
        if ready:
            self._leave(connection)
            connection.hand_over()
            self._start(connection, connection.place or "")
        elif connection.phase is Phase.BODY and connection.got >= self._pace.least:
            connection.got = 0
            self._enter(connection, Phase.BODY)

    def _begin(self, connection: Connection, ready: bool) -> bool:
        """The header is complete. False: the request was refused."""
        if self._config.proxies:
            address = connection.forwarded(self._config.proxies)
            if address is not None and not self._count(connection, address):
                return False
        if not ready:
            if connection.wants_leave:
                with suppress(OSError):
                    connection.sock.send(_CONTINUE)
            self._enter(connection, Phase.BODY)
        return True

    def _start(self, connection: Connection, place: str) -> None:
        """Assign a thread, or queue the request if its address is at the limit: a client that does not read must not
        hold all.
        """
        if place and self._running[place] >= self._share:
            self._queues.setdefault(place, deque()).append(connection)
            return
        connection.runs_for = place
        self._running[place] += 1
        self.enqueue_req(connection)

    def _stop(self, connection: Connection) -> None:
        """The thread is free for the next request."""
        place = connection.runs_for
        self._running[place] -= 1
        self._running += Counter()  # removes zeros
        if queue := self._queues.get(place):
            following = queue.popleft()
            if not queue:
                del self._queues[place]
            self._start(following, place)

    def _fits(self, connection: Connection) -> bool:
        """Close incomplete bodies, the oldest first and this one last, until memory is within its limit."""
        while self._buffered > self._config.buffers.bytes:
            given_up = next((one for one in self._waiting[Phase.BODY] if one is not connection), connection)
            if given_up is connection and connection.kept <= LARGEST_HEADER:
                return True  # complete requests hold the memory, and will release it
            self._refusals.add("buffers")
            hint = "try again in a moment"
            self._refuse(given_up, problem(503, "unavailable", "too many requests", hint, 1))
            if given_up is connection:
                return False
        return True

    # answers go

    def handle_request(self, req: Any, conn: Connection) -> bool:
        """Runs in a thread. After an upload the connection is closed, because the upload may have been refused
        half-way.
        """
        conn.last = conn.source.large
        if conn.last:
            req.force_close()
        conn.sock.settimeout(self._config.answer_time.total_seconds())
        try:
            return bool(super().handle_request(req, conn)) and not conn.last
        except TimeoutError as error:
            raise ConnectionResetError(errno.ECONNRESET, "the client does not read the response") from error

    def finish_request(self, conn: Connection, fs: Any) -> None:
        """Runs in the event loop, after a thread has handled a request."""
        self._stop(conn)
        self._release(conn)
        if self._config.proxies:
            self._uncount(conn)
        again = not fs.cancelled() and fs.exception() is None and fs.result() is True
        more = conn.source.take_buffered()
        conn.begin()
        if not again:
            self._end(conn)
            return
        try:
            self._wait(conn, Phase.IDLE)
        except (OSError, ValueError):  # it was closed
            self._drop(conn)
            return
        if more:
            self._feed(conn, more)

    def _refuse(self, connection: Connection, answer: bytes) -> None:
        self._release(connection)
        connection.sock.setblocking(False)
        with suppress(OSError):
            connection.sock.send(answer)
        self._end(connection)

    def _end(self, connection: Connection) -> None:
        """End the connection.

        A client that is still sending would lose the response if it were closed (RFC 9112, 9.6).
        """
        self._leave(connection)
        connection.raw = bytearray()
        try:
            connection.sock.shutdown(socket.SHUT_WR)
            self._wait(connection, Phase.END)
        except (OSError, ValueError):  # it was closed
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._leave(connection)
        self._release(connection)
        self._uncount(connection)
        self.nr_conns -= 1
        connection.close()

    def _release(self, connection: Connection) -> None:
        """The request's memory is released, now or soon."""
        self._buffered -= connection.kept
        connection.kept = 0

    # time passes

    def murder_keepalived(self, force: bool = False) -> None:
        """Close connections that exceeded their deadline; force: all that wait."""
        now = time.monotonic()
        for phase, waiting in self._waiting.items():
            span = self._spans[phase] if self.alive or phase is Phase.BODY else min(self._spans[phase], _STOP)
            for connection in list(waiting):
                if force:
                    self._drop(connection)
                elif now - connection.since >= span:
                    self._expire(connection)
                else:
                    break

    def murder_pending(self) -> None:
        """Not needed: `murder_keepalived` covers these, too."""

    def _expire(self, connection: Connection) -> None:
        match connection.phase:
            case Phase.HEADER if connection.raw:
                self._refusals.add("header_time")
                hint = f"send it within {self._spans[Phase.HEADER]:g} s (web.header_time)"
                late = "the header of the request did not arrive in time"
                self._refuse(connection, problem(408, "too_slow", late, hint))
            case Phase.BODY:
                self._refusals.add("body_time")
                self._refuse(connection, refusal(TooSlow(self._pace.least, self._pace.seconds)))
            case _:
                self._drop(connection)


def _allow_descriptors(connections: int) -> int:
    """The maximum number of connections: the setting, or what the process's descriptors allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _RESERVE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - _RESERVE))
