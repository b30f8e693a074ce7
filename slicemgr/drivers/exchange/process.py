"""Start the program that exchanges blocks with other nodes, and give it connections and files. See peer_process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.importer import confinement
from slicemgr.drivers.importer.confinement import Bounds, User, View
from slicemgr.drivers.importer.disk_image import SYSTEM_PYTHON

_PROGRAM = "/exchange/peer_process.py"  # its path inside the confinement
_SOURCE = Path(__file__).with_name("peer_process.py")
_BOUNDS = Bounds(memory=512 << 20, data=1 << 30, cpu=24 * 3600, file=1 << 20, processes=256)
_LONGEST = 24 * 3600.0  # seconds; then it is started again
_SEND = 10.0  # seconds
_BACKLOG = 32


class PeerProcess:
    """A context manager, for one thread at a time. Its methods raise OSError once the program has ended."""

    def __init__(self, who: User, certificate: str, key: str, authority: str, upload: int) -> None:
        """certificate, key, authority: PEM. upload: bytes a second to other nodes together, 0: no limit."""
        self._who = who
        self._identity: dict[str, Any] = {
            "certificate": certificate,
            "key": key,
            "authority": authority,
            "upload": upload,
        }
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Raises CommandFailed if the program cannot be started."""
        with ExitStack() as undo:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(self._control)
            with theirs:
                line = [SYSTEM_PYTHON, "-I", "-B", _PROGRAM, str(theirs.fileno())]
                view = View({_PROGRAM: _SOURCE}, {})
                talk = confinement.converse(
                    line, self._who, _BOUNDS, view, timeout=_LONGEST, env={}, keep=(theirs.fileno(),)
                )
                self._talk = undo.enter_context(talk)
            undo.callback(self._control.shutdown, socket.SHUT_RDWR)  # the program ends with it
            self._control.settimeout(_SEND)
            self.tell("identity", **self._identity)
            self._stack = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def ended(self) -> bool:
        return self._talk.ended

    def failure(self) -> CommandFailed:
        """Why it ended."""
        return self._talk.failure()

    def tell(self, kind: str, /, descriptors: Sequence[int] = (), **content: Any) -> None:
        """Send an order, see peer_process."""
        socket.send_fds(self._control, [json.dumps({"kind": kind, **content}).encode()], descriptors)

    def dial(self, peer: socket.socket) -> socket.socket:
        """Give it a connection to a peer, which is closed here. The stream carries requests and replies."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, peer:
                self.tell("dial", (peer.fileno(), theirs.fileno()))
        except OSError:
            ours.close()
            raise
        return ours

    def listen(self, address: str, port: int) -> int:
        """Let it answer other nodes on a TCP port, and return the number of the port; 0 chooses one.

        address: "" for all addresses of the host.
        """
        with _server(address, port) as listener:
            self.tell("listen", (listener.fileno(),))
            return int(listener.getsockname()[1])

    def offer(self, sha256: str, file: Path, have: str) -> None:
        """Let it read a file, of which it may give the blocks `have` (a hexadecimal number) to other nodes."""
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self.tell("file", (descriptor,), sha256=sha256, have=have)
        finally:
            os.close(descriptor)


def _server(address: str, port: int) -> socket.socket:
    if not address and socket.has_dualstack_ipv6():
        with suppress(OSError):  # the host has no IPv6
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=_BACKLOG)
