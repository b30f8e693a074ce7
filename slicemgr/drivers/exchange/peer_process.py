"""Exchange blocks of images with other nodes over TLS. A separate program that is never imported by slicemgr.

Other nodes may be hostile. So this program runs confined, with its own user and without a network of its own: it gets
connections and open files from the agent, over the control socket, and can neither make a connection nor write a file.
It uses the standard library alone.

argv: the number of the control socket's descriptor (SOCK_SEQPACKET). Each of its packets is JSON, with descriptors:

- `identity` (first): `certificate`, `key` and `authority` (PEM), `upload`: bytes a second, 0 for no limit
- `listen` with a listening TCP socket
- `dial` with a connected TCP socket and a stream socket. The certificate of the peer becomes the first line of the
  stream; its caller judges it. Then each line from the stream is sent as a request, and the reply is passed on.
- `images`: by sha256, `size` and `nodes`, the identities that may read it; `unreached`: identities, for the replies.
  Files of other images are closed.
- `file` with a descriptor: `sha256` and `have`, the blocks of the file as a hexadecimal number
- `have`: `sha256` and `block`, one more block of a file

A request is a line of JSON: `image` and, for a block, `block`. The reply is a line of JSON: `size`, the number of bytes
that follow, for a block; else `have` and `unreached`; or `error`. Unknown fields are ignored.

A peer shows a certificate of the testbed's authority in either direction. Certificates of nodes are for clients, so a
client of OpenSSL refuses them from a server: this one passes the certificate on, and the agent judges it.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

_BLOCK = 4 << 20  # bytes, as in policy.image_blocks
_LARGEST_PACKET = 1 << 18
_LONGEST_REQUEST, _LONGEST_REPLY = 1024, 64 << 10
_CHUNK = 1 << 16
_HANDSHAKE, _IDLE, _DATA = 10.0, 60.0, 30.0  # seconds
_MOST, _MOST_OF_ONE = 48, 3  # connections from others, and of one node


@dataclass
class Image:
    """What this node gives of an image. nodes: that may read it. file: a descriptor, -1: nothing yet."""

    size: int = 0
    nodes: frozenset[str] = frozenset()
    file: int = -1
    have: set[int] = field(default_factory=set)


class Refused(Exception):
    """A request that is not answered; the text goes to the peer."""


class Exchange:
    def __init__(self, identity: dict[str, Any]) -> None:
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, identity)
        self._server.verify_mode = ssl.CERT_REQUIRED
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, identity)
        self._client.check_hostname = False
        self._client.verify_mode = ssl.CERT_NONE  # the agent judges the certificate before anything is asked
        self._rate = int(identity.get("upload", 0))
        self._lock = threading.Lock()
        self._images: dict[str, Image] = {}
        self._unreached: list[str] = []
        self._connections: Counter[str] = Counter()
        self._free_at = 0.0

    # orders of the agent

    def order(self, packet: dict[str, Any], descriptors: list[int]) -> None:
        match packet["kind"]:
            case "listen":
                _thread(self._listen, socket.socket(fileno=descriptors[0]))
            case "dial":
                peer, stream = (socket.socket(fileno=one) for one in descriptors)
                _thread(self._dial, peer, stream)
            case "images":
                self._name(packet["images"], packet["unreached"])
            case "file":
                with self._lock:
                    image = self._images.setdefault(packet["sha256"], Image())
                    if image.file >= 0:
                        os.close(image.file)
                    image.file, image.have = descriptors[0], _blocks(packet["have"])
            case "have":
                with self._lock:
                    self._images[packet["sha256"]].have.add(packet["block"])

    def _name(self, named: dict[str, Any], unreached: list[str]) -> None:
        with self._lock:
            self._unreached = unreached
            for sha256, one in named.items():
                image = self._images.setdefault(sha256, Image())
                image.size, image.nodes = one["size"], frozenset(one["nodes"])
            for sha256 in set(self._images) - set(named):
                gone = self._images.pop(sha256)
                if gone.file >= 0:
                    os.close(gone.file)  # else a deleted file would use its space

    # requests of other nodes

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                time.sleep(0.1)
                continue
            with self._lock:
                full = self._connections.total() >= _MOST
                if not full:
                    self._connections[""] += 1
            if full:
                peer.close()
            else:
                _thread(self._serve, peer)

    def _serve(self, peer: socket.socket) -> None:
        identity = ""
        try:
            with closing(peer), suppress(OSError, ValueError):
                peer.settimeout(_HANDSHAKE)
                with self._server.wrap_socket(peer, server_side=True) as tls:
                    found = _name_of(tls)
                    with self._lock:
                        if self._connections[found] >= _MOST_OF_ONE:
                            return
                        self._connections[""] -= 1
                        self._connections[found] += 1
                    identity = found
                    tls.settimeout(_IDLE)
                    with tls.makefile("rb") as requests:
                        while line := requests.readline(_LONGEST_REQUEST):
                            self._answer(tls, identity, line)
        finally:
            with self._lock:
                self._connections[identity] -= 1

    def _answer(self, tls: ssl.SSLSocket, identity: str, line: bytes) -> None:
        """Raises OSError if the peer does not take it, ValueError if it sent no request."""
        request = json.loads(line)
        sha256, block = str(request["image"]), request.get("block")
        try:
            with self._file(sha256, identity, block) as (file, size):
                tls.settimeout(_DATA)
                tls.sendall(_line({"size": size}))
                at, end = block * _BLOCK, block * _BLOCK + size
                while at < end:
                    chunk = os.pread(file, min(_CHUNK, end - at), at)
                    if not chunk:
                        raise ValueError("the file is shorter")
                    self._pace(len(chunk))
                    tls.sendall(chunk)
                    at += len(chunk)
        except _Listed as listed:
            tls.sendall(_line(listed.content))
        except Refused as error:
            tls.sendall(_line({"error": str(error)}))
        tls.settimeout(_IDLE)

    @contextmanager
    def _file(self, sha256: str, identity: str, block: object) -> Iterator[tuple[int, int]]:
        """A descriptor of the file, and the size of the block. Raises Refused; _Listed if none was asked for."""
        with self._lock:
            image = self._images.get(sha256)
            if image is None or identity not in image.nodes:
                raise Refused("denied")
            if block is None:
                raise _Listed({"have": f"{sum(1 << one for one in image.have):x}", "unreached": self._unreached})
            if type(block) is not int or block not in image.have:
                raise Refused("absent")
            file = os.dup(image.file)
            size = min(_BLOCK, image.size - block * _BLOCK)
        try:
            yield file, size
        finally:
            os.close(file)

    def _pace(self, size: int) -> None:
        if self._rate:
            with self._lock:
                now = time.monotonic()
                self._free_at = max(self._free_at, now - 1) + size / self._rate
                wait = self._free_at - now
            if wait > 0:
                time.sleep(wait)

    # requests to other nodes

    def _dial(self, peer: socket.socket, stream: socket.socket) -> None:
        with closing(peer), closing(stream), suppress(OSError, ValueError):
            peer.settimeout(_HANDSHAKE)
            try:
                tls = self._client.wrap_socket(peer)
            except OSError as error:
                stream.sendall(_line({"error": str(error)[:200]}))
                return
            with tls:
                stream.sendall(_line({"certificate": base64.b64encode(tls.getpeercert(True) or b"").decode()}))
                tls.settimeout(_DATA)
                with stream.makefile("rb") as requests, tls.makefile("rb") as replies:
                    while line := requests.readline(_LONGEST_REQUEST):
                        tls.sendall(line)
                        head = replies.readline(_LONGEST_REPLY)
                        left = json.loads(head).get("size", 0)
                        if type(left) is not int or not 0 <= left <= _BLOCK:
                            return
                        stream.sendall(head)
                        while left:
                            chunk = replies.read1(min(_CHUNK, left))
                            if not chunk:
                                return
                            stream.sendall(chunk)
                            left -= len(chunk)


class _Listed(Exception):
    """The reply is a list of blocks."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__()
        self.content = content


def _context(protocol: int, identity: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=identity["authority"])
    with tempfile.NamedTemporaryFile("w") as pair:  # in memory: OpenSSL reads files alone
        pair.write(identity["certificate"] + "\n" + identity["key"])
        pair.flush()
        context.load_cert_chain(pair.name)
    return context


def _name_of(tls: ssl.SSLSocket) -> str:
    """The common name in the certificate of a peer, which OpenSSL has verified. ValueError: it has not exactly one."""
    subject: Any = (tls.getpeercert() or {}).get("subject", ())
    (name,) = (value for part in subject for kind, value in part if kind == "commonName")
    if not name:
        raise ValueError("no name")
    return str(name)


def _blocks(text: str) -> set[int]:
    value = int(text, 16)
    return {one for one in range(value.bit_length()) if value >> one & 1}


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _thread(target: Any, *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def main() -> None:
    """Until the agent closes the control socket."""
    control = socket.socket(fileno=int(sys.argv[1]))
    exchange: Exchange | None = None
    while True:
        packet, descriptors, _, _ = socket.recv_fds(control, _LARGEST_PACKET, 2)
        if not packet:
            return
        content = json.loads(packet)
        if exchange is None:
            exchange = Exchange(content)
        else:
            exchange.order(content, descriptors)


if __name__ == "__main__":
    main()
