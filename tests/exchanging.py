"""Nodes that exchange an image: the real fetch and the real confined program, for tests."""

from __future__ import annotations

import dataclasses
import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flask import Flask
from werkzeug.serving import make_server

from slicemgr import names
from slicemgr.agent.image_exchange import ImageExchange
from slicemgr.agent.image_source import Source, Wanted
from slicemgr.certificates.member import CERTIFICATE, Member
from slicemgr.config import Config, ExchangeConfig, NodeConfig, Size
from slicemgr.errors import SlicemgrError
from slicemgr.ipc import image_peers
from slicemgr.policy import messages
from slicemgr.policy.image_blocks import Peer, Shared


@contextmanager
def served(app: Flask, host: str = "127.0.0.1", chain: tuple[Path, Path] | None = None) -> Iterator[str]:
    """The URL of the application. chain: certificate and key; None: http."""
    context = None
    if chain is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*chain)
    server = make_server(host, 0, app, threaded=True, ssl_context=context)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{'http' if chain is None else 'https'}://{host}:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listener:
        return int(listener.getsockname()[1])


class ExchangingNode:
    """A context manager: a node at an address of its own on the loopback interface. folder: of its files."""

    def __init__(
        self, member: Member, certificate: str, folder: Path, address: str, port: int = 0, upload: int = 0
    ) -> None:
        port = port or free_port(address)
        self.member, self.address, self.port = member, address, port
        (member.folder / CERTIFICATE).write_text(certificate)
        for name in ("run", "state/images"):
            (folder / name).mkdir(parents=True)
        self.config = Config(
            node=NodeConfig(run_dir=folder / "run", state_dir=folder / "state", address=address),
            exchange=ExchangeConfig(port=port, upload=Size(upload)),
        )
        self.exchange = ImageExchange(self.config, member, address)
        self.stop = threading.Event()
        self.source = Source(member, self.stop, 0.01, self.exchange)
        self.failure: Exception | None = None

    def __enter__(self) -> ExchangingNode:
        self.exchange.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.exchange.__exit__()

    def peer(self, *, complete: bool = False) -> Peer:
        return Peer(self.member.identity, self.address, self.port, complete)

    def name(self, *images: Shared) -> None:
        """What `slicemgr link` does with an order of the hub."""
        image_peers.write(self.config.image_peers_file, messages.peers(images))

    def file(self, wanted: Wanted) -> Path:
        return names.image_file(self.config.images_dir, wanted.sha256, wanted.format)

    def fetch(self, wanted: Wanted) -> None:
        self.source.fetch(wanted, self.file(wanted), lambda step, percent: None)

    def start(self, wanted: Wanted) -> threading.Thread:
        def run() -> None:
            try:
                self.fetch(wanted)
            except (SlicemgrError, OSError) as error:
                self.failure = error

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def shared(wanted: Wanted, peers: Sequence[Peer]) -> Shared:
    return Shared(wanted.sha256, wanted.format, wanted.size, tuple(peers))


def described(content: bytes) -> Wanted:
    return Wanted(hashlib.sha256(content).hexdigest(), "qcow2", len(content))


def at(member: Member, url: str) -> Member:
    return dataclasses.replace(member, url=url)
