"""A sliver's console or screen as a WebSocket: relays bytes between the browser or slicectl and the agent.

The agent verifies the token; for a sliver on another host, the service does, and asks that host to connect. A page of
another site is refused even with a token, by its Origin header.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from flask import Response, request
from flask_smorest import Blueprint

from slicemgr.errors import Code, Failed, Refused, SlicemgrError, invalid
from slicemgr.ipc import console_socket
from slicemgr.service.slices import consoles
from slicemgr.store import console_tickets
from slicemgr.web import schemas
from slicemgr.web.state import state
from slicemgr.web.thread_limits import Kind

PATH = "/api/v1/console"
_PING, _SILENT = 20.0, 60.0  # seconds between pings, and until a silent connection counts as lost
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR

blueprint = Blueprint("console", __name__, description="Consoles of slivers")


@blueprint.route(PATH, websocket=True)
@blueprint.doc(
    responses={"101": {"description": "a WebSocket; binary frames carry the input and output of the console"}}
)
@blueprint.alt_response(400, schema=schemas.Problem)
@blueprint.alt_response(401, schema=schemas.Problem)
@blueprint.alt_response(403, schema=schemas.Problem)
def attach() -> Response:
    """Open the console or screen that the token in `Sec-WebSocket-Protocol: slicemgr.console.v1, token.TOKEN` is for.

    Of a screen, the bytes are RFB (VNC). A text frame `{"rows": 50, "columns": 160}` gives a container's console that
    size. A close code above 4000 is 4000 + the HTTP status of the reason.
    """
    from slicemgr.ipc import websocket

    connection = request.environ.get("gunicorn.socket")
    if connection is None:
        raise invalid("Upgrade", "this server does not support WebSocket", "run the service with `slicemgr web`")
    protocol, token = websocket.accept(request.headers.items(), PATH)
    _check_origin()
    limit = state().thread_limits.held(Kind.CONSOLE, console_tickets.user_of(state().store, token))
    with limit, _stream(token) as stream:
        channel = websocket.opened(connection, protocol)
        channel.close(_relay(channel, stream))
    return Served()


@contextmanager
def _stream(token: str) -> Iterator[socket.socket]:
    """The console from the agent beside this process, or from that of another host."""
    remote = consoles.redeem_remote(state().store, token)
    if remote is None:
        with console_socket.connect(state().config.console_socket, token) as stream:
            yield stream
    else:
        with state().dials.console(remote) as stream:
            yield stream


class Served(Response):
    """The connection was used as a WebSocket: gunicorn must not respond, only close it."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        raise StopIteration


def _check_origin() -> None:
    """Refuse pages of other sites. Only browsers send an Origin, and set it to the site of the page."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise Refused(Code.DENIED, "pages of another site cannot open consoles", field="Origin")


class _Upwards:
    """Data from the client that the agent has not accepted yet."""

    def __init__(self, channel: Any, stream: socket.socket) -> None:
        self._channel = channel
        self._stream = stream
        self._told: tuple[int, int] | None = None
        self._data = b""

    @property
    def waits(self) -> bool:
        return bool(self._data) or self._channel.window != self._told

    def receive(self) -> None:
        self._data += self._channel.receive()

    def send(self) -> None:
        """Send as much as the agent accepts now. Raises OSError."""
        if self._channel.window != self._told:
            self._stream.send(console_socket.size_packet(console_socket.TerminalSize(*self._channel.window)))
            self._told = self._channel.window
        while self._data:
            self._stream.send(console_socket.data_packet(self._data[: console_socket.CHUNK]))
            self._data = self._data[console_socket.CHUNK :]

    def forget(self) -> None:
        self._data, self._told = b"", self._channel.window


def _relay(channel: Any, stream: socket.socket) -> SlicemgrError | None:
    """Relay bytes until one end closes; the reason, unless the client left. A slow end slows the other one down."""
    upwards = _Upwards(channel, stream)
    upwards.receive()
    pinged = time.monotonic()
    while channel.ended is None:
        from_client, from_agent = _wait(channel, stream, upwards.waits)
        if from_client & select.POLLOUT:
            channel.flush()
        if from_client & select.POLLIN:
            upwards.receive()
        elif from_client & _GONE:
            break
        try:
            if from_agent & ~select.POLLOUT and not channel.pending:
                output = console_socket.parse_output(stream.recv(console_socket.CHUNK + 1))
                if isinstance(output, SlicemgrError):
                    return output
                channel.send(output)
            upwards.send()
        except BlockingIOError:
            pass
        except OSError:  # the reason is in the data that is still unread
            upwards.forget()
        now = time.monotonic()
        if not upwards.waits and now - channel.heard > _SILENT:
            return Failed("the client does not respond", code=Code.TIMEOUT)
        if now - pinged > _PING:
            pinged = now
            channel.ping()
    return None


def _wait(channel: Any, stream: socket.socket, full: bool) -> tuple[int, int]:
    """The poll events of client and agent. full: the agent has not accepted all data of the client yet."""
    poll = select.poll()
    wanted = (select.POLLOUT if channel.pending else 0) | (0 if full else select.POLLIN)
    poll.register(channel, wanted | select.POLLRDHUP)
    wanted = (select.POLLOUT if full else 0) | (0 if channel.pending else select.POLLIN)
    if wanted:
        poll.register(stream, wanted)
    ready = dict(poll.poll(_PING * 1000))
    return ready.get(channel.fileno(), 0), ready.get(stream.fileno(), 0)
