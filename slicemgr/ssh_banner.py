"""The SSH banner, which shows that a sliver runs and that its ports lead to it."""

from __future__ import annotations

import socket

PORT = 22
_BANNER = b"SSH-"  # RFC 4253, 4.2


def answers(host: str, port: int = PORT, timeout: float = 2.0) -> bool:
    """Whether any SSH server responds there; timeout: seconds for the connection and for its banner."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.settimeout(timeout)
            return connection.recv(len(_BANNER)) == _BANNER
    except OSError:
        return False
