"""Keep the users of the broker equal to the nodes that may connect, in a thread of its own.

The broker may take long to answer, and the reports of nodes that are connected are applied meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from slicemgr.hub import reports
from slicemgr.hub.management import Management
from slicemgr.policy import broker
from slicemgr.store import Store

log = logging.getLogger(__name__)

_LIST = 60.0  # seconds between two lists of the users of the broker
_AT_ONCE = 50  # nodes in one request


class Members:
    """admitted: the identities that have queues and rights at the broker and may use them; another set after each
    change. listening: those whose reports this process reads; the queues of these are not deleted.
    """

    def __init__(self, store: Store, api: Management, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._api, self._clock = store, api, clock
        self.admitted: frozenset[str] = frozenset()
        self.listening: Collection[str] = ()
        self._users: set[str] | None = None  # of the broker; None: not known
        self._checked: set[str] = set()  # those that got their rights from this process
        self._listed_at = 0.0

    def compare(self) -> None:
        """Admit the nodes that may connect, and expel others. Raises Failed or StoreError; then call it again.

        A node that was admitted before is expelled by the next call, once its queue is not read any more.
        """
        members = reports.members(self._store)
        self._list(members)
        assert self._users is not None
        before, self.admitted = self.admitted, self.admitted & members
        for identity in sorted(self._users - members - before - set(self.listening)):
            self._api.apply(broker.expel(identity))
            self._users.discard(identity)
            self._checked.discard(identity)
            log.info("%s has no access to the broker any more", identity)
        new = sorted(members - self._checked, key=lambda one: (one in self.admitted, one))
        for first in range(0, len(new), _AT_ONCE):
            some = new[first : first + _AT_ONCE]
            self._api.apply(broker.admit(*some))
            self._users.update(some)
            self._checked.update(some)
            self.admitted = self.admitted | set(some)

    def _list(self, members: Collection[str]) -> None:
        """Read the users of the broker now and then. Nodes that have everything already need not wait for more."""
        now = self._clock()
        if self._users is not None and now - self._listed_at < _LIST:
            return
        known = {one for one in self._api.users() if one.startswith("node-")}
        self._checked &= known  # the broker may have lost its files
        if self._users is None:
            queues = self._api.queues()
            ready = {one for one in known if {broker.orders(one), broker.reports(one)} <= queues}
            self.admitted = frozenset(ready.intersection(members))
        self._users, self._listed_at = known, now
