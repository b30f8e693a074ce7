"""How many messages of each node are handled: a node that floods the hub waits, and the others do not.

A message that waits is not acknowledged, so the broker delivers only a few more; then the queue of the node fills, and
the broker refuses what it sends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST = 100.0  # turns that a node can save up
RATE = 10.0  # turns in a second
_BYTES = 64 << 10  # of a message for one more turn

T = TypeVar("T")


@dataclass(slots=True)
class _Node(Generic[T]):
    left: float
    at: float
    waiting: deque[tuple[float, T]] = field(default_factory=deque)


class Turns(Generic[T]):
    """clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[str, _Node[T]] = {}

    def add(self, identity: str, size: int, message: T) -> None:
        """size: of the message, in bytes."""
        node = self._nodes.setdefault(identity, _Node(MOST, self._clock()))
        node.waiting.append((1.0 + size / _BYTES, message))

    def forget(self, identity: str) -> list[T]:
        """Drop what waits of a node that was removed, and return it."""
        node = self._nodes.pop(identity, None)
        return [message for _, message in node.waiting] if node else []

    def due(self, most: int) -> Iterator[tuple[str, T]]:
        """The messages whose turn it is, in the order of each node; of all nodes in turn, `most` at most."""
        now = self._clock()
        for node in self._nodes.values():
            node.left = min(MOST, node.left + RATE * max(0.0, now - node.at))
            node.at = now
        ready = deque(identity for identity, node in self._nodes.items() if node.waiting)
        while ready and most > 0:
            identity = ready.popleft()
            node = self._nodes[identity]
            cost, message = node.waiting[0]
            if cost > node.left:
                continue
            node.left -= cost
            node.waiting.popleft()
            most -= 1
            yield identity, message
            if node.waiting:
                ready.append(identity)
