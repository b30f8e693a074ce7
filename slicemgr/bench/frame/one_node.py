"""What experiments on one node have in common: their client, and the deletion of their slices."""

from __future__ import annotations

import threading
from typing import Any

from slicemgr.bench.frame import cleanup, guard, slivers
from slicemgr.bench.frame.experiment import Progress
from slicemgr.client import Client


class OneNode:
    """The parts of `experiment.Experiment` that are the same. prefix: of the names of its slices."""

    def __init__(self, client: Client, node: str, prefix: str) -> None:
        self._client, self._node, self._prefix = client, node, prefix
        self._stop = threading.Event()

    def state(self) -> guard.State:
        return guard.state(self._facts())

    def interrupt(self) -> None:
        self._stop.set()

    def clean(self, progress: Progress) -> None:
        cleanup.delete(self._client, self._prefix, progress)

    def close(self) -> None:
        self._client.close()

    def _facts(self) -> dict[str, Any]:
        return self._client.nodes.get(self._node)["facts"]


class WithLogin(OneNode):
    """Logs in to its slices. key: the line of the public key, and the content of the private key."""

    def __init__(self, client: Client, node: str, prefix: str, key: tuple[str, bytes]) -> None:
        super().__init__(client, node, prefix)
        self._key = slivers.Key(key)

    def close(self) -> None:
        self._key.close()
        super().close()
