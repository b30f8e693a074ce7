"""A node of a testbed that does not keep to the program: it has a valid certificate, and tries everything."""

from __future__ import annotations

import contextlib
import itertools
import json
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import sqlalchemy as sa
from bare_service import Service
from broker_server import HOST, PORT, Broker
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from slicemgr.config import Config
from slicemgr.errors import Refused
from slicemgr.link import join as link
from slicemgr.policy import broker as policy
from slicemgr.policy import messages
from slicemgr.policy.broker import VHOST, Rights
from slicemgr.policy.messages import Beat, Updates
from slicemgr.store import Store, outbox
from slicemgr.store import tables as t
from slicemgr.store.updates import Update, utcnow

WAIT = 180.0  # seconds; for a machine with much load
EVERYTHING = Rights(".*", ".*", ".*")
NODE, VICTIM = "hostile", "honest"


class Hostile:
    """mine, other: the identities of this node and of an honest one. config: with the membership of this one."""

    def __init__(self, service: Service, broker: Broker, config: Config, mine: str, other: str) -> None:
        self.service, self.broker, self.config, self.mine, self.other = service, broker, config, mine, other
        self._mirrors, self._sequences = itertools.count(1 << 50), itertools.count(1)
        self._slices = itertools.count()
        self.memory: dict[str, Any] = {}  # of one attempt, between its parts

    @property
    def store(self) -> Store:
        return self.service.store

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        found = serialization.load_pem_private_key((self.config.membership_dir / link.KEY).read_bytes(), None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        return found

    # --- at the broker --------------------------------------------------------------------------

    @contextlib.contextmanager
    def connected(self, *, confirm: bool = True) -> Iterator[amqp.Connection]:
        folder = self.config.membership_dir
        tls = {"ca_certs": link.AUTHORITY, "certfile": link.CERTIFICATE, "keyfile": link.KEY}
        made = amqp.Connection(
            f"{HOST}:{PORT}",
            ssl={
                **{option: str(folder / file) for option, file in tls.items()},
                "cert_reqs": ssl.CERT_REQUIRED,
                "server_hostname": HOST,
            },
            virtual_host=VHOST, login_method="EXTERNAL", confirm_publish=confirm,
            connect_timeout=WAIT, read_timeout=WAIT, write_timeout=WAIT,
        )  # fmt: skip
        try:
            with self.broker.inside():
                made.connect()
            yield made
        finally:
            with contextlib.suppress(Exception):
                made.collect()

    @contextlib.contextmanager
    def channel(self) -> Iterator[amqp.Channel]:
        with self.connected() as connection:
            yield connection.channel()

    def publish(self, body: str | bytes, exchange: str | None = None, key: str = "", **properties: Any) -> None:
        with self.channel() as channel:
            place = policy.reports(self.mine) if exchange is None else exchange
            channel.basic_publish(amqp.Message(body, **properties), place, key, confirm_timeout=WAIT)

    def empty(self, name: str) -> None:
        self.broker.call("DELETE", f"/queues/{VHOST}/{name}/contents")

    def apply(self, calls: Any) -> None:
        for one in calls:
            status, answer = self.broker.call(one.method, one.path, one.body)
            assert status < 300 or (one.method == "DELETE" and status == 404), (one, status, answer)

    def restore(self, rights: Rights | None = None) -> None:
        """Both nodes have their empty queues and their rights again, this one others if given."""
        for identity in (self.mine, self.other):
            self.apply(policy.expel(identity))
            self.apply(policy.admit(identity))
        if rights is not None:
            assert self.broker.call("PUT", f"/permissions/{VHOST}/{self.mine}", rights.body())[0] < 300
            self.broker.call("PUT", f"/users/{self.mine}", {"password_hash": "", "tags": "impersonator"})
            for name in policy.limits():
                self.broker.call("DELETE", f"/user-limits/{self.mine}/{name}")

    # --- reports --------------------------------------------------------------------------------

    def beat(self, sequence: int | None = None, **fields: Any) -> str:
        number = next(self._sequences) if sequence is None else sequence
        plain = Beat("ab" * 8, number, "1", "", 1.0, None, mirror=1 << 40)
        return json.dumps({**json.loads(messages.beat(plain)), **fields})

    def parts(self, *found: Update, first: int = 1) -> tuple[tuple[int, str, Any], ...]:
        return tuple((first + number, outbox._NAMES[type(one)], outbox._body(one)) for number, one in enumerate(found))

    def updates(self, *found: Update, mirror: int | None = None, after: int = 0, first: int = 1) -> str:
        """A report of a new incarnation of the node's database."""
        number = next(self._mirrors) if mirror is None else mirror
        return messages.updates(Updates(number, after, self.parts(*found, first=first)))

    def report(self, *bodies: str | bytes) -> None:
        """Send reports, and wait until the hub has handled them."""
        for body in bodies:
            self.publish(body)
        self.settle()

    def settle(self) -> None:
        number = next(self._sequences)
        self.publish(self.beat(number))
        l = t.links.c
        handled = sa.select(l.sequence).where(l.identity == self.mine)
        self.eventually(lambda: (self.scalar(handled) or 0) >= number, "the hub handles reports")

    # --- rows -----------------------------------------------------------------------------------

    def scalar(self, query: sa.Select[Any]) -> Any:
        with self.store.read() as c:
            return c.scalar(query)

    def slice(self, node: str) -> tuple[str, str]:
        """A new slice on a node: its sliver and its operation."""
        name = f"{node}{next(self._slices)}"
        for _ in range(9):
            with self.store.write() as c:  # no agent runs
                c.execute(t.nodes.update().values(agent_seen_at=utcnow(), silent_since=None))
            with contextlib.suppress(Refused):  # a report came in between
                operation = self.service.create(name, node=node)
                break
        s, l = t.slivers.c, t.slices.c
        found = sa.select(s.id).join(t.slices, l.id == s.slice).where(l.name == name)
        return str(self.scalar(found)), operation

    def eventually(self, check: Callable[[], object], what: str) -> None:
        end = time.monotonic() + WAIT
        while not check():
            assert time.monotonic() < end, what
            time.sleep(0.1)

    def events(self, **fields: str) -> int:
        e = t.events.c
        return int(self.scalar(sa.select(sa.func.count()).where(*(e[name] == one for name, one in fields.items()))))

    def detail(self, text: str) -> int:
        """How many events contain a text."""
        return int(self.scalar(sa.select(sa.func.count()).where(t.events.c.detail.contains(text))))
