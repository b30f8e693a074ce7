"""Send the updates in the outbox to the hub: one report at a time, again until the hub has applied it.

What only began waits for what follows: most operations end within that time, and cost the hub one report.
"""

from __future__ import annotations

import logging

from slicemgr.policy import messages
from slicemgr.policy.messages import Applied, Updates
from slicemgr.store import Store, outbox

log = logging.getLogger(__name__)

_LOOK = 0.5  # seconds between two looks at the outbox without a wake-up
_SHARING = 0.4  # seconds that a report waits if it has few updates, and only those that may
_FEW = 50
_MAY_WAIT = frozenset(("operation-started", "step", "sliver", "used", "sliver-sample", "node-sample"))
_AGAIN = 15.0  # seconds after which a report without an answer is sent again


class Reports:
    """Which report is due. Times are seconds of a monotonic clock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due = 0.0
        self._sent = 0  # the last number in the report under way
        self._since: float | None = None  # when what waits was first found

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
            self._due, self._sent, self._since = now + _LOOK, 0, None
            return None
        if not self._sent and len(found) <= _FEW and _MAY_WAIT.issuperset(kind for _, kind, _ in found):
            self._since = now if self._since is None else self._since
            if now < self._since + _SHARING:
                self._due = self._since + _SHARING
                return None
        self._since = None
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
