"""`slicemgr link`: the node's connection to the centre.

It reports every 10 seconds that the node lives, writes the rows that the centre sends into the database of the node,
and sends the updates of the agent. The broker confirms each report, and the hub acknowledges it after its commit: only
then has it arrived. Without an acknowledgement for 30 seconds the connection counts as dead, whatever the state of its
socket.
"""

from __future__ import annotations

import errno
import logging
import random
import socket
import threading
import time

from amqp import Channel
from amqp.exceptions import AMQPError, MessageNacked
from kombu import Connection, Consumer, Message, Producer, Queue
from kombu.exceptions import KombuError

from slicemgr.config import Config
from slicemgr.errors import Failed
from slicemgr.ipc import waiting
from slicemgr.ipc.flow import Blocked, Flow
from slicemgr.ipc.wake import Listener
from slicemgr.link.centre import clock_hint
from slicemgr.link.dials import Dials
from slicemgr.link.exchange import Exchange
from slicemgr.link.membership import Membership
from slicemgr.policy import broker
from slicemgr.store import Store, StoreError

log = logging.getLogger(__name__)

_DEAD = 30.0  # seconds without an acknowledgement
_TIMEOUT = 15.0  # seconds for a connection, and for the confirmation of a message
_SHORTEST, _LONGEST = 1.0, 30.0  # seconds between two attempts to connect
_LONGEST_ABSENT = 5.0  # seconds, while no broker listens: such an attempt is no load for it
_ABSENT = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
_WAIT = 0.5  # seconds for an order or a wake-up
_LONGEST_ALARM = 600.0  # seconds on one connection, which may be lost without a sign


class Link:
    """store: the database of the node."""

    def __init__(self, config: Config, membership: Membership, store: Store, stop: threading.Event) -> None:
        self._config, self._membership, self._stop = config, membership, stop
        self._exchange = Exchange(config, store, dial=Dials(config).open)

    def run(self) -> None:
        """Stay connected until stopped."""
        wait, longest = _SHORTEST, _LONGEST
        with Listener(self._config.link_socket) as listener:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    self._connected(listener)
                except (KombuError, AMQPError, OSError, Failed, StoreError, MessageNacked) as error:
                    why = str(error) or type(error).__name__
                    why = "; ".join(one for one in (why, clock_hint(error)) if one)
                    log.warning("no connection to the centre at %s: %s", self._membership.broker, why)
                    longest = longest_pause(error)
                wait = _SHORTEST if time.monotonic() - began > _DEAD else min(2 * wait, longest)
                self._stop.wait(wait * random.uniform(0.5, 1.0))  # so that not all nodes come back at once

    def _connected(self, listener: Listener) -> None:
        """Until stopped. Raises Failed, OSError or an error of kombu if the connection is lost."""
        flow = Flow()
        connection = connect(self._membership, flow)
        try:
            log.info("connected to the centre at %s as %s", self._membership.broker, self._membership.identity)
            while not self._stop.is_set():
                channel = connection.channel()
                try:
                    self._exchange_on(connection, channel, listener)
                except Blocked as error:
                    log.warning("reports wait: %s", error)
                    self._wait_for_room(connection, flow)
                if not flow.blocked:
                    channel.close()  # with the confirmation of what was under way
        finally:
            flow.close(connection)

    def _exchange_on(self, connection: Connection, channel: Channel, listener: Listener) -> None:
        """Until stopped. Raises Blocked too."""
        waiting.ignore_encodings(channel)
        orders = Queue(broker.orders(self._membership.identity), channel=channel, no_declare=True)
        Consumer(channel, [orders], on_message=self._order, no_ack=False).consume()
        producer = Producer(channel, auto_declare=False)
        began = time.monotonic()
        self._exchange.connected()
        while not self._stop.is_set():
            for report in self._exchange.due():
                self._send(producer, report)
            if waiting.drain(connection, listener, _WAIT):
                self._exchange.look()
            if time.monotonic() - max(began, self._exchange.acknowledged) > _DEAD:
                raise Failed(f"the hub has acknowledged nothing for {_DEAD:g} s")

    def _wait_for_room(self, connection: Connection, flow: Flow) -> None:
        """Keep the connection: one that the broker does not read stays open there, and a new one takes more memory."""
        end = time.monotonic() + _LONGEST_ALARM
        while flow.blocked and not self._stop.is_set():
            if time.monotonic() > end:
                raise Failed(f"the broker has taken no messages for {_LONGEST_ALARM:g} s")
            waiting.drain(connection, None, _WAIT)

    def _send(self, producer: Producer, body: str) -> None:
        producer.publish(
            body,
            exchange=broker.reports(self._membership.identity),
            routing_key="",
            content_type="application/json",
            content_encoding="utf-8",
            timeout=_TIMEOUT,
        )

    def _order(self, message: Message) -> None:
        self._exchange.receive(message.body)
        message.ack()


def longest_pause(error: Exception) -> float:
    """Seconds, at most, until the next attempt to connect after this failure. Pure."""
    absent = isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno in _ABSENT)
    return _LONGEST_ABSENT if absent else _LONGEST


def connect(membership: Membership, flow: Flow) -> Connection:
    """An open connection whose publishers wait for the broker's confirmation. Raises OSError or an error of kombu."""
    connection = Connection(
        f"amqps://{membership.broker}/{broker.VHOST}",
        ssl=membership.tls,
        login_method="EXTERNAL",
        connect_timeout=_TIMEOUT,
        transport_options={
            "confirm_publish": True,
            "read_timeout": _TIMEOUT,
            "write_timeout": _TIMEOUT,
            **flow.options(),
        },
    )
    connection.connect()
    return connection
