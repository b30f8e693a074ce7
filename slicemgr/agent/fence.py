"""Stop the slivers that the centre has taken from this node, such as those that were rebuilt elsewhere.

What a node has is what the rows of its mirror name. A sliver that exists here without a row has been given to another
node, or deleted, while this node was away: a second copy must not run. Its disk is kept for a day.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import sqlalchemy as sa

from slicemgr import names
from slicemgr.agent import observe, records
from slicemgr.agent.kept_disks import KeptDisks
from slicemgr.agent.node import Node
from slicemgr.errors import SlicemgrError
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import KEEP_DISK

log = logging.getLogger(__name__)

_AGAIN = 30.0  # seconds after a failure


class Fence:
    """For the thread of the scheduler."""

    def __init__(self, node: Node, disks: KeptDisks) -> None:
        self._node, self._disks = node, disks
        self._revision = ""  # of the rows with which the host was compared
        self._next = 0.0

    def step(self, forget: Callable[[str], None], busy: Callable[[str], bool]) -> None:
        """Compare the pool with the rows if these have changed. Call it before new operations. Raises StoreError.

        forget: begin no new work on a sliver. busy: whether work on it is in progress; then it is stopped later.
        """
        if time.monotonic() < self._next or self._node.raw_slivers.is_set():
            return
        with self._node.store.read() as c:
            revision = c.scalar(sa.select(t.mirror.c.revision)) or ""
        if revision in ("", self._revision):  # "": the centre has not sent the rows yet
            return
        there = observe.in_pool(self._node.config)  # before the rows: a new sliver has its row before its directory
        with self._node.store.read() as c:
            rows = set(c.scalars(sa.select(t.slivers.c.id)))
            same = c.scalar(sa.select(t.mirror.c.revision)) == revision
        ended = [self._stop(sliver, forget, busy) for sliver in sorted(there - rows)]
        if all(ended) and same:
            self._revision = revision

    def _stop(self, sliver: str, forget: Callable[[str], None], busy: Callable[[str], bool]) -> bool:
        """Whether it was stopped."""
        forget(sliver)
        if busy(sliver):
            return False
        pool = self._node.config.node.pool
        recorded = records.read(pool, sliver)
        try:
            kept = self._disks.keep(sliver, None if recorded is None else names.qgroup(recorded.serial))
        except SlicemgrError as error:
            log.error("cannot stop %s, which this node no longer has: %s", sliver, error)
            self._next = time.monotonic() + _AGAIN
            return False
        if kept is not None:
            detail = f"{sliver} is no longer on this node; its disk is kept in {kept.path} until {kept.until}"
            self._node.journal.add(pending.EventSeen("agent", KEEP_DISK, "", detail, ""))
        return True
