"""The exchange of images with other nodes: runs the program that does it while the hub names images to exchange.

What other nodes send is read by that program, which is confined (drivers.exchange). Here arrive a certificate, lists of
blocks and blocks, each checked before use.
"""

from __future__ import annotations

import base64
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from slicemgr import names
from slicemgr.certificates import requests
from slicemgr.certificates.member import AUTHORITY, CERTIFICATE, KEY, Member
from slicemgr.config import Config
from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.exchange.process import PeerProcess
from slicemgr.drivers.importer import confinement
from slicemgr.errors import Failed, SlicemgrError
from slicemgr.ipc import image_peers
from slicemgr.policy import image_blocks, messages
from slicemgr.policy.image_blocks import Peer, Shared
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_LOOK = 0.5  # seconds between two readings of the names
_PAUSE = 10.0  # seconds after the program could not be started
_CONNECT, _REPLY = 4.0, 60.0  # seconds
_LONGEST = 64 << 10  # bytes of a line
_MOST_UNREACHED = 256
_TRIES = 3  # failures in a row after which a node counts as unreachable; it may be about to start


class Connection:
    """A context manager: requests to another node, one after the other. Its methods raise Failed or OSError."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._replies = stream.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._replies.close()
        self._stream.close()

    def interrupt(self) -> None:
        """End what another thread waits for."""
        with suppress(OSError):  # it was closed
            self._stream.shutdown(socket.SHUT_RDWR)

    def certificate(self) -> bytes:
        """That of the node (DER), before the first request."""
        return base64.b64decode(str(self._line().get("certificate", "")))

    def have(self, sha256: str, number: int) -> tuple[set[int], frozenset[str]]:
        """The blocks that the node has of a file of `number` blocks, and the nodes that it cannot reach."""
        reply = self._ask({"image": sha256})
        unreached = reply.get("unreached")
        if not isinstance(unreached, list) or len(unreached) > _MOST_UNREACHED:
            raise Failed("the reply is not valid")
        try:
            return image_blocks.blocks(str(reply.get("have")), number), frozenset(map(str, unreached))
        except ValueError as error:
            raise Failed("the reply is not valid") from error

    def block(self, sha256: str, block: int, size: int) -> bytes:
        """The content of a block, of that size; nothing of it is checked."""
        reply = self._ask({"image": sha256, "block": block})
        if reply.get("size") != size:
            raise Failed("the block has another size")
        content = self._replies.read(size)
        if len(content) != size:
            raise Failed("the connection was closed")
        return content

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._stream.sendall(json.dumps(request).encode() + b"\n")
        return self._line()

    def _line(self) -> dict[str, Any]:
        try:
            raw = json.loads(self._replies.readline(_LONGEST))
        except (ValueError, RecursionError) as error:
            raise Failed("the connection was closed") from error
        if not isinstance(raw, dict):
            raise Failed("the reply is not valid")
        if "error" in raw:
            text = "".join(one if one.isprintable() else "?" for one in str(raw["error"])[:200])
            raise Failed(f"refused: {text}")
        return raw


class ImageExchange:
    """A context manager, thread-safe. address: where it listens, "" for all addresses of the node."""

    def __init__(self, config: Config, member: Member, address: str = "") -> None:
        self._config, self._member, self._address = config, member, address
        self._lock = threading.Lock()
        self._stopping, self._named_anew = threading.Event(), threading.Condition(self._lock)
        self._named: dict[str, Shared] = {}
        self._process: PeerProcess | None = None
        self._partial: dict[str, tuple[Path, set[int]]] = {}  # what is being fetched: its file, and the blocks of it
        self._offered: set[str] = set()  # files that the present program has
        self._failures: dict[str, int] = {}  # in a row, by node

    @property
    def identity(self) -> str:
        return self._member.identity

    def __enter__(self) -> Self:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="image exchange", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        with self._lock:
            self._end()

    # for the fetch of an image

    def peers(self, sha256: str) -> tuple[Peer, ...]:
        """The other nodes that have an image or fetch it."""
        with self._lock:
            shared = self._named.get(sha256)
        return () if shared is None else tuple(one for one in shared.peers if one.identity != self.identity)

    def wait_named(self, sha256: str, timeout: float) -> bool:
        """Wait until the hub has named this node for the image. timeout: seconds."""
        with self._named_anew:
            return self._named_anew.wait_for(lambda: sha256 in self._named, timeout)

    def connect(self, peer: Peer, opened: Callable[[Connection], object] = lambda connection: None) -> Connection:
        """A connection to a node, whose certificate was checked. Raises Failed or OSError.

        opened: called with it before it is waited for.
        """
        try:
            made = socket.create_connection((peer.address, peer.port), _CONNECT)
        except OSError as error:
            tries = _TRIES if isinstance(error, TimeoutError) else 1
            raise self._failed(peer, error, tries) from error
        with made, self._lock:
            if self._process is None:
                raise Failed("images are not exchanged now")
            stream = self._process.dial(made)
        stream.settimeout(_REPLY)
        connection = Connection(stream)
        opened(connection)
        try:
            authority = (self._member.folder / AUTHORITY).read_text()
            requests.check_member(connection.certificate(), authority, peer.identity, utcnow())
        except (OSError, SlicemgrError, ValueError) as error:
            connection.close()
            raise self._failed(peer, error, _TRIES) from error
        with self._lock:
            self._failures.pop(peer.identity, None)
        return connection

    def _failed(self, peer: Peer, error: Exception, tries: int) -> Failed:
        with self._lock:
            self._failures[peer.identity] = self._failures.get(peer.identity, 0) + tries
        return Failed(f"{peer.address} port {peer.port}: {error}")

    def unreached(self) -> set[str]:
        """The nodes to which connections fail."""
        with self._lock:
            return self._unreachable()

    def _unreachable(self) -> set[str]:
        return {identity for identity, failures in self._failures.items() if failures >= _TRIES}

    def fetching(self, sha256: str, file: Path, have: set[int]) -> None:
        """Give other nodes the blocks `have` of a file, which is incomplete."""
        with self._lock:
            self._partial[sha256] = (file, set(have))
            self._offered.discard(sha256)

    def add(self, sha256: str, block: int) -> None:
        """One more block of a file is complete."""
        with self._lock:
            self._partial[sha256][1].add(block)
            if self._process is not None and sha256 in self._offered:
                with suppress(OSError):  # it has ended, and is started again
                    self._process.tell("have", sha256=sha256, block=block)

    def ended(self, sha256: str) -> None:
        """The file is no longer fetched. If it is complete, all of it is given to other nodes."""
        with self._lock:
            self._partial.pop(sha256, None)
            self._offered.discard(sha256)

    # the program

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK):
            named = self._read()
            try:
                with self._lock:
                    self._named = named
                    self._named_anew.notify_all()
                    self._follow()
            except (CommandFailed, SlicemgrError, OSError) as error:
                log.warning("images are not exchanged with other nodes: %s", error)
                with self._lock:
                    self._end()
                self._stopping.wait(_PAUSE)

    def _read(self) -> dict[str, Shared]:
        content = image_peers.read(self._config.image_peers_file)
        if not content:
            return {}
        try:
            return {one.sha256: one for one in messages.parse_peers(content)}
        except messages.BadMessage as error:
            log.error("%s: %s", self._config.image_peers_file, error)
            return {}

    def _follow(self) -> None:
        """Do what the names require. Call it with the lock."""
        if self._process is not None and (self._process.ended or not self._named):
            if self._process.ended:
                log.warning("the exchange of images ended: %s", self._process.failure())
            self._end()
        if not self._named:
            return
        if self._process is None:
            self._start()
        files = {sha256: found for sha256, one in self._named.items() if (found := self._file(one)) is not None}
        assert self._process is not None
        images = {
            sha256: {"size": one.size, "nodes": [peer.identity for peer in one.peers if not peer.complete]}
            for sha256, one in self._named.items()
            if sha256 in files
        }
        self._process.tell("images", images=images, unreached=sorted(self._unreachable())[:_MOST_UNREACHED])
        self._offered &= set(files)
        for sha256, (file, have) in files.items():
            if sha256 not in self._offered:
                self._process.offer(sha256, file, image_blocks.bitmap(have))
                self._offered.add(sha256)

    def _file(self, one: Shared) -> tuple[Path, set[int]] | None:
        """What this node has of an image."""
        found = self._partial.get(one.sha256)
        if found is not None:
            return found
        complete = names.image_file(self._config.images_dir, one.image or one.sha256, one.format)
        if complete.is_file() and complete.stat().st_size == one.size:
            return complete, set(range(image_blocks.count(one.size)))
        return None

    def _start(self) -> None:
        folder, settings = self._member.folder, self._config.exchange
        certificate, key, authority = ((folder / one).read_text() for one in (CERTIFICATE, KEY, AUTHORITY))
        process = PeerProcess(
            confinement.user(settings.user, "exchange.user"), certificate, key, authority, upload=settings.upload.bytes
        )
        process.__enter__()
        self._process = process
        try:
            port = process.listen(self._address, settings.port)
            log.info("images are exchanged with other nodes, which connect to port %d", port)
        except OSError as error:
            log.warning("other nodes cannot fetch images from this one: port %d: %s", settings.port, error)

    def _end(self) -> None:
        if self._process is not None:
            self._process.__exit__()
            self._process = None
            log.info("images are no longer exchanged with other nodes")
        self._offered.clear()
        self._failures.clear()
