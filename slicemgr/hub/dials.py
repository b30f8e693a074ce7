"""Send nodes the orders to open connections to the service: each once, since no request waits for a second one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from slicemgr.policy import messages
from slicemgr.store import Store, dials
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_LOOK = 1.0  # seconds between two looks without a wake-up


class Publish(Protocol):
    """Sends an order to a node; False: its queue is full, or the broker takes none. brief: it is of no use later."""

    def __call__(self, identity: str, body: str | bytes, *, brief: bool = False) -> bool: ...


class Dials:
    """publish: sends a message to a node. clock: seconds."""

    def __init__(self, store: Store, publish: Publish, clock: Callable[[], float]) -> None:
        self._store, self._publish, self._clock = store, publish, clock
        self._looked_at = -_LOOK

    def step(self, *, woken: bool = False) -> None:
        """Send what is due. woken: there may be orders."""
        now = self._clock()
        if not woken and now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        for identity, dial in dials.take(self._store, utcnow()):
            if not self._publish(identity, messages.dial(dial), brief=True):
                log.warning("%s gets no order to open a connection", identity)
