"""A centre and one node that has joined it, with messages in lists instead of a broker."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from bare_service import FACTS, Service, config_in, fresh_database

import slicemgr.store
from slicemgr.config import StoreConfig
from slicemgr.hub import documents
from slicemgr.hub import exchange as hub
from slicemgr.link import exchange as link
from slicemgr.model import Dial
from slicemgr.policy import mirror
from slicemgr.policy.messages import BadMessage
from slicemgr.store import Store, observations, outbox, pending
from slicemgr.store import tables as t
from slicemgr.store.updates import Update, utcnow

IDENTITY, NODE = "node-seven", "node7"
LOCAL = "elsewhere"  # the name that the node has in its own settings


def member(store: Store, name: str = NODE, identity: str = IDENTITY) -> str:
    """Insert a node with a certificate, whose agent has reported. Returns its identity."""
    with store.write() as c:
        row = {"name": name, "identity": identity, "state": "active", "address": "192.0.2.7", "facts": FACTS}
        c.execute(t.nodes.insert().values(row))
        issued = {"serial": name, "identity": identity, "certificate": "", "issued_at": utcnow()}
        c.execute(t.certificates.insert().values(**issued, expires_at=utcnow().replace(year=2999)))
    return identity


def move(store: Store, slice: str, node: str = NODE) -> None:
    """Give a slice and its operations to a node."""
    with store.write() as c:
        of_slice = sa.select(t.slices.c.id).where(t.slices.c.name == slice).scalar_subquery()
        c.execute(t.slivers.update().where(t.slivers.c.slice == of_slice).values(node=node))
        o, its = t.operations, sa.select(t.operations.c.id).where(t.operations.c.slice_name == slice)
        c.execute(o.update().where(o.c.slice_name == slice).values(node=node))
        for table in (t.operation_parts, t.operation_slivers):
            c.execute(table.update().where(table.c.operation.in_(its)).values(node=node))


class World:
    """A context manager. to_node, to_hub: messages under way, oldest first. now: seconds of both clocks. events: the
    details of those that the node has recorded."""

    def __init__(self, folder: Path, service: Service | None = None) -> None:
        """service: the centre; None: one of its own."""
        self.now = 0.0
        self.dials: list[Dial] = []  # that the node was ordered to open
        self.to_node: list[bytes] = []
        self.to_hub: list[str | bytes] = []
        self.events: list[str] = []
        self._folder, self._stack = folder, ExitStack()
        self.service = service or self._stack.enter_context(Service(folder / "centre"))
        self.centre = self.service.store
        member(self.centre)
        self.start_hub()
        self.config = config_in(folder / "node")
        url = f"sqlite:///{fresh_database(dataclasses.replace(self.config, store=StoreConfig()))}"
        self.config = dataclasses.replace(
            self.config, store=StoreConfig(url=url), node=dataclasses.replace(self.config.node, name=LOCAL)
        )
        self.start_node()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.node.close()
        self._stack.close()

    def dial(self, dial: Dial) -> None:
        """Called with each order to open a connection."""
        self.dials.append(dial)

    def start_hub(self) -> None:
        """Another process that is the hub."""
        self.hub = hub.Exchange(self.centre, self._publish, lambda: self.now)

    def start_node(self) -> None:
        """Another link, on the same database."""
        self.node = slicemgr.store.open(self.config)
        self.link = link.Exchange(self.config, self.node, lambda: self.now, lambda dial: self.dial(dial))
        self.link.connected()

    def _publish(self, identity: str, body: str | bytes, *, brief: bool = False) -> bool:
        if identity != IDENTITY:
            return True  # no test has a second node
        self.to_node.append(body.encode() if isinstance(body, str) else body)
        return True

    def work(self) -> None:
        """Let both sides do what is due now."""
        self.to_hub += list(self.link.due())
        self.hub.step(woken=True)

    def deliver_to_node(self, index: int = 0) -> None:
        self.link.receive(self.to_node.pop(index))

    def deliver_to_hub(self, index: int = 0) -> None:
        try:
            report = hub.parse(IDENTITY, self.to_hub.pop(index))
        except BadMessage as error:
            raise AssertionError("the node sends what the hub refuses") from error
        self.hub.apply([report])

    def settle(self, seconds: float = 60.0) -> None:
        """Deliver everything in order while time passes."""
        end = self.now + seconds
        while self.now < end:
            self.work()
            while self.to_hub or self.to_node:
                for _ in range(len(self.to_hub)):
                    self.deliver_to_hub()
                for _ in range(len(self.to_node)):
                    self.deliver_to_node()
                self.work()
            self.now += 5.0

    def record(self, *updates: Update) -> None:
        """What the journal of the node's agent does."""
        with self.node.write() as c:
            outbox.add(c, updates)
            observations.record(c, updates, LOCAL)
        self.link.look()

    def wanted(self) -> dict[str, Any]:
        """The rows of the node at the centre, by table; without the columns that the node writes."""
        with self.centre.read() as c:
            return _plain(documents.document(c, NODE))

    def mirrored(self) -> dict[str, Any]:
        """The same in the database of the node."""
        with self.node.read() as c:
            found = documents.document(c, LOCAL)
        return _plain(found)

    def slivers(self, store: Store) -> dict[str, str]:
        """The phase of each sliver of the node."""
        with store.read() as c:
            rows = pending.slivers(c, NODE if store is self.centre else LOCAL)
        return {row.sliver.id: row.phase.value for row in rows}

    def scalar(self, store: Store, query: sa.Select[Any]) -> Any:
        with store.read() as c:
            return c.scalar(query)


def _plain(document: mirror.Document) -> dict[str, Any]:
    return {
        one.table: sorted([row[name] for name in (*one.key, *one.centre)] for row in document[one.table])
        for one in mirror.TABLES
    }
