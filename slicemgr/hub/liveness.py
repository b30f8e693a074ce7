"""Note in the rows which nodes are silent or lost, and since when. Nothing is started elsewhere because of that."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.model import NodeState
from slicemgr.policy.liveness import Liveness, Reported, noted
from slicemgr.service.nodes import operations
from slicemgr.store import Store, incarnation
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_LOOK = 1.0  # seconds between two looks at the rows

_N, _L = t.nodes.c, t.links.c


class Nodes:
    """clock: seconds."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._reported = Reported()
        self._looked_at = -_LOOK

    def reported(self, identity: str) -> None:
        """Call it after a beat is stored."""
        self._reported.report(identity)

    def forget(self, identity: str) -> None:
        self._reported.forget(identity)

    def step(self, *, receives: bool = True) -> None:
        """Note what has changed. receives: nodes can report; otherwise no time counts. Raises StoreError."""
        if not receives:
            self._reported.interrupted()
            return
        now = self._clock()
        self._reported.passed(now)
        if now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        with self._store.read() as c:
            if incarnation.held(c) is not None:  # the rows are older than the nodes
                self._reported.paused()
                return
            changed = [one for one in self._read(c) if self._judge(one) is not _state(one)]
        if changed:
            with self._store.write() as c:
                for one in changed:
                    _note(c, one, self._judge(one))

    def _read(self, c: Connection) -> list[Row[*tuple[Any, ...]]]:
        columns = (_N.name, _N.identity, _N.silent_since, _N.lost, _L.beat_at)
        query = sa.select(*columns).join(t.links, _L.identity == _N.identity)
        return list(c.execute(query.where(_N.state == NodeState.ACTIVE).order_by(_N.name)).all())

    def _judge(self, row: Row[*tuple[Any, ...]]) -> Liveness:
        return self._reported.judge(row.identity, _state(row))


def _state(row: Row[*tuple[Any, ...]]) -> Liveness:
    return noted(row.silent_since, row.lost)


def _note(c: Connection, row: Row[*tuple[Any, ...]], state: Liveness) -> None:
    alive = state is Liveness.ALIVE
    values = {"silent_since": None if alive else row.silent_since or row.beat_at, "lost": state is Liveness.LOST}
    c.execute(t.nodes.update().where(_N.identity == row.identity).values(values))
    detail = f"{row.name}, {'after' if alive else 'since'} {row.silent_since or row.beat_at:%Y-%m-%dT%H:%M:%SZ}"
    operations.note(c, "agent", "node reports" if alive else f"node {state}", utcnow(), detail=detail)
    log.log(logging.INFO if alive else logging.WARNING, "node %s is %s", row.name, state)
