"""Wait for messages of the broker and for a wake-up at the same time."""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slicemgr.ipc.wake import Listener

if TYPE_CHECKING:
    from kombu import Connection

_READ = 1.0  # seconds for the rest of a message that has begun to arrive


def drain(connection: Connection, listener: Listener | None, timeout: float) -> bool:
    """Handle a message, if one arrives within `timeout` seconds; whether the listener was woken.

    Raises OSError or an error of kombu if the connection is lost.
    """
    sock: Any = connection.connection.sock
    if listener is not None and not _has_data(sock):
        ready, _, _ = select.select([sock, listener], [], [], timeout)
        if listener in ready:
            listener.wait(0)
            return True
        if not ready:
            return False
        timeout = _READ
    with suppress(TimeoutError):
        connection.drain_events(timeout=timeout)
    return False


def _has_data(sock: Any) -> bool:
    """Whether decrypted data waits, which `select` does not know."""
    return bool(getattr(sock, "pending", int)())


def ignore_encodings(channel: Any) -> None:
    """Give the bodies of messages on a channel as the bytes that they are.

    Otherwise the sender chooses how they are decoded and decompressed, to any size.
    """
    channel.auto_decode = False
    convert = channel.message_to_python

    def plain(raw: Any) -> Any:
        raw.properties.pop("application_headers", None)
        return convert(raw)

    channel.message_to_python = plain
