"""What the hub does with reports, and which orders follow; independent of how messages travel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from slicemgr.hub import liveness, reports
from slicemgr.hub.allowance import Allowance
from slicemgr.hub.dials import Dials, Publish
from slicemgr.hub.image_peers import ImagePeers
from slicemgr.hub.inventories import Inventories
from slicemgr.hub.mirrors import Mirrors
from slicemgr.hub.reports import Report
from slicemgr.policy import messages, mirror
from slicemgr.policy.messages import BadMessage, Beat, Updates
from slicemgr.store import Store
from slicemgr.store.updates import utcnow


def parse(identity: str, body: bytes | str) -> Report:
    """The report in a message. BadMessage for anything else."""
    if len(body) > messages.LARGEST_UPDATES:
        raise BadMessage(f"{len(body)} bytes are too many")
    match messages.kind(body):
        case messages.UPDATES:
            return Report(identity, messages.parse_updates(body))
        case messages.INVENTORY:
            return Report(identity, messages.parse_inventory(body))
    return Report(identity, messages.parse_beat(body))


class Exchange:
    """For one thread. clock: seconds."""

    def __init__(self, store: Store, publish: Publish, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._publish = store, publish
        self._mirrors = Mirrors(store, publish, clock)
        self._dials = Dials(store, publish, clock)
        self._inventories = Inventories(store, publish, clock)
        self._image_peers = ImagePeers(store, partial(publish, brief=True), clock)
        self._nodes = liveness.Nodes(store, clock)
        self._allowance = Allowance()

    def apply(self, arrived: Sequence[Report]) -> None:
        """Apply reports in their order, then answer them. Raises StoreError; then none is answered."""
        if not arrived:
            return
        answers = reports.apply(self._store, arrived, self._allowance)
        newest: dict[str, Beat] = {}
        for report in arrived:
            match report.message:
                case Updates(updates=found) if mirror.changes_rows(kind for _, kind, _ in found):
                    self._mirrors.changed(report.identity)
                case Beat():
                    newest[report.identity] = report.message
        for identity, applied in answers.items():
            self._publish(identity, messages.applied(applied))
        for identity, beat in newest.items():
            answer = messages.acknowledgement(beat.incarnation, beat.sequence, utcnow().timestamp())
            self._publish(identity, answer, brief=True)
            self._mirrors.heard(identity, beat)
            self._nodes.reported(identity)
            self._inventories.heard(identity)

    def step(self, *, woken: bool = False, receives: bool = True) -> None:
        """Send the orders and the changes of rows that are due, and note which nodes are silent.

        woken: rows may have changed. receives: the broker takes messages, of nodes and of the hub.
        """
        if receives:
            self._mirrors.step(woken=woken)  # first: the most frequent cause of a wake-up
            self._dials.step(woken=woken)
            self._image_peers.step(woken=woken)
            self._inventories.step()
        self._nodes.step(receives=receives)

    def awaits(self, identity: str) -> bool:
        """Whether the next beat of a node is an answer that others of its messages wait for."""
        return self._mirrors.awaits(identity)

    def forget(self, identity: str) -> None:
        """The node was removed."""
        self._mirrors.forget(identity)
        self._inventories.forget(identity)
        self._nodes.forget(identity)
