"""Whether the broker reads what a client sends: during an alarm it reads nothing from a connection that has published.

It states that at once, as an extension of AMQP. Without that, a publisher waits for a confirmation until its time is
over, and then for the answer that the connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError

from slicemgr.ipc import waiting

if TYPE_CHECKING:
    from kombu import Connection


_NO_ANSWER = 0.1  # seconds


class Blocked(Exception):
    """The broker reads nothing from this connection. A message that was under way arrives after its alarm."""


class Flow:
    """Of one connection. blocked: the broker reads nothing from it."""

    def __init__(self) -> None:
        self.blocked = False

    def options(self) -> Mapping[str, Callable[..., None]]:
        """For the connection of amqp, which then raises Blocked where it waits for the broker."""
        return {"on_blocked": self._block, "on_unblocked": self._unblock}

    def _block(self, _: Any) -> None:
        self.blocked = True
        raise Blocked("the broker takes no messages, because it lacks memory or disk")

    def _unblock(self) -> None:
        self.blocked = False

    def close(self, connection: Connection) -> None:
        """Close the connection, without an answer of the broker if it would give none."""
        with suppress(Blocked, OSError, AMQPError):  # what it has sent meanwhile
            waiting.drain(connection, None, 0)
        if self.blocked:
            connection.connection.sock.settimeout(_NO_ANSWER)
            connection.collect()
        else:
            connection.release()
