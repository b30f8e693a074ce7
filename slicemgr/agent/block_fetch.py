"""Fetch an image in blocks: from other nodes that have them, and from the service what no other node fetches there.

Each block is compared with its hash before it is written, so a node passes on nothing that is wrong. See
policy.image_blocks for who fetches what.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from slicemgr.agent.image_exchange import Connection, ImageExchange
from slicemgr.errors import Failed, SlicemgrError
from slicemgr.policy import image_blocks
from slicemgr.policy.image_blocks import Peer

log = logging.getLogger(__name__)

_MOST_PEERS, _MOST_COMPLETE = 8, 4  # nodes that it asks at once, and how many of them have all of the image
_NAMED = 5.0  # seconds for which it waits for the names of other nodes at first
_TICK, _AGAIN = 0.25, 1.0  # seconds until it checks for other blocks, and after a failure of a node
_HELLO = 5.0  # seconds for the first answer of a node that has all blocks; until then the service is not asked
_LEAST_IDLE = 3.0  # seconds without any block, after which it fetches also what others should
_SLOW, _SLOW_BLOCKS = 30.0, 8  # so many blocks of others in so many seconds are too few

Read = Callable[[int, int], bytes]
Done = Callable[[int], None]


class BlockFetch:
    """One fetch of one image. sha256: of the file, hashes: of its blocks. file: becomes complete.

    read: bytes of the file from the service, given the first and the one after the last; raises Failed. done: called
    with the percentage.
    """

    def __init__(
        self,
        sha256: str,
        size: int,
        hashes: Sequence[str],
        file: Path,
        exchange: ImageExchange,
        read: Read,
        done: Done,
        stop: threading.Event,
    ) -> None:
        self._sha256, self._size, self._hashes, self._file = sha256, size, hashes, file
        self._exchange, self._read, self._done, self._stop = exchange, read, done, stop
        self._changed = threading.Condition()
        self._missing = set(range(len(hashes)))
        self._taken: set[int] = set()  # blocks under way
        self._has: dict[str, set[int]] = {}  # by node that answers
        self._unreached_by: dict[str, Collection[str]] = {}
        self._banned: set[str] = set()
        self._threads: dict[str, threading.Thread] = {}
        self._connections: dict[str, Connection] = {}
        self._met: dict[str, float] = {}  # when a node was asked first
        self._over = False
        self._last = time.monotonic()  # when a block arrived from another node
        self._idle_since: float | None = None
        self._arrivals: deque[float] = deque(maxlen=_SLOW_BLOCKS)  # of blocks from other nodes
        self._service_time = 0.0  # seconds for the last block
        self._own: tuple[frozenset[str], list[int]] = (frozenset(), [])

    def run(self) -> int:
        """Complete the file. Returns how many blocks came from the service. Raises Failed, OSError."""
        from_service = 0
        with ExitStack() as stack:
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, self._descriptor)
            self._resume()
            self._exchange.fetching(self._sha256, self._file, set(range(len(self._hashes))) - self._missing)
            stack.callback(self._join)
            self._exchange.wait_named(self._sha256, _NAMED)
            while self._missing and not self._stop.is_set():
                self._meet()
                block = self._next()
                if block is None:
                    with self._changed:
                        self._changed.wait(_TICK)
                    continue
                try:
                    began = time.monotonic()
                    first = block * image_blocks.SIZE
                    content = self._read(first, first + image_blocks.length(self._size, block))
                    self._service_time = time.monotonic() - began
                    if not self._keep(block, content):
                        raise Failed("the service sent another file: the sha256 of a block differs")
                    from_service += 1
                finally:
                    self._release(block)
            if self._missing:
                raise Failed("the agent is stopping")
            os.fsync(self._descriptor)
        return from_service

    def _resume(self) -> None:
        """Keep the blocks that an earlier attempt has left, if they are right."""
        os.ftruncate(self._descriptor, self._size)
        for block in sorted(self._missing):
            first, length = block * image_blocks.SIZE, image_blocks.length(self._size, block)
            try:
                there = os.lseek(self._descriptor, first, os.SEEK_DATA)
            except OSError:  # no data up to the end
                return
            if there >= first + length:
                continue
            if self._right(block, os.pread(self._descriptor, length, first)):
                self._missing.discard(block)

    def _right(self, block: int, content: bytes) -> bool:
        return hashlib.sha256(content).hexdigest() == self._hashes[block]

    def _keep(self, block: int, content: bytes) -> bool:
        """Write a block, and give it to others from now on; False if its hash is another."""
        if not self._right(block, content):
            return False
        at = block * image_blocks.SIZE
        with memoryview(content) as left:
            while left:
                written = os.pwrite(self._descriptor, left, at)
                left, at = left[written:], at + written
        with self._changed:
            if block not in self._missing:
                return True
            self._missing.discard(block)
            percent = 100 * (len(self._hashes) - len(self._missing)) // len(self._hashes)
        self._exchange.add(self._sha256, block)
        self._done(percent)
        return True

    # blocks from the service

    def _next(self) -> int | None:
        """The block to fetch from the service now; it counts as taken. None: other nodes bring what is missing."""
        peers = [one for one in self._exchange.peers(self._sha256) if one.identity not in self._banned]
        unreached = self._exchange.unreached()
        with self._changed:
            heard, now = set(self._has) | unreached, time.monotonic()
            new = {name for name, at in self._met.items() if now - at < _HELLO} - heard
            if any(one.complete and one.identity in new for one in peers):
                return None
            offered = set().union(*self._has.values())
            nodes = image_blocks.fetchers(self._exchange.identity, peers, unreached, self._unreached_by)
            free = self._missing - self._taken
            found = next((one for one in self._mine(frozenset(nodes)) if one in free and one not in offered), None)
            if found is not None:
                self._idle_since = None
            elif self._idle_since is None:
                self._idle_since = now
            elif free and self._impatient(now - self._idle_since, now):
                found = random.choice(list(free))
            if found is not None:
                self._taken.add(found)
            return found

    def _mine(self, nodes: frozenset[str]) -> list[int]:
        """The blocks of this node among `nodes`, in order."""
        if self._own[0] != nodes:
            own = self._exchange.identity
            blocks = range(len(self._hashes))
            mine = [one for one in blocks if image_blocks.owner(self._sha256, one, nodes) == own]
            self._own = (nodes, mine)
        return self._own[1]

    def _impatient(self, idle: float, now: float) -> bool:
        """Whether other nodes bring too little: nothing for a while, or very few blocks. idle: seconds."""
        if min(idle, now - self._last) > max(_LEAST_IDLE, 3 * self._service_time):
            return True
        few = len(self._arrivals) < _SLOW_BLOCKS or now - self._arrivals[0] > _SLOW
        return idle > _SLOW and few

    def _release(self, block: int) -> None:
        with self._changed:
            self._taken.discard(block)
            self._changed.notify_all()

    # blocks from other nodes

    def _meet(self) -> None:
        """Ask some of the nodes that the hub names now."""
        named = {one.identity: one for one in self._exchange.peers(self._sha256)}
        self._threads = {name: thread for name, thread in self._threads.items() if thread.is_alive()}
        new = [one for one in named.values() if one.identity not in self._threads and one.identity not in self._banned]
        random.shuffle(new)
        complete = sum(named[name].complete for name in self._threads if name in named)
        for peer in new:
            if len(self._threads) >= _MOST_PEERS:
                return
            if peer.complete and complete >= _MOST_COMPLETE:
                continue
            complete += peer.complete
            self._met.setdefault(peer.identity, time.monotonic())
            thread = threading.Thread(target=self._ask, args=(peer,), name=f"blocks of {peer.identity}", daemon=True)
            self._threads[peer.identity] = thread
            thread.start()

    def _join(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for connection in list(self._connections.values()):
            connection.interrupt()
        for thread in self._threads.values():
            thread.join()

    def _ended(self, peer: Peer) -> bool:
        gone = all(one.identity != peer.identity for one in self._exchange.peers(self._sha256))
        return gone or self._over or not self._missing or self._stop.is_set() or peer.identity in self._banned

    def _ask(self, peer: Peer) -> None:
        while not self._ended(peer):
            try:
                with self._exchange.connect(peer, partial(self._opened, peer.identity)) as connection:
                    self._take_from(peer, connection)
            except (OSError, SlicemgrError) as error:
                log.info("no blocks of image %s from %s: %s", self._sha256[:12], peer.identity, error)
            with self._changed:
                self._has.pop(peer.identity, None)
                self._unreached_by.pop(peer.identity, None)
                self._changed.notify_all()
                if not self._over and self._missing:
                    self._changed.wait_for(lambda: self._over or not self._missing, _AGAIN)

    def _opened(self, identity: str, connection: Connection) -> None:
        self._connections[identity] = connection
        if self._over:
            connection.interrupt()

    def _take_from(self, peer: Peer, connection: Connection) -> None:
        """Until the fetch has ended. Raises Failed or OSError."""
        while not self._ended(peer):
            has, unreached = connection.have(self._sha256, len(self._hashes))
            with self._changed:
                self._has[peer.identity], self._unreached_by[peer.identity] = has, unreached
                self._changed.notify_all()
            while not self._ended(peer) and (block := self._claim(has)) is not None:
                try:
                    content = connection.block(self._sha256, block, image_blocks.length(self._size, block))
                    if not self._keep(block, content):
                        self._banned.add(peer.identity)
                        raise Failed("it sent a block that is not of the image, and is not asked again")
                    self._last = time.monotonic()
                    self._arrivals.append(self._last)
                finally:
                    self._release(block)
            with self._changed:
                if not self._over and self._missing:
                    self._changed.wait(_TICK)

    def _claim(self, has: set[int]) -> int | None:
        with self._changed:
            free = list(has & self._missing - self._taken)
            block = random.choice(free) if free else None
            if block is not None:
                self._taken.add(block)
            return block
