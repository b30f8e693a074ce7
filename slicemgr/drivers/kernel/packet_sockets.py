"""The capture rings of the packet sockets in a network namespace, by the kernel's sock_diag interface."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from slicemgr.drivers.kernel import namespaces, netlink

_SO_NETNS_COOKIE = 71
_SOCK_DIAG, _BY_FAMILY = 4, 20
_SHOW_RINGS = 4
_RX_RING, _TX_RING = 2, 3  # attributes of a response
_ASK, _RING = struct.Struct("=BBHIIII"), struct.Struct("=II")
_SOCKET = 16  # bytes of a socket's description before its attributes
_BUFFER = 1 << 16
_PATIENCE = 5.0  # seconds


@contextlib.contextmanager
def inside(pid: int) -> Iterator[socket.socket]:
    """A sock_diag socket in the network namespace of a process. Raises OSError if the process has ended."""
    with namespaces.inside(pid, "net"):
        diagnosis = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
    with diagnosis:
        diagnosis.settimeout(_PATIENCE)
        yield diagnosis


def cookie(diagnosis: socket.socket) -> int:
    """The kernel's cookie of the namespace, which is never reused."""
    return int(struct.unpack("=Q", diagnosis.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))[0])


@dataclass(frozen=True, slots=True)
class Found:
    """The number of packet sockets in a namespace, and the bytes of all their rings."""

    sockets: int
    ring_bytes: int


def find(diagnosis: socket.socket, least: int) -> Found:
    """The sockets that exist now; a ring counts at least `least` bytes. Raises OSError."""
    request = _ASK.pack(socket.AF_PACKET, 0, 0, 0, _SHOW_RINGS, 0, 0)
    diagnosis.send(netlink.message(_BY_FAMILY, netlink.DUMP, request))
    sockets, total, more = 0, 0, True
    while more:
        for kind, body in netlink.messages(diagnosis.recv(_BUFFER)):
            if kind == netlink.ERROR:
                code = netlink.error(body)
                raise OSError(code, os.strerror(code))
            if kind == netlink.DONE:
                more = False
            else:
                sockets += 1
                total += sum(max(least, size) for size in rings(body))
    return Found(sockets, total)


def rings(body: bytes) -> Iterator[int]:
    """The size of each ring of a socket in bytes, from its description. Pure."""
    for kind, value in netlink.attributes(body[_SOCKET:]):
        if kind in (_RX_RING, _TX_RING):
            size, count = _RING.unpack_from(value)
            yield size * count
