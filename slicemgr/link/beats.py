"""`slicemgr link`: the node's connection to the centre. It reports every 10 seconds that it lives.

The broker confirms each report, and the hub acknowledges it after its commit: only then has it arrived. Without an
acknowledgement for 30 seconds the connection counts as dead, whatever the state of its socket.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from contextlib import ExitStack

import sqlalchemy as sa
from amqp.exceptions import AMQPError, MessageNacked
from kombu import Connection, Consumer, Message, Producer, Queue
from kombu.exceptions import KombuError

from slicemgr import __version__
from slicemgr.errors import Failed
from slicemgr.link.membership import Membership
from slicemgr.policy import broker, messages
from slicemgr.policy.messages import BadMessage, Beat
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds between two beats
_DEAD = 30.0  # seconds without an acknowledgement
_TIMEOUT = 15.0  # seconds for a connection, and for the confirmation of a message
_SHORTEST, _LONGEST = 1.0, 30.0  # seconds between two attempts to connect
_EVERY_FACTS = 6  # beats; the facts are in each sixth, and after each connect


class Link:
    """incarnation: chosen at the start; the hub compares sequence numbers within it."""

    def __init__(self, membership: Membership, store: Store, node: str, stop: threading.Event) -> None:
        self._membership, self._store, self._node, self._stop = membership, store, node, stop
        self._incarnation, self._sequence = secrets.token_hex(8), 0
        self._acknowledged = 0.0

    def run(self) -> None:
        """Stay connected until stopped."""
        wait = _SHORTEST
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._connected()
            except (KombuError, AMQPError, OSError, Failed, MessageNacked) as error:
                why = error or type(error).__name__
                log.warning("no connection to the centre at %s: %s", self._membership.broker, why)
            wait = _SHORTEST if time.monotonic() - began > _DEAD else min(2 * wait, _LONGEST)
            self._stop.wait(wait * random.uniform(0.5, 1.0))  # so that not all nodes come back at once

    def _connected(self) -> None:
        identity = self._membership.identity
        with ExitStack() as stack:
            connection = stack.enter_context(connect(self._membership))
            channel = connection.channel()
            orders = Queue(broker.orders(identity), channel=channel, no_declare=True)
            stack.enter_context(Consumer(channel, [orders], on_message=self._order, no_ack=False))
            producer = Producer(channel, auto_declare=False)
            log.info("connected to the centre at %s as %s", self._membership.broker, identity)
            self._acknowledged = time.monotonic()
            number = 0
            while not self._stop.is_set():
                body = messages.beat(self._beat(facts=number % _EVERY_FACTS == 0))
                producer.publish(
                    body,
                    exchange=broker.reports(identity),
                    routing_key="",
                    content_type="application/json",
                    content_encoding="utf-8",
                    timeout=_TIMEOUT,
                )
                number += 1
                self._read_until(connection, time.monotonic() + INTERVAL)
                if time.monotonic() - self._acknowledged > _DEAD:
                    raise Failed(f"the hub has acknowledged nothing for {_DEAD:g} s")

    def _read_until(self, connection: Connection, end: float) -> None:
        while not self._stop.is_set() and (left := end - time.monotonic()) > 0:
            try:
                connection.drain_events(timeout=min(left, 0.5))
            except TimeoutError:
                continue

    def _order(self, message: Message) -> None:
        """Orders that this version does not know are from a newer hub: they are dropped with a line in the log."""
        try:
            incarnation, _ = messages.parse_acknowledgement(message.body)
        except BadMessage as error:
            log.warning("an order was dropped: %s", error)
        else:
            if incarnation == self._incarnation:
                self._acknowledged = time.monotonic()
        message.ack()

    def _beat(self, *, facts: bool) -> Beat:
        self._sequence += 1
        n = t.nodes.c
        with self._store.read() as c:
            row = c.execute(sa.select(n.address, n.agent_seen_at, n.facts).where(n.name == self._node)).first()
        seen = None if row is None else row.agent_seen_at
        return Beat(
            incarnation=self._incarnation,
            sequence=self._sequence,
            version=__version__,
            address="" if row is None else row.address,
            agent_age=None if seen is None else max(0.0, (utcnow() - seen).total_seconds()),
            facts=dict(row.facts) if facts and row is not None else None,
        )


def connect(membership: Membership) -> Connection:
    """An open connection whose publishers wait for the broker's confirmation. Raises OSError or an error of kombu."""
    connection = Connection(
        f"amqps://{membership.broker}/{broker.VHOST}",
        ssl=membership.tls,
        login_method="EXTERNAL",
        connect_timeout=_TIMEOUT,
        transport_options={"confirm_publish": True, "read_timeout": _TIMEOUT, "write_timeout": _TIMEOUT},
    )
    connection.connect()
    return connection
