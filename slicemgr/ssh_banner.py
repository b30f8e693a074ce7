"""The first words of an ssh server, by which it is known that a sliver is up and that its ports lead to it."""

from __future__ import annotations

import socket

PORT = 22
_BANNER = b"SSH-"  # RFC 4253, 4.2


def answers(host: str, port: int = PORT, timeout: float = 2.0) -> bool:
    """Whether an ssh server greets there, whoever it is; timeout: seconds for the connection and for its words."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.settimeout(timeout)
            return connection.recv(len(_BANNER)) == _BANNER
    except OSError:
        return False
