"""Send orders to nodes, on connections of their own: the broker reads nothing from a connection that it has blocked.

Acknowledgements of reports, which go another way, arrive during an alarm too.
"""

from __future__ import annotations

import logging
from typing import Protocol

from amqp.exceptions import MessageNacked
from kombu import Connection, Producer

from slicemgr.ipc import waiting
from slicemgr.ipc.flow import Blocked, Flow
from slicemgr.policy import broker

log = logging.getLogger(__name__)

_BRIEF_VALID = 60.0  # seconds
_VALID = 600.0  # seconds; later the answer to the next beat has it again
TIMEOUT = 15.0  # seconds


class Connect(Protocol):
    """Opens a connection to the broker. confirmed: to publish a message takes until the broker has it."""

    def __call__(self, flow: Flow, *, confirmed: bool) -> Connection: ...


class _Line:
    """One connection, with one channel at a time."""

    def __init__(self, connect: Connect, *, confirmed: bool) -> None:
        self.flow = Flow()
        self._connection = connect(self.flow, confirmed=confirmed)
        self._open()

    def _open(self) -> None:
        self._channel = self._connection.channel()
        self._producer = Producer(self._channel, auto_declare=False)

    def look(self) -> None:
        """Note the end of an alarm."""
        waiting.drain(self._connection, None, 0)
        if not self.flow.blocked:
            self._channel.close()  # a confirmation that nobody awaits any more may be on its way
            self._open()

    def publish(self, identity: str, body: str | bytes, valid: float) -> None:
        """Raises Blocked or MessageNacked. valid: seconds in which the message is of use."""
        text = isinstance(body, str)
        self._producer.publish(
            body,
            routing_key=broker.orders(identity),
            exchange="",
            content_type="application/json" if text else "application/octet-stream",
            content_encoding="utf-8" if text else "binary",
            expiration=valid,
            timeout=TIMEOUT,
        )

    def close(self) -> None:
        self.flow.close(self._connection)


class Orders:
    """For one thread. Each call raises OSError or an error of kombu if a connection is lost."""

    def __init__(self, connect: Connect) -> None:
        self._certain = _Line(connect, confirmed=True)
        try:
            self._brief = _Line(connect, confirmed=False)
        except BaseException:
            self._certain.close()
            raise

    @property
    def blocked(self) -> bool:
        """Whether the broker takes no orders, as it was at the last call."""
        return self._certain.flow.blocked or self._brief.flow.blocked

    def look(self) -> None:
        """Note the end of an alarm of the broker."""
        for one in (self._certain, self._brief):
            if one.flow.blocked:
                one.look()

    def publish(self, identity: str, body: str | bytes, *, brief: bool = False) -> bool:
        """See dials.Publish. The broker is not waited for where a message is of no use later: an answer to a beat."""
        if self.blocked:
            return False
        try:
            if brief:
                self._brief.publish(identity, body, _BRIEF_VALID)
            else:
                self._certain.publish(identity, body, _VALID)
        except Blocked as error:
            log.info("orders to nodes wait: %s", error)
            return False
        except MessageNacked:
            log.warning("the orders of %s are full", identity)
            return False
        return True

    def close(self) -> None:
        for one in (self._certain, self._brief):
            one.flow.blocked = self.blocked  # an alarm is for both
            one.close()
