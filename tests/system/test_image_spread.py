"""How much the service uploads while three nodes fetch an image, counted on its link: each in a network namespace."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, Service
from exchanging import ExchangingNode, served

from slicemgr.agent.image_source import Source, Wanted
from slicemgr.certificates import requests
from slicemgr.certificates.member import AUTHORITY, KEY, Member
from slicemgr.certificates.private_files import write_private
from slicemgr.hub import image_peers, signer
from slicemgr.model import ImageState
from slicemgr.service.nodes import joining, membership
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

PORT = 8481
_LONGEST = 900.0  # seconds
_NEWNET = 0x40000000  # CLONE_NEWNET
_LIBC = ctypes.CDLL(None, use_errno=True)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


class Namespaces:
    """A switch with hosts 10.9.0.1 (the service) and 10.9.0.2 and so on, in network namespaces of their own."""

    def __init__(self, stack: ExitStack, hosts: int) -> None:
        self._prefix = f"spread{os.getpid()}"
        self._add("switch", stack)
        ip("-n", self.name("switch"), "link", "add", "br0", "up", "type", "bridge")
        for number in range(1, hosts + 1):
            self._add(str(number), stack)
            ends = (
                "-n",
                self.name("switch"),
                "link",
                "add",
                f"h{number}",
                "up",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
            )
            ip(*ends, "netns", self.name(str(number)))
            ip("-n", self.name("switch"), "link", "set", f"h{number}", "master", "br0")
            ip("-n", self.name(str(number)), "address", "add", f"10.9.0.{number}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                ip("-n", self.name(str(number)), "link", "set", link, "up")

    def name(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _add(self, host: str, stack: ExitStack) -> None:
        ip("netns", "add", self.name(host))
        stack.callback(ip, "netns", "delete", self.name(host))

    def sent(self, number: int) -> int:
        """Bytes that a host has sent."""
        (link,) = json.loads(ip("-n", self.name(str(number)), "-s", "-j", "link", "show", "eth0"))
        return int(link["stats64"]["tx"]["bytes"])

    def run(self, number: int, function: Callable[[], None]) -> threading.Thread:
        """Run a function in a thread that is on a host, and so are the threads and processes that it starts."""

        def entered() -> None:
            with Path(f"/run/netns/{self.name(str(number))}").open() as file:
                assert _LIBC.setns(file.fileno(), _NEWNET) == 0
            function()

        thread = threading.Thread(target=entered)
        thread.start()
        return thread


@dataclass
class Host:
    number: int
    node: ExchangingNode
    alone: Source  # without other nodes


class World:
    """The real service over TLS, and three nodes that joined and need an image of `size` bytes each."""

    def __init__(self, folder: Path, stack: ExitStack, size: int) -> None:
        self._folder, self.size = folder, size
        self.net = Namespaces(stack, 4)
        self.service = stack.enter_context(Service(folder / "service"))
        self.authority = signer.prepare(self.service.store, self.service.config.authority_dir)
        self.wanted = self._image()
        self._stop = threading.Event()
        self._ended = threading.Barrier(3)
        self._url, self._up = "", threading.Event()
        server = self.net.run(1, self._serve)
        stack.callback(server.join)
        stack.callback(self._stop.set)
        assert self._up.wait(30)
        self.hosts = [self._join(number) for number in (2, 3, 4)]

    def _image(self) -> Wanted:
        uploads = self.service.config.uploads_dir
        uploads.mkdir(parents=True, exist_ok=True)
        digest, file = hashlib.sha256(), uploads / "image"
        with file.open("wb") as output:
            for _ in range(self.size >> 20):
                output.write(block := os.urandom(1 << 20))
                digest.update(block)
        file.rename(uploads / f"{digest.hexdigest()}.qcow2")
        self.service.add_image(digest.hexdigest(), "large", ImageState.READY)
        with self.service.store.write() as c:
            c.execute(t.images.update().where(t.images.c.name == "large").values(file_size=self.size))
        return Wanted(digest.hexdigest(), "qcow2", self.size)

    def _serve(self) -> None:
        key, folder = requests.new_key(), self._folder / "tls"
        folder.mkdir()
        (folder / "key.pem").write_bytes(requests.key_pem(key))
        (folder / "chain.pem").write_text(self.authority.server(["10.9.0.1"], key.public_key(), utcnow()).certificate)
        with served(self.service.app, "10.9.0.1", (folder / "chain.pem", folder / "key.pem")) as self._url:
            self._up.set()
            self._stop.wait()

    def _join(self, number: int) -> Host:
        store, name = self.service.store, f"n{number}"
        made, key = membership.add(store, {"name": name}, ADMIN), requests.new_key()
        request = requests.new_request(key)
        joining.join(store, made.token, request, "127.0.0.1")
        signer.sign(store, self.authority)
        joined = joining.join(store, made.token, request, "127.0.0.1")
        folder = self._folder / name / "membership"
        folder.mkdir(parents=True)
        write_private(folder / KEY, requests.key_pem(key))
        write_private(folder / AUTHORITY, self.authority.certificate.encode())
        member = Member(folder, self._url, joined.identity)
        self.service.create(f"exp{number}", image="large")
        with store.write() as c:
            of_slice = t.slices.c.id == t.slivers.c.slice
            mine = t.slices.c.name == f"exp{number}"
            c.execute(t.slivers.update().where(sa.exists().where(of_slice, mine)).values(node=name))
            facts = {"facts": {**FACTS, "image_port": PORT}, "address": f"10.9.0.{number}", "state": "active"}
            c.execute(t.nodes.update().where(t.nodes.c.name == name).values(facts))
            link = {"identity": joined.identity, "incarnation": "0" * 16, "sequence": 1, "version": "1"}
            c.execute(t.links.insert().values(**link, beat_at=utcnow()))
            state = {"image": self.wanted.sha256, "node": name, "state": "fetching", "updated_at": utcnow()}
            state["disk"] = "fetching"
            c.execute(t.image_nodes.insert().values(state))
        node = ExchangingNode(member, joined.certificate, self._folder / name, f"10.9.0.{number}", PORT)
        return Host(number, node, Source(member, threading.Event()))

    def fetch(self, *, together: bool) -> tuple[float, float]:
        """Let all nodes fetch the image at once. Returns how many copies the service sent, and the seconds."""
        before, began = self.net.sent(1), time.monotonic()
        threads = [self.net.run(one.number, lambda one=one: self._fetch(one, together)) for one in self.hosts]  # type: ignore[misc]
        for thread in threads:
            thread.join()
        seconds, sent = time.monotonic() - began, self.net.sent(1) - before
        assert [one.node.failure for one in self.hosts] == [None] * len(self.hosts)
        for one in self.hosts:
            file = one.node.file(self.wanted)
            assert file.stat().st_size == self.size
            file.unlink()
        return sent / self.size, seconds

    def _fetch(self, host: Host, together: bool) -> None:
        if not together:
            host.alone.fetch(self.wanted, host.node.file(self.wanted), lambda step, percent: None)
            return
        stop = threading.Event()
        with host.node:
            hub = threading.Thread(target=self._name, args=(host, stop))
            hub.start()
            host.node.start(self.wanted).join()
            with suppress(threading.BrokenBarrierError):
                self._ended.wait(_LONGEST)  # the others may need what it has
            stop.set()
            hub.join()

    def _name(self, host: Host, stop: threading.Event) -> None:
        """What hub and links do."""
        while not stop.is_set():
            with self.service.store.write() as c:
                c.execute(t.links.update().values(beat_at=utcnow()))
                images = image_peers.orders(c)[host.node.member.identity]
            host.node.name(*images)
            stop.wait(1.0)


@pytest.mark.long
def test_1_gib_to_three_nodes(tmp_path: Path) -> None:
    """At most 1.5 copies leave the service, also if one node can connect to others and they cannot connect to it.

    The baseline of the same run, nodes that do not exchange, is three copies.
    """
    with ExitStack() as stack:
        made = World(tmp_path, stack, 1 << 30)
        direct, direct_seconds = made.fetch(together=False)
        together, together_seconds = made.fetch(together=True)
        behind = made.net.name("4")
        words = [
            "ip",
            "netns",
            "exec",
            behind,
            "iptables",
            "-A",
            "INPUT",
            "-p",
            "tcp",
            "--dport",
            str(PORT),
            "-j",
            "DROP",
        ]
        subprocess.run(words, check=True)
        behind_nat, nat_seconds = made.fetch(together=True)
    print(
        f"copies: {direct:.2f} in {direct_seconds:.1f} s without exchange, {together:.2f} in {together_seconds:.1f} s"
    )
    print(f"copies with one node behind NAT: {behind_nat:.2f} in {nat_seconds:.1f} s")
    assert direct > 2.9
    assert together <= 1.5
    assert behind_nat <= 1.5
