"""Wait for messages of the broker and for a wake-up at the same time."""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amqp.method_framing import frame_handler

from slicemgr.ipc.wake import Listener

if TYPE_CHECKING:
    from kombu import Connection

_READ = 1.0  # seconds for the rest of a message that has begun to arrive
_METHOD, _HEADER = 1, 2  # types of frames
_DELIVER = b"\x00\x3c\x00\x3c"  # the method Basic.Deliver
_NO_PROPERTIES = b"\x00\x00"

Frame = tuple[int, int, Any]  # type, channel, payload


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


def bare_frames(connection: Any, deliver: Callable[..., Any]) -> Callable[[Frame], Any]:
    """A frame handler for a connection of amqp, which does not decode what a sender chooses beside the body.

    A routing key that is no UTF-8, or a timestamp beyond all calendars, would end the program that receives it.
    """
    handle = frame_handler(connection, deliver)

    def on_frame(frame: Frame) -> Any:
        kind, channel, payload = frame
        if kind == _HEADER:
            payload = bytes(payload[:12]) + _NO_PROPERTIES  # class, weight and size
        elif kind == _METHOD and payload[:4] == _DELIVER:
            payload = _without_key(bytes(payload))
        return handle((kind, channel, payload))

    return on_frame


def _without_key(payload: bytes) -> bytes:
    """Basic.Deliver: tag of the consumer, number and flag of the delivery, exchange, routing key."""
    exchange = 4 + 1 + payload[4] + 8 + 1
    return payload[: exchange + 1 + payload[exchange]] + b"\x00"
