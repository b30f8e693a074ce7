"""What a node does with orders, and which reports are due; independent of how messages travel."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator

import sqlalchemy as sa

from slicemgr import __version__
from slicemgr.config import Config
from slicemgr.ipc import clock_offset, image_peers
from slicemgr.ipc.wake import wake
from slicemgr.link import inventory, mirror
from slicemgr.link.reports import Reports
from slicemgr.model import Dial
from slicemgr.policy import messages
from slicemgr.policy.messages import BadMessage, Beat
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds between two beats
_NEVER = -math.inf
_PROMPT = 2.0  # seconds; a later answer says little about clocks
_FACTS = 60.0  # seconds after which a beat has the facts again, also if they have not changed


class Exchange:
    """store: the database of the node. clock: seconds. dial: begins to open a connection to the service.

    Its beats have an incarnation, chosen here.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        dial: Callable[[Dial], None] = lambda dial: None,
    ) -> None:
        self._config, self._store, self._clock, self._dial = config, store, clock, dial
        self._incarnation, self._sequence = secrets.token_hex(8), 0
        self._beaten = self._facts_at = _NEVER
        self._beaten_at = self._sent_at = 0.0  # of the last beat: by `clock`, and by the clock of this host
        self._ahead = 0.0  # seconds, of the clock of this host
        self._facts: dict[str, object] = {}  # that were sent last
        self._reports = Reports(store)
        self._take_inventory = False
        self.acknowledged = _NEVER  # when the hub acknowledged a beat last

    def connected(self) -> None:
        """There is a new connection: what was under way may be lost."""
        self._beaten = self._facts_at = _NEVER
        self._reports.reset()

    def look(self) -> None:
        """The agent may have written updates."""
        self._reports.look()

    def due(self) -> Iterator[str]:
        """The reports to send now, in this order."""
        now = self._clock()
        if now - self._beaten >= INTERVAL:
            self._beaten = now
            yield messages.beat(self._beat(now))
        if self._take_inventory:
            self._take_inventory = False
            yield messages.inventory(inventory.take(self._store, self._config.node.name))
        if (report := self._reports.next(now)) is not None:
            yield report

    def receive(self, body: bytes) -> None:
        """Carry out an order. One that this version does not know is from a newer hub, and is only logged."""
        try:
            match messages.kind(body):
                case messages.ROWS:
                    self._rows(messages.parse_rows(body))
                case messages.PEERS:
                    self._peers(body)
                case messages.APPLIED:
                    self._reports.applied(messages.parse_applied(body))
                case messages.TAKE_INVENTORY:
                    self._take_inventory = True
                case messages.DIAL:
                    self._dial(messages.parse_dial(body))
                case _:
                    incarnation, sequence, now = messages.parse_acknowledgement(body)
                    if incarnation == self._incarnation:
                        self.acknowledged = self._clock()
                        if sequence == self._sequence and now is not None:
                            self._compare_clocks(now)
        except BadMessage as error:
            log.warning("an order was dropped: %s", error)

    def _rows(self, rows: messages.Rows) -> None:
        if mirror.receive(self._store, self._config.node.name, rows):
            wake(self._config.wake_socket)
        self._beaten = _NEVER  # the next beat answers it

    def _compare_clocks(self, centre: float) -> None:
        """centre: what its clock said when it answered the last beat."""
        took = self._clock() - self._beaten_at
        if not 0 <= took <= _PROMPT:
            return
        ahead = clock_offset.rounded(clock_offset.between(self._sent_at, centre, took))
        if abs(ahead - self._ahead) >= clock_offset.EXACT:
            log.warning("the clock of this host is now %s", clock_offset.words(ahead))
            self._ahead = ahead
        try:
            clock_offset.write(self._config.clock_file, ahead)
        except OSError as error:
            log.warning("%s: %s", self._config.clock_file, error)

    def _peers(self, body: bytes) -> None:
        """Leave it to the agent."""
        messages.parse_peers(body)
        try:
            image_peers.write(self._config.image_peers_file, body.decode())
        except OSError as error:
            log.warning("%s: %s", self._config.image_peers_file, error)

    def _beat(self, now: float) -> Beat:
        self._sequence += 1
        self._beaten_at, self._sent_at = now, utcnow().timestamp()
        n = t.nodes.c
        own = sa.select(n.address, n.agent_seen_at, n.facts).where(n.name == self._config.node.name)
        with self._store.read() as c:
            row = c.execute(own).first()
        seen = None if row is None else row.agent_seen_at
        facts = None
        if row is not None and row.facts and (row.facts != self._facts or now - self._facts_at >= _FACTS):
            facts = self._facts = dict(row.facts)
            self._facts_at = now
        state = mirror.state(self._store)
        return Beat(
            incarnation=self._incarnation,
            sequence=self._sequence,
            version=__version__,
            address="" if row is None else row.address,
            agent_age=None if seen is None else max(0.0, (utcnow() - seen).total_seconds()),
            facts=facts,
            mirror=state.incarnation,
            revision=state.revision,
            received=state.received,
        )
