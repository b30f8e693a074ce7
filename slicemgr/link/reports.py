"""Send the updates in the outbox to the hub: one report at a time, again until the hub has applied it."""

from __future__ import annotations

import logging

from slicemgr.policy import messages
from slicemgr.policy.messages import Applied, Updates
from slicemgr.store import Store, outbox

log = logging.getLogger(__name__)

_LOOK = 0.5  # seconds between two looks at the outbox without a wake-up
_AGAIN = 15.0  # seconds after which a report without an answer is sent again


class Reports:
    """Which report is due. Times are seconds of a monotonic clock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due = 0.0
        self._sent = 0  # the last number in the report under way

    def reset(self) -> None:
        """The connection is new: what was under way may be lost."""
        self._due, self._sent = 0.0, 0

    def look(self) -> None:
        """There may be new updates."""
        if not self._sent:
            self._due = 0.0

    def next(self, now: float) -> str | None:
        """The report to send now."""
        if now < self._due:
            return None
        with self._store.read() as c:
            found = outbox.batch(c)
        if not found:
            self._due, self._sent = now + _LOOK, 0
            return None
        with self._store.write() as c:
            state = outbox.state(c)
        self._due, self._sent = now + _AGAIN, found[-1][0]
        return messages.updates(Updates(state.incarnation, state.acknowledged, tuple(found)))

    def applied(self, answer: Applied) -> None:
        """The hub has answered: delete what it has, and send what follows."""
        with self._store.write() as c:
            agreed = outbox.acknowledge(c, answer.mirror, answer.sequence, again=answer.again)
        if not agreed:
            log.warning("this node reports the state of all slivers again: its database or the centre's was restored")
        if not agreed or answer.sequence >= self._sent:
            self.reset()
