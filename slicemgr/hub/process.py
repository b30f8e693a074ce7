"""`slicemgr hub`: gives nodes rights at the broker, applies their reports, and acknowledges them after the commit."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

from amqp import Channel
from amqp.exceptions import AMQPError, MessageNacked
from kombu import Connection, Consumer, Message, Queue
from kombu.exceptions import KombuError

from slicemgr.config import Config
from slicemgr.errors import Failed
from slicemgr.hub import broker_files, management
from slicemgr.hub.alarms import Alarms
from slicemgr.hub.chores import asking
from slicemgr.hub.exchange import Exchange, parse
from slicemgr.hub.leader import Leader
from slicemgr.hub.management import Management
from slicemgr.hub.members import Members
from slicemgr.hub.orders import TIMEOUT, Orders
from slicemgr.hub.reports import Report
from slicemgr.hub.turns import Turns
from slicemgr.ipc import waiting
from slicemgr.ipc.flow import Flow
from slicemgr.ipc.wake import Listener
from slicemgr.policy import broker, messages
from slicemgr.policy.messages import LARGEST_UPDATES, BadMessage
from slicemgr.service.nodes import broker_alarms
from slicemgr.store import Store, StoreError

log = logging.getLogger(__name__)

_BATCH = 0.1  # seconds in which reports of all nodes are collected for one transaction
_PAUSE_BETWEEN = 0.001  # seconds without a report after which those that arrived are applied
_MOST = 500  # reports in one transaction
_UNACKNOWLEDGED = 50  # reports of one node that are under way
_NEW = 50  # nodes whose queues are read for the first time, until the reports of others are applied
_CHECK = 5.0  # seconds between two checks that this process is the leader
_PAUSE = 2.0  # seconds after a failure


def run(
    config: Config,
    store: Store,
    stop: threading.Event,
    chores: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Be the hub until stopped, and again after each failure of broker or database. A second process waits.

    chores: entered while this process is the leader.
    """
    secret = management.password(config.hub_dir / broker_files.PASSWORD)
    host, _, port = config.hub.management.rpartition(":")
    api = Management(host.strip("[]"), int(port), secret)
    while not stop.is_set():
        try:
            with ExitStack() as stack:
                leader = Leader(store)
                stack.callback(leader.close)
                if not leader.wait(stop):
                    return
                connection = stack.enter_context(connect(config))
                orders = Orders(partial(connect, config))
                stack.callback(orders.close)
                listener = stack.enter_context(_listener(config))
                stack.enter_context(chores())
                log.info("the hub is connected to the broker at %s", config.hub.broker)
                members = Members(store, api)
                alarms = Alarms(api, config.broker_file, partial(broker_alarms.report, store, config))
                stack.enter_context(asking(members, alarms))
                Hub(store, members, connection, orders, leader.check, listener, alarms).run(stop)
        except (Failed, StoreError, MessageNacked, KombuError, OSError, AMQPError) as error:
            log.warning("the hub starts again: %s", error or type(error).__name__)
            stop.wait(_PAUSE)


def connect(config: Config, flow: Flow | None = None, *, confirmed: bool = False) -> Connection:
    """An open connection with the certificate of the hub. Raises OSError or an error of kombu.

    flow: of a connection that publishes. confirmed: to publish a message takes until the broker has it.
    """
    host, _, _ = config.hub.broker.rpartition(":")
    files = {
        "ca_certs": broker_files.AUTHORITY,
        "certfile": broker_files.CERTIFICATE,
        "keyfile": broker_files.KEY,
    }
    tls = {option: str(config.hub_dir / file) for option, file in files.items()}
    connection = Connection(
        f"amqps://{config.hub.broker}/{broker.VHOST}",
        ssl={**tls, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": host.strip("[]")},
        login_method="EXTERNAL",
        connect_timeout=TIMEOUT,
        transport_options={
            "confirm_publish": confirmed,
            "read_timeout": TIMEOUT,
            "write_timeout": TIMEOUT,
            "frame_handler": waiting.bare_frames,
            **(flow.options() if flow else {}),
        },
    )
    connection.connect()
    return connection


@contextmanager
def _listener(config: Config) -> Iterator[Listener | None]:
    """The socket that is woken when rows have changed; without it, the hub looks every second."""
    with ExitStack() as stack:
        listener = None
        try:
            listener = stack.enter_context(Listener(config.hub_socket, config.web.user))
        except OSError as error:
            log.warning("the hub cannot be woken: %s: %s", config.hub_socket, error.strerror)
        yield listener


class Hub:
    """connection: for reports; nothing is published there. check: raises an error once this process may not work any
    more. listener: wakes it; None: nothing does. alarms: of the broker."""

    def __init__(
        self,
        store: Store,
        members: Members,
        connection: Connection,
        orders: Orders,
        check: Callable[[], None],
        listener: Listener | None = None,
        alarms: Alarms | None = None,
    ) -> None:
        self._store, self._members, self._check, self._alarms = store, members, check, alarms
        self._connection, self._orders, self._listener = connection, orders, listener
        self._turns: Turns[Message] = Turns()
        self._came = 0  # messages since the last transaction
        self._urgent = False  # whether one of them is not a beat, or an answer
        self._awaits: Callable[[str], bool] = lambda identity: False  # whether a node is to answer
        self._consumers: dict[str, Consumer] = {}
        self._admitted: frozenset[str] = frozenset()
        self._new: list[str] = []
        self._checked_at = 0.0

    def run(self, stop: threading.Event) -> None:
        """Until stopped. Raises Failed, OSError or an error of kombu if broker or database are lost."""
        with ExitStack() as stack:
            exchange = Exchange(self._store, self._orders.publish)
            self._awaits = exchange.awaits
            reading = self._connection.channel()
            stack.callback(reading.close)
            waiting.ignore_encodings(reading)
            reading.basic_qos(0, _UNACKNOWLEDGED, False)  # of each consumer, as RabbitMQ reads it
            while not stop.is_set():
                if time.monotonic() - self._checked_at > _CHECK:
                    self._check()
                    self._checked_at = time.monotonic()
                self._follow(exchange, reading)
                woken = self._collect()
                arrived = list(self._due())
                exchange.apply([report for _, report in arrived])
                for message, _ in arrived:
                    message.ack()
                self._orders.look()
                exchange.step(woken=woken, receives=not self._stopped())

    def _stopped(self) -> bool:
        """Whether the broker takes no messages."""
        return self._orders.blocked or (self._alarms is not None and bool(self._alarms.raised))

    def _follow(self, exchange: Exchange, channel: Channel) -> None:
        """Read the reports of the nodes that have been admitted, and of no others."""
        admitted = self._members.admitted
        if admitted is not self._admitted:
            self._admitted = admitted
            for identity in sorted(self._consumers.keys() - admitted):
                self._forget(identity)
                exchange.forget(identity)
            self._new = sorted(admitted - self._consumers.keys())
            self._members.listening = set(self._consumers)
        some, self._new = self._new[:_NEW], self._new[_NEW:]
        for identity in some:
            self._listen(channel, identity)
        if some:
            self._members.listening = set(self._consumers)

    def _listen(self, channel: Channel, identity: str) -> None:
        """One channel is for all nodes, because the broker limits the number of channels of a connection."""
        queue = Queue(broker.reports(identity), channel=channel, no_declare=True)
        consumer = Consumer(channel, [queue], on_message=lambda message: self._receive(identity, message), no_ack=False)
        consumer.consume()
        self._consumers[identity] = consumer

    def _forget(self, identity: str) -> None:
        consumer = self._consumers.pop(identity, None)
        if consumer is not None:
            consumer.cancel()
        for message in self._turns.forget(identity):
            message.ack()  # the broker closes the channel of one that waits too long

    def _receive(self, identity: str, message: Message) -> None:
        self._came += 1
        self._urgent = self._urgent or self._awaits(identity) or not messages.seems_a_beat(message.body)
        self._turns.add(identity, min(len(message.body), LARGEST_UPDATES), message)

    def _due(self) -> Iterator[tuple[Message, Report]]:
        for identity, message in self._turns.due(_MOST):
            try:
                yield message, parse(identity, message.body)
            except BadMessage as error:
                log.warning("a report of %s is dropped: %s", identity, error)
                message.ack()

    def _collect(self) -> bool:
        """Collect reports as long as they come, for a moment at most, or until woken; whether it was.

        Beats wait for others for all of that moment: a transaction for each would be most of the work of an idle hub.
        """
        self._came, self._urgent, end = 0, False, time.monotonic() + _BATCH
        while self._came < _MOST and (left := end - time.monotonic()) > 0:
            pause = min(left, _PAUSE_BETWEEN) if self._urgent else left
            before = self._came
            if waiting.drain(self._connection, self._listener, pause):
                return True
            if self._urgent and self._came == before:
                return False
        return False
