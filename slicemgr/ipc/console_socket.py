"""The Unix socket between web process and agent that carries a console: the functions of both sides.

The web process sends a token; on a node that has joined a testbed the link, as root, sends an order instead. The agent
answers OPENED or an error packet; then it sends the sliver's output as data packets and, last, an error packet with the
reason of the end. The web process sends the sliver's input as data packets, and the size of the terminal when it
changes. SOCK_SEQPACKET preserves the packet boundaries.
"""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any, NamedTuple

from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.ipc import unix_socket

CHUNK = 32768  # bytes of data in a packet
OPENED = b"o"
_DATA, _ERROR, _WINDOW = b"d", b"e", b"w"
_SIZE = struct.Struct("!HH")
_LARGEST_REASON = 4096  # bytes of an error packet of another host
_LONGEST_TEXT = 300  # characters of its texts
_PEER = struct.Struct("3i")  # pid, uid, gid
_ANSWER = 60.0  # seconds for libvirt to open a console, including its own timeout
_AWAY = "the agent of the node does not respond"


class TerminalSize(NamedTuple):
    """The size of a terminal in characters."""

    rows: int
    columns: int


class Order(NamedTuple):
    """A console that the service has granted to a user: what the link of a node passes on to its agent."""

    user: str
    sliver: str
    screen: bool


def listen(path: Path, user: str = "") -> socket.socket:
    """The agent's socket. root and `user`, the web process, may connect; a console needs a token."""
    return unix_socket.bind(socket.SOCK_SEQPACKET, path, user, backlog=64)


def connect(path: Path, token: str) -> socket.socket:
    """Connect from the web process: the stream of the console that `token` is for. Raises the agent's error."""
    return opened(request(path, token.encode()))


def request(path: Path, first: bytes) -> socket.socket:
    """A connection to the agent, to which a token or an order was sent. Refused(UNAVAILABLE)."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        stream.settimeout(_ANSWER)
        stream.connect(str(path))
        stream.send(first)
    except OSError as error:
        stream.close()
        raise _away() from error
    return stream


def opened(stream: socket.socket, timeout: float = _ANSWER) -> socket.socket:
    """The stream, not blocking, once the console is open. Closes it and raises the agent's error otherwise.

    timeout: seconds.
    """
    try:
        stream.settimeout(timeout)
        answer = parse_output(stream.recv(CHUNK + 1))
    except OSError as error:
        stream.close()
        raise _away() from error
    if isinstance(answer, SlicemgrError):
        stream.close()
        raise answer
    stream.setblocking(False)
    return stream


def _away() -> Refused:
    return Refused(Code.UNAVAILABLE, _AWAY, hint="show its last contact with `slicectl node list`")


def order_packet(order: Order) -> bytes:
    return json.dumps(order._asdict()).encode()


def parse_order(packet: bytes) -> Order | None:
    """None for a packet that is not an order, such as a token."""
    if packet[:1] != b"{":
        return None
    try:
        raw = json.loads(packet)
        return Order(str(raw["user"]), str(raw["sliver"]), raw["screen"] is True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def is_from_root(stream: socket.socket) -> bool:
    """Whether root connected to the agent."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(credentials)[1] == 0)


def data_packet(content: bytes) -> bytes:
    return _DATA + content


def error_packet(cause: SlicemgrError) -> bytes:
    fields = {"code": cause.code.wire, "message": cause.message, "hint": cause.hint}
    return _ERROR + json.dumps(fields).encode()


def size_packet(size: TerminalSize) -> bytes:
    return _WINDOW + _SIZE.pack(*size)


def parse_input(packet: bytes) -> bytes | TerminalSize:
    """A packet from the web process: input for the sliver, or the size of the terminal. b"" at the end."""
    kind, content = packet[:1], packet[1:]
    if kind == _WINDOW and len(content) == _SIZE.size:
        return TerminalSize(*_SIZE.unpack(content))
    return content if kind == _DATA else b""


def parse_output(packet: bytes) -> bytes | SlicemgrError:
    """A packet from the agent: output (b"" for OPENED), or the error that ended the console, also at end of file."""
    kind, content = packet[:1], packet[1:]
    if kind in (_DATA, OPENED):
        return content
    if kind != _ERROR:
        return Failed("the connection to the agent of the node was lost", hint="attach again", code=Code.UNAVAILABLE)
    fields: dict[str, Any] = json.loads(content)
    return Refused(Code.from_wire(fields["code"]), fields["message"], hint=fields["hint"])


def checked_output(packet: bytes) -> bytes:
    """A packet from the agent of another host, as it may be passed on. ValueError for one that no agent sends.

    The texts of an error become bounded and printable.
    """
    kind, content = packet[:1], packet[1:]
    if (kind == _DATA and content) or packet == OPENED:
        return packet
    if kind != _ERROR or len(content) > _LARGEST_REASON:
        raise ValueError("not a packet of an agent")
    try:
        raw = json.loads(content)
    except RecursionError as error:
        raise ValueError("not an error") from error
    if not isinstance(raw, dict):
        raise ValueError("not an error")
    message, hint = (_printable(raw.get(name)) for name in ("message", "hint"))
    return error_packet(Refused(Code.from_wire(str(raw.get("code"))), message, hint=hint))


def _printable(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return "".join(one if one.isprintable() else "?" for one in text[:_LONGEST_TEXT])
