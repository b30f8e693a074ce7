"""The Unix socket on which the agent of the service's machine gives the web process open disk images, for a node.

The web process sends the token of the node, the sha256 of the image, and whether the stream of its base is wanted, as
one JSON packet. The agent judges the token itself and answers with one descriptor that can only read, or with an error
as JSON.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.ipc import unix_socket

_LARGEST = 4096  # bytes of a packet
_TIMEOUT = 10.0  # seconds
_OPENED = b"o"


def listen(path: Path, user: str = "") -> socket.socket:
    """The agent's socket, which root and `user`, the web process, may use."""
    return unix_socket.bind(socket.SOCK_SEQPACKET, path, user, backlog=64)


def ask(path: Path, token: str, sha256: str, *, base: bool = False) -> int:
    """A descriptor of the image, for the web process. Raises the agent's error, or Failed(UNAVAILABLE).

    base: of the stream of its base.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
        stream.settimeout(_TIMEOUT)
        try:
            stream.connect(str(path))
            stream.send(json.dumps({"token": token, "sha256": sha256, "base": base}).encode())
            packet, descriptors, _, _ = socket.recv_fds(stream, _LARGEST, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise Failed("the agent beside the service does not respond", code=Code.UNAVAILABLE) from error
    if packet == _OPENED and len(descriptors) == 1:
        return descriptors[0]
    for one in descriptors:
        os.close(one)
    raise _error(packet)


def question(stream: socket.socket) -> tuple[str, str, bool]:
    """The token, the sha256, and whether the base is wanted, as the web process sent them. Refused(INVALID)."""
    stream.settimeout(_TIMEOUT)
    try:
        raw = json.loads(stream.recv(_LARGEST))
        return str(raw["token"]), str(raw["sha256"]), raw.get("base") is True
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(Code.INVALID, "the request does not name an image and a token") from error


def give(stream: socket.socket, descriptor: int) -> None:
    socket.send_fds(stream, [_OPENED], [descriptor])


def refuse(stream: socket.socket, error: SlicemgrError) -> None:
    fields = {"code": error.code.wire, "message": error.message, "hint": error.hint}
    stream.send(json.dumps(fields).encode())


def _error(packet: bytes) -> SlicemgrError:
    if not packet:
        return Failed("the agent beside the service ended the connection", code=Code.UNAVAILABLE)
    fields = json.loads(packet)
    return Refused(Code.from_wire(fields["code"]), fields["message"], hint=fields["hint"])
