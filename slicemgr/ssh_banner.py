"""The SSH banner, which shows that a sliver runs and that its ports lead to it."""

from __future__ import annotations

import socket

PORT = 22
_BANNER = b"SSH-"  # RFC 4253, 4.2


def answers(host: str, port: int = PORT, timeout: float = 2.0, connect: float | None = None) -> bool:
    """Whether any SSH server responds there; timeout: seconds for the connection and for its banner.

    connect: another number of seconds for the connection. A host that is not up yet loses its first packet, and only a
    new attempt finds it in less than a second.
    """
    try:
        with socket.create_connection((host, port), timeout if connect is None else connect) as connection:
            connection.settimeout(timeout)
            return connection.recv(len(_BANNER)) == _BANNER
    except OSError:
        return False
