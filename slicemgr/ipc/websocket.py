"""A non-blocking WebSocket: the caller polls it, moves bytes both ways, and stops reading while its buffer is full.

Both ends of a console use it, the web process and the client; so do web process and node. wsproto encodes and decodes
the frames. Binary frames are input and output; a text frame of the client is JSON with the size of its terminal.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import time
from collections.abc import Iterable
from typing import NamedTuple, Self

import h11
from wsproto import ConnectionType, WSConnection, events
from wsproto.connection import ConnectionState
from wsproto.utilities import LocalProtocolError, ProtocolError

from slicemgr.errors import Code, Failed, SlicemgrError, invalid

PROTOCOL = "slicemgr.console.v1"
_TOKEN = "token."  # as a subprotocol: a browser can send no header of its own, and a URL would be logged
_CHUNK = 65536
_HANDSHAKE = 65536  # bytes of a refusal, at most
_LONGEST_TEXT = 256  # characters
_MOST_WINDOW = 1000  # rows and columns
_PRIVATE = 4000  # close codes of this service: 4000 + the HTTP status of the error
_LOST = 1006
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Closed(NamedTuple):
    """The reason why the other end closed; code 1006: the connection was lost."""

    code: int
    reason: str

    def error(self, lost: str) -> SlicemgrError | None:
        """The error that the close frame reports, `lost` if it has none; None after a normal end."""
        if self.code == 1000:
            return None
        code = next((one for one in Code if one.status == self.code - _PRIVATE), Code.UNAVAILABLE)
        return Failed(self.reason or lost, code=code)


class Rejected(Exception):
    """The service answered the handshake with an HTTP error."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.body = body


class Channel:
    """An open WebSocket. `ended` is set once the other end closed; data sent before that was received.

    As a context manager it closes the socket without a close frame: `close` sends one.
    """

    def __init__(self, sock: socket.socket, protocol: WSConnection) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._protocol = protocol
        self._out = bytearray()
        self._text = ""
        self.ended: Closed | None = None
        self.window: tuple[int, int] | None = None  # rows and columns, as last received
        self.heard = time.monotonic()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def pending(self) -> int:
        """Bytes that wait to be sent; while there are any, do not call `send`."""
        return len(self._out)

    def receive(self) -> bytes:
        """The data of received binary frames, b"" if there is none; answers pings, stores the terminal size.

        Call it once before the first poll: data may have arrived with the handshake.
        """
        data = b""
        try:
            data = self._socket.recv(_CHUNK)
            while isinstance(self._socket, ssl.SSLSocket) and (more := self._socket.pending()):
                data += self._socket.recv(more)
            if not data:
                received = b"".join(self._messages())  # all data may have arrived with the answer to the handshake
                self.ended = self.ended or Closed(_LOST, "")
                return received
        except _WOULD_BLOCK:
            pass
        except OSError as error:
            self.ended = self.ended or Closed(_LOST, error.strerror or "")
            return b""
        if data:
            self.heard = time.monotonic()
        try:
            self._protocol.receive_data(data)
            return b"".join(self._messages())
        except ProtocolError as error:
            self.ended = self.ended or Closed(1002, f"the other end violated the WebSocket protocol: {error}")
            return b""

    def _messages(self) -> Iterable[bytes]:
        for event in self._protocol.events():
            match event:
                case events.BytesMessage():
                    yield bytes(event.data)
                case events.TextMessage():
                    self._note(event.data, event.message_finished)
                case events.Ping():
                    self._queue(event.response())
                case events.CloseConnection():
                    self.ended = Closed(event.code, event.reason or "")
                    if self._protocol.state is ConnectionState.REMOTE_CLOSING:
                        self._queue(event.response())

    def _note(self, text: str, finished: bool) -> None:
        """Parse a text frame. Unknown content is ignored: a later version may send more."""
        self._text = (self._text + text)[: _LONGEST_TEXT + 1]
        if not finished:
            return
        frame, self._text = self._text, ""
        try:
            size = json.loads(frame) if len(frame) <= _LONGEST_TEXT else None
        except (ValueError, RecursionError):
            return
        if isinstance(size, dict) and all(_is_extent(size.get(one)) for one in ("rows", "columns")):
            self.window = (size["rows"], size["columns"])

    def resize(self, rows: int, columns: int) -> None:
        """Send the size of the terminal."""
        self._queue(events.TextMessage(data=json.dumps({"rows": rows, "columns": columns})))

    def send(self, data: bytes) -> None:
        self._queue(events.BytesMessage(data=data))

    def ping(self) -> None:
        self._queue(events.Ping())

    def _queue(self, event: events.Event) -> None:
        try:
            self._out += self._protocol.send(event)
        except LocalProtocolError:  # one end has closed: nothing more is sent
            return
        self.flush()

    def flush(self) -> None:
        """Send what the socket accepts now."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self._out.clear()
            self.ended = self.ended or Closed(_LOST, error.strerror or "")

    def lost(self, reason: str) -> None:
        """Mark the connection as lost."""
        self.ended = self.ended or Closed(_LOST, reason)

    def drain(self, seconds: float) -> None:
        """Wait until all data is sent, at most so many seconds."""
        poll = select.poll()
        poll.register(self, select.POLLOUT)
        end = time.monotonic() + seconds
        while self._out and self.ended is None and (left := end - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def close(self, error: SlicemgrError | None = None) -> None:
        """Send a close frame with the reason, as far as the other end still reads."""
        if self.ended is None and self._protocol.state is ConnectionState.OPEN:
            code = 1000 if error is None else _PRIVATE + error.code.status
            self._queue(events.CloseConnection(code=code, reason=error.message if error else None))


def _is_extent(value: object) -> bool:
    return type(value) is int and 0 < value <= _MOST_WINDOW


def accept(headers: Iterable[tuple[str, str]], path: str, name: str = PROTOCOL) -> tuple[WSConnection, str]:
    """Parse a request for a WebSocket of the protocol `name`; the argument of `opened`, and the token.

    Refused(INVALID).
    """
    protocol = WSConnection(ConnectionType.SERVER)
    wanted: list[str] = []
    encoded = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers if _of_handshake(name.lower())
    ]
    try:
        protocol.initiate_upgrade_connection(encoded, path)
        for event in protocol.events():
            if isinstance(event, events.Request):
                wanted = event.subprotocols
    except (ProtocolError, h11.ProtocolError) as error:
        raise invalid(
            "Upgrade", f"this address accepts only WebSocket connections: {error}", "`slicectl console`"
        ) from error
    tokens = [one.removeprefix(_TOKEN) for one in wanted if one.startswith(_TOKEN)]
    if name not in wanted or len(tokens) != 1:
        raise invalid("Sec-WebSocket-Protocol", "is of another purpose", f"send `{name}, {_TOKEN}TOKEN`")
    return protocol, tokens[0]


def _of_handshake(header: str) -> bool:
    return header in ("host", "connection", "upgrade") or header.startswith("sec-websocket-")


def opened(sock: socket.socket, protocol: WSConnection, name: str = PROTOCOL) -> Channel:
    """Complete the handshake."""
    sock.sendall(protocol.send(events.AcceptConnection(subprotocol=name)))
    return Channel(sock, protocol)


def connect(sock: socket.socket, host: str, target: str, token: str, name: str = PROTOCOL) -> Channel:
    """The handshake of a client. Raises Rejected, or OSError if the connection breaks. host: as in the URL."""
    protocol = WSConnection(ConnectionType.CLIENT)
    request = events.Request(host=host, target=target, subprotocols=[name, _TOKEN + token])
    sock.sendall(protocol.send(request))
    status, body = 0, b""
    while True:
        data = sock.recv(_CHUNK)
        try:
            protocol.receive_data(data or None)
            for event in protocol.events():
                match event:
                    case events.AcceptConnection():
                        return Channel(sock, protocol)
                    case events.RejectConnection():
                        status = event.status_code
                        if not event.has_body:
                            raise Rejected(status, b"")
                    case events.RejectData():
                        body += event.data
                        if event.body_finished or len(body) > _HANDSHAKE:
                            raise Rejected(status, body)
        except ProtocolError as error:
            raise Rejected(status, body) from error
        if not data:
            raise Rejected(status, body)
