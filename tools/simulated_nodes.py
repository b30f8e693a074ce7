"""The nodes of `tools/simulate.py`: a process with many connections to the broker.

    tools/simulated_nodes.py protocol|link FOLDER FIRST LAST

`protocol`: each node sends beats and answers messages about rows without applying them. `link`: each node runs the real
link on a real mirror, with a converger that reports every sliver as it is desired. Once a second the process writes a
line of JSON: the number of its nodes, how many are connected, and how many reports were acknowledged since the last
connection. A line `vanish N` on its input ends the connections of its first N nodes without a farewell.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import select
import shutil
import ssl
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import amqp
import sqlalchemy as sa
from amqp.exceptions import AMQPError
from broker_server import HOST, PORT
from simulated_rows import FACTS, identity, name

import slicemgr.store
from slicemgr.agent.journal import Journal
from slicemgr.config import Config, NodeConfig
from slicemgr.ipc.wake import Listener
from slicemgr.link import mirror
from slicemgr.link.beats import Link
from slicemgr.link.membership import Membership
from slicemgr.model import Desired, OperationState, Phase
from slicemgr.policy import broker, messages
from slicemgr.policy.messages import Beat
from slicemgr.store import Store, StoreError, pending
from slicemgr.store import tables as t

INTERVAL = 10.0  # seconds between two beats, as of the link
_FACTS = 3  # a beat of so many has the facts: an agent reports every 30 seconds
_TIMEOUT = 120.0  # seconds; for a machine with much load
_LOST = (OSError, AMQPError)
_SAID = 1.0  # seconds between two lines of output


class Protocol:
    """A node that speaks the protocol and has no rows."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self.number, self.identity = folder, number, identity(number)
        self._incarnation, self._sequence = secrets.token_hex(8), 0
        self._revision, self._received, self._mirror = "", 0, int(time.time() * 1000)
        self._connection: amqp.Connection | None = None
        self._channel: Any = None
        self.due = 0.0
        self.acknowledged = False
        self.gone = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def mirrored(self) -> bool:
        return self._revision != ""

    def socket(self) -> Any:
        assert self._connection is not None
        return self._connection.sock

    def connect(self) -> None:
        """Raises OSError or an error of amqp."""
        files = {"ca_certs": "authority.pem", "certfile": "certificate.pem", "keyfile": "key.pem"}
        tls = {option: str(self._folder / self.identity / file) for option, file in files.items()}
        made = amqp.Connection(
            f"{HOST}:{PORT}",
            ssl={**tls, "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": HOST},
            virtual_host=broker.VHOST,
            login_method="EXTERNAL",
            connect_timeout=_TIMEOUT,
            read_timeout=_TIMEOUT,
            write_timeout=_TIMEOUT,
        )
        made.connect()
        channel = made.channel()
        channel.auto_decode = False
        channel.basic_consume(broker.orders(self.identity), callback=self._order, no_ack=True)
        self._connection, self._channel, self.acknowledged, self.due = made, channel, False, 0.0

    def beat(self, now: float) -> None:
        self._sequence += 1
        facts = {**FACTS, "load": round(random.random(), 2)} if self._sequence % _FACTS == 1 else None
        one = Beat(
            *(self._incarnation, self._sequence, "0.1.0", "192.0.2.1", 0.0, facts),
            *(self._mirror, self._revision, self._received),
        )
        self._channel.basic_publish(amqp.Message(messages.beat(one)), broker.reports(self.identity), "")
        self.due = now + INTERVAL

    def _order(self, message: Any) -> None:
        body = message.body if isinstance(message.body, bytes) else message.body.encode()
        match messages.kind(body):
            case messages.ROWS:  # the revision is at the beginning; the rest would cost this process much time
                text = zlib.decompressobj().decompress(body, 400).decode(errors="ignore")
                found = dict(part.split(": ", 1) for part in text.split(", ") if ": " in part)
                self._revision, self._received = json.loads(found['"after"']), int(found['"number"'])
                self.due = 0.0
            case messages.ACKNOWLEDGEMENT:
                self.acknowledged = True

    def drain(self) -> None:
        """Handle what has arrived. Raises OSError or an error of amqp."""
        assert self._connection is not None
        self._connection.drain_events(timeout=5)
        while self.socket().pending():
            self._connection.drain_events(timeout=5)

    def drop(self) -> None:
        """End the connection without a farewell."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sock.close()


def protocol(folder: Path, first: int, last: int) -> None:
    nodes = [Protocol(folder, number) for number in range(first, last)]
    begin, said = time.monotonic(), 0.0

    def vanish(count: int) -> None:
        for one in nodes[:count]:
            one.gone = True

    with _commands(vanish):
        while True:
            now = time.monotonic()
            if now - said > _SAID:
                said = now
                _say(nodes)
            if waits := [one for one in nodes if not one.connected and not one.gone]:
                _connect(waits[:5], now - begin)
            _talk([one for one in nodes if one.connected])


def _connect(nodes: list[Protocol], age: float) -> None:
    for node in nodes:
        try:
            node.connect()
        except _LOST:
            time.sleep(0.2)
            return


def _talk(nodes: list[Protocol]) -> None:
    by_number = {}
    now = time.monotonic()
    waiter = select.poll()
    for node in nodes:
        try:
            if node.gone:
                node.drop()
                continue
            if node.due <= now:
                node.beat(now)
            by_number[node.socket().fileno()] = node
            waiter.register(node.socket().fileno(), select.POLLIN)
        except _LOST:
            node.drop()
    for number, _ in waiter.poll(100):
        try:
            by_number[number].drain()
        except _LOST:
            by_number[number].drop()


def _say(nodes: list[Protocol]) -> None:
    there = [one for one in nodes if one.connected]
    print(
        json.dumps(
            {
                "nodes": sum(not one.gone for one in nodes),
                "connected": len(there),
                "acknowledged": sum(one.acknowledged for one in there),
                "mirrored": sum(one.mirrored for one in there),
            }
        ),
        flush=True,
    )


@contextlib.contextmanager
def _commands(vanish: Any) -> Any:
    def read() -> None:
        for line in sys.stdin:
            vanish(int(line.split()[1]))

    threading.Thread(target=read, daemon=True).start()
    yield


# --- real links -----------------------------------------------------------------------------------------------------


class Real:
    """The real link of a node, its mirror, and a converger that needs no time."""

    def __init__(self, folder: Path, number: int, template: Path) -> None:
        self.name = name(number)
        place = folder / "n" / str(number)
        self.config = Config(node=NodeConfig(name=self.name, state_dir=place, run_dir=place / "r", pool=place / "p"))
        self.config.membership_dir.mkdir(parents=True)
        (self.config.membership_dir / "centre.json").write_text("{}")
        for file in ("authority.pem", "certificate.pem", "key.pem"):
            shutil.copy(folder / identity(number) / file, self.config.membership_dir)
        shutil.copy(template, self.config.mirror_file)
        self.config.node.run_dir.mkdir()
        self.store = slicemgr.store.open(self.config)
        membership = Membership(self.config.membership_dir, self.name, identity(number), f"{HOST}:{PORT}")
        self.stop = threading.Event()
        self.mirrored = False
        self.link = Link(self.config, membership, self.store, self.stop)

    @property
    def acknowledged(self) -> bool:
        return time.monotonic() - self.link._exchange.acknowledged < 3 * INTERVAL

    def look(self) -> bool:
        """Whether it has its rows."""
        with contextlib.suppress(StoreError):  # the machine has much to do
            self.mirrored = self.mirrored or mirror.state(self.store).revision != ""
        return self.mirrored

    def converge(self) -> None:
        announced = 0.0
        with (
            Journal(self.store, self.name, link=self.config.link_socket) as journal,
            Listener(self.config.wake_socket) as listener,
        ):
            while not self.stop.is_set():
                with contextlib.suppress(StoreError):
                    if time.monotonic() - announced > _FACTS * INTERVAL:
                        announced = time.monotonic()
                        facts = {**FACTS, "load": round(random.random(), 2)}
                        journal.add(pending.NodeSeen(self.name, "192.0.2.1", facts))
                    if found := list(_updates(self.store)):
                        journal.add(*found)
                        journal.flush()
                listener.wait(1.0)


def _updates(store: Store) -> Any:
    """What an agent would report about all operations that have not ended."""
    p, m, s = t.operation_parts.c, t.operation_slivers.c, t.slivers.c
    with store.read() as c:
        for operation in c.scalars(sa.select(p.operation).where(p.state.in_(("queued", "running")))).all():
            members = sa.select(s.id, s.desired).join(t.operation_slivers, m.sliver == s.id)
            for sliver, desired in c.execute(members.where(m.operation == operation)).all():
                if desired == Desired.ABSENT:
                    yield pending.SliverGone(sliver)
                else:
                    yield pending.SliverSeen(sliver, Phase.RUNNING if desired == Desired.RUNNING else Phase.STOPPED)
                yield pending.SliverDone(operation, sliver, OperationState.DONE)
            yield pending.OperationEnded(operation, OperationState.DONE)


def links(folder: Path, first: int, last: int) -> None:
    template = folder / "template.db"
    nodes = [Real(folder, number, template) for number in range(first, last)]
    for one in nodes:
        threading.Thread(target=one.link.run, daemon=True).start()
        threading.Thread(target=one.converge, daemon=True).start()

    def vanish(count: int) -> None:
        for one in nodes[:count]:
            one.stop.set()

    with _commands(vanish):
        while True:
            there = [one for one in nodes if not one.stop.is_set()]
            known = sum(one.acknowledged for one in there)
            said = {"nodes": len(there), "connected": known, "acknowledged": known}
            print(json.dumps({**said, "mirrored": sum(one.look() for one in there)}), flush=True)
            time.sleep(_SAID)


def make_template(folder: Path) -> None:
    """The database of a node that has no rows yet."""
    from slicemgr.store import schema

    schema.upgrade(f"sqlite:///{folder / 'template.db'}")
    with contextlib.suppress(FileNotFoundError):
        (folder / "template.db-wal").unlink()


if __name__ == "__main__":
    kind, where, first, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    (protocol if kind == "protocol" else links)(where, first, last)
