"""Keep the mirrors of nodes equal to the rows: who needs which change, and when.

At most one message about rows is under way to a node. The node answers it with a beat that names the message and the
revision it has then, whether it applied the change or dropped it, and the next change begins there. So no queue grows
while a node is away, and a lost or repeated message costs one beat.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr.hub import documents
from slicemgr.policy import broker, messages, mirror
from slicemgr.policy.messages import Beat, Rows
from slicemgr.policy.mirror import Digests
from slicemgr.store import Store, incarnation
from slicemgr.store import tables as t

log = logging.getLogger(__name__)

_LOOK = 1.0  # seconds between two looks at the nodes with operations
_WHOLE = 10.0  # seconds between two messages with all rows of a node
_EVERY = 30.0  # seconds after which the rows of a node are compared without a cause, if there are few nodes
_AWAY = 25.0  # seconds without a beat after which the rows of a node are compared
_SHARE = 0.05  # of the time, at most, is for comparisons without a cause
_AT_ONCE = 0.2  # seconds after which the rest of the comparisons wait, so that reports are answered in between
_OTHERS = 1.0  # seconds within which a node is compared for which nobody waits, if one is due
_ANSWER = 10.0  # seconds for the answer to a message; then the next beat counts as one

_NAME = sa.select(t.nodes.c.name).where(t.nodes.c.identity == sa.bindparam("identity"))
_RESYNCS = sa.select(t.links.c.identity, t.links.c.resync_at).where(t.links.c.resync_at.is_not(None))

Publish = Callable[[str, bytes], bool]  # to an identity; False: its queue is full, or the broker takes none


@dataclass(slots=True)
class _Sent:
    number: int
    revision: str
    digests: Digests
    at: float
    again: datetime | None  # the request for all rows that it answers


@dataclass(slots=True)
class _Node:
    """revision: that the node has. known: its rows, if this process knows them. sent: not answered yet. operations:
    that have not ended, at the last look. urgent: somebody waits for what is due.

    again: when it was requested that it gets all rows, if it has not got them since. tried: the last such request for
    which they were sent.
    """

    revision: str
    known: Digests | None = None
    sent: _Sent | None = None
    operations: frozenset[str] = frozenset()
    due: bool = True
    urgent: bool = False
    compared_at: float = 0.0
    whole_at: float = -_WHOLE
    again: datetime | None = None
    tried: datetime | None = None
    heard_at: float = 0.0

    def hurry(self) -> None:
        """Compare its rows before those of nodes for which nobody waits."""
        self.due = self.urgent = True

    def may_send(self, now: float) -> bool:
        """Whether its rows are due, and it may get them: all of them, or what has changed."""
        whole = self.known is None or self.again is not None
        often = whole and self.again == self.tried and now - self.whole_at < _WHOLE
        return self.due and self.sent is None and not often


class Mirrors:
    """publish: sends a message to a node. clock: seconds."""

    def __init__(self, store: Store, publish: Publish, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._publish, self._clock = store, publish, clock
        self._nodes: dict[str, _Node] = {}
        self._number = time.time_ns() // 1000  # no other process uses these numbers
        self._looked_at = -_LOOK
        self._cost = 0.0  # seconds of a comparison
        self._compared_others_at = -_OTHERS  # when a node was last compared for which nobody waits

    def forget(self, identity: str) -> None:
        self._nodes.pop(identity, None)

    def heard(self, identity: str, beat: Beat) -> None:
        """Take note of what a node has. Call it after the beat is stored."""
        if not beat.mirror:
            return
        now = self._clock()
        node = self._nodes.setdefault(identity, _Node(beat.revision))
        if now - node.heard_at > _AWAY:  # its slivers may have been given to others
            node.due = True
        node.heard_at = now
        sent, has_all = node.sent, False
        if sent is not None and beat.received != sent.number and now - sent.at < _ANSWER:
            return
        if sent is not None and beat.revision == sent.revision:
            node.known, has_all = sent.digests, True  # what changed meanwhile has made it due
            self._has_all(identity, node, sent.again)
        elif beat.revision != node.revision:
            node.known, node.due = None, True
        node.sent, node.revision = None, beat.revision
        node.due = node.due or now - node.compared_at > self._pause() or (sent is not None and not has_all)

    def _has_all(self, identity: str, node: _Node, again: datetime | None) -> None:
        """Note that a node has got all its rows, if that was requested."""
        if again is None:
            return
        l = t.links.c
        with self._store.write() as c:
            c.execute(t.links.update().where(l.identity == identity, l.resync_at <= again).values(resync_at=None))
        node.again = None

    def _pause(self) -> float:
        """Seconds between two comparisons of the rows of a node without a cause."""
        return max(_EVERY, len(self._nodes) * self._cost / _SHARE)

    def awaits(self, identity: str) -> bool:
        """Whether a node is to answer a message about rows, before which it gets no other."""
        node = self._nodes.get(identity)
        return node is not None and node.sent is not None

    def changed(self, identity: str) -> None:
        """Compare the rows of a node soon: a report has changed them."""
        if identity in self._nodes:
            self._nodes[identity].hurry()

    def step(self, *, woken: bool = False) -> None:
        """Send what is due. woken: rows may have changed."""
        now = self._clock()
        look = woken or now - self._looked_at >= _LOOK
        waiting = any(node.may_send(now) for node in self._nodes.values())
        if not look and not waiting:
            return
        with self._store.read() as c:
            if incarnation.held(c) is not None:
                return  # the rows are older than the nodes
            if look:
                self._looked_at = now
                self._look(c)
            for identity, node in self._order(now):
                began = self._clock()
                self._compared_others_at = self._compared_others_at if node.urgent else now
                self._compare(c, identity, node)
                self._cost += (self._clock() - began - self._cost) / 10
                if self._clock() - now > _AT_ONCE:
                    return

    def _order(self, now: float) -> list[tuple[str, _Node]]:
        """The nodes that may get something: those for which somebody waits first, but one other in each second."""
        due = sorted((one for one in self._nodes.items() if one[1].may_send(now)), key=lambda one: one[1].compared_at)
        urgent, others = [one for one in due if one[1].urgent], [one for one in due if not one[1].urgent]
        first = others[:1] if now - self._compared_others_at > _OTHERS else []
        return [*first, *urgent, *others[len(first) :]]

    def _look(self, c: Connection) -> None:
        """Nodes whose operations have changed get their rows: to compare all that work each second would take long."""
        busy = documents.busy(c)
        for identity, node in self._nodes.items():
            operations = frozenset(busy.get(identity, ()))
            if operations and operations != node.operations:
                node.hurry()
            node.operations = operations
        for row in c.execute(_RESYNCS):
            found = self._nodes.get(row.identity)
            if found is not None:
                found.again = row.resync_at
                found.hurry()

    def _compare(self, c: Connection, identity: str, node: _Node) -> None:
        name = c.scalar(_NAME, {"identity": identity})
        if name is None:
            return
        found = documents.document(c, name)
        digests = mirror.digests(found)
        revision, now = mirror.revision(digests), self._clock()
        node.due, node.urgent, node.compared_at = False, False, now
        if revision == node.revision and node.again is None:
            node.known = digests
            return
        known = node.known if node.again is None else None
        self._number += 1
        body = messages.rows(Rows(self._number, node.revision, revision, mirror.change(found, digests, known)))
        if len(body) > broker.LARGEST_MESSAGE:
            log.error("the rows of node %s are too many for one message: %d bytes", name, len(body))
        elif self._publish(identity, body):
            node.sent = _Sent(self._number, revision, digests, now, node.again)
            node.whole_at = now if known is None else node.whole_at
            node.tried = node.again
        else:
            node.due = True
