"""The link of an earlier version, run by `test_older_nodes` with that version's package: orders in, reports out.

Each line of the input is a list: what to do, and its arguments. Each line of the output is the answer, as JSON.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from slicemgr import config as settings
from slicemgr import store
from slicemgr.link import exchange
from slicemgr.model import OperationState, Phase
from slicemgr.store import observations, outbox, pending, schema


class Link:
    """Of a node whose settings are the default ones of this process."""

    def __init__(self) -> None:
        self._config, self._now = settings.load(), 0.0
        schema.upgrade(self._config.store_url)
        self._store = store.open(self._config)
        self._link = exchange.Exchange(self._config, self._store, lambda: self._now)
        self._link.connected()

    def due(self, now: float) -> list[str]:
        self._now = now
        return list(self._link.due())

    def receive(self, body: str) -> None:
        self._link.receive(base64.b64decode(body))

    def finish(self, operation: str, slivers: list[str], host_key: str) -> None:
        """What the agent reports when the slivers of an operation run."""
        done = OperationState.DONE
        updates: list[Any] = [pending.OperationStarted(operation)]
        updates += [pending.SliverSeen(one, Phase.RUNNING, "", host_key) for one in slivers]
        updates += [pending.SliverDone(operation, one, done) for one in slivers]
        updates += [pending.OperationEnded(operation, done)]
        with self._store.write() as c:
            outbox.add(c, updates)
            observations.record(c, updates, self._config.node.name)
        self._link.look()

    def slivers(self) -> list[str]:
        with self._store.read() as c:
            return sorted(row.sliver.id for row in pending.slivers(c, self._config.node.name))


def main() -> None:
    link = Link()
    for line in sys.stdin:
        word, *arguments = json.loads(line)
        print(json.dumps(getattr(link, word)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
