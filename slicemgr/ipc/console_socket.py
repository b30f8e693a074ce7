"""The socket through which the agent gives the web process a console: both its ends.

The web process sends a token. The agent answers OPENED or an error; then what the sliver says comes as data packets
and, last, an error that tells why it ended, while the web process sends as data packets what the sliver shall read,
and now and then how large the window is. SOCK_SEQPACKET keeps the packets apart.
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
_ANSWER = 60.0  # seconds for libvirt to open a console, its own time limit included
_AWAY = "the agent of the node does not respond"


class TerminalSize(NamedTuple):
    """How many characters a terminal has room for."""

    rows: int
    columns: int


def listen(path: Path, user: str = "") -> socket.socket:
    """The agent's end. root and `user`, the web process, may connect, and get nothing without a token."""
    return unix_socket.bind(socket.SOCK_SEQPACKET, path, user, backlog=64)


def connect(path: Path, token: str) -> socket.socket:
    """The web process's end: the stream of the console that `token` opens. Raises what the agent has against it."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        stream.settimeout(_ANSWER)
        stream.connect(str(path))
        stream.send(token.encode())
        answer = parse_output(stream.recv(CHUNK + 1))
    except OSError as error:
        stream.close()
        raise Refused(Code.UNAVAILABLE, _AWAY, hint="show its last contact with `slicectl node list`") from error
    if isinstance(answer, SlicemgrError):
        stream.close()
        raise answer
    stream.setblocking(False)
    return stream


def data_packet(content: bytes) -> bytes:
    return _DATA + content


def error_packet(cause: SlicemgrError) -> bytes:
    fields = {"code": cause.code.wire, "message": cause.message, "hint": cause.hint}
    return _ERROR + json.dumps(fields).encode()


def size_packet(size: TerminalSize) -> bytes:
    return _WINDOW + _SIZE.pack(*size)


def parse_input(packet: bytes) -> bytes | TerminalSize:
    """What the web process said: what the sliver shall read, or the size of the window. b"" is the end."""
    kind, content = packet[:1], packet[1:]
    if kind == _WINDOW and len(content) == _SIZE.size:
        return TerminalSize(*_SIZE.unpack(content))
    return content if kind == _DATA else b""


def parse_output(packet: bytes) -> bytes | SlicemgrError:
    """What the agent said: data (b"" for OPENED), or why it ended. An end without a word has a reason, too."""
    kind, content = packet[:1], packet[1:]
    if kind in (_DATA, OPENED):
        return content
    if kind != _ERROR:
        return Failed("the connection to the agent of the node was lost", hint="attach again", code=Code.UNAVAILABLE)
    fields: dict[str, Any] = json.loads(content)
    return Refused(Code.from_wire(fields["code"]), fields["message"], hint=fields["hint"])
