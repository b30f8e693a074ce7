"""Nodes exchange an image over real sockets, by the real confined program: what they get, and what they refuse."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exchanging import ExchangingNode, described, served, shared
from flask import Flask, Response, request

from slicemgr.agent import block_fetch, image_exchange
from slicemgr.agent.image_exchange import Connection
from slicemgr.agent.image_source import Wanted, block_file, partial_file
from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.certificates.member import AUTHORITY, KEY, Member
from slicemgr.certificates.private_files import write_private
from slicemgr.errors import Failed
from slicemgr.policy import image_blocks
from slicemgr.policy.image_blocks import Peer
from slicemgr.store.updates import utcnow

BLOCKS = 6
CONTENT = random.Random(1).randbytes(BLOCKS * image_blocks.SIZE - 12345)
WANTED = described(CONTENT)
HASHES = [
    hashlib.sha256(CONTENT[at : at + image_blocks.SIZE]).hexdigest() for at in range(0, len(CONTENT), image_blocks.SIZE)
]


class World:
    """An authority, a service that counts what it uploads, and nodes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.authority = Authority.create(folder / "authority", utcnow())
        self.uploaded: list[int] = []  # first bytes of ranges
        self.hashes: list[str] | None = HASHES
        app = Flask("service")
        app.add_url_rule("/api/v1/node-images/<sha256>", "file", self._file)
        app.add_url_rule("/api/v1/node-images/<sha256>/blocks", "blocks", self._blocks)
        self.url = stack.enter_context(served(app))
        self.nodes: list[ExchangingNode] = []

    def _file(self, sha256: str) -> Response:
        found = request.range.ranges if request.range is not None else []
        ((first, end),) = found or [(0, None)]
        end = end or len(CONTENT)
        self.uploaded.append(first)
        answer = Response(CONTENT[first:end], 206 if found else 200)
        if found:
            answer.headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(CONTENT)}"
        return answer

    def _blocks(self, sha256: str) -> Response:
        if self.hashes is None:
            return Response("", 404)
        body = {"size": image_blocks.SIZE, "blocks": self.hashes}
        return Response(json.dumps(body), mimetype="application/json")

    def node(self, authority: Authority | None = None, upload: int = 0) -> ExchangingNode:
        number = len(self.nodes) + 1
        identity, key = f"node-{number}", requests.new_key()
        folder = self.folder / identity
        member = folder / "membership"
        member.mkdir(parents=True)
        write_private(member / KEY, requests.key_pem(key))
        write_private(member / AUTHORITY, self.authority.certificate.encode())
        issued = (authority or self.authority).node(identity, key.public_key(), utcnow())
        at, address = Member(member, self.url, identity), f"127.0.0.{number + 1}"
        made = ExchangingNode(at, issued.certificate, folder, address, upload=upload)
        self.nodes.append(self._stack.enter_context(made))
        return made

    def name(self, peers: Sequence[Peer]) -> None:
        """Name nodes to all of them; returns when they have noticed."""
        for node in self.nodes:
            node.name(shared(WANTED, peers))
        for node in self.nodes:
            others = {one for one in peers if one.identity != node.member.identity}
            until(lambda n=node, o=others: n.exchange._process and set(n.exchange.peers(WANTED.sha256)) == o)  # type: ignore[misc]


def until(check: Callable[[], object]) -> None:
    waiting = threading.Event()
    for _ in range(600):
        if check():
            return
        waiting.wait(0.05)
    pytest.fail("it did not happen")


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(image_exchange, "_LOOK", 0.05)
    monkeypatch.setattr(block_fetch, "_NAMED", 0.5)
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_three_nodes_fetch_an_image_once_together(testbed: World) -> None:
    """The control: without the names of others, each of them fetches all of it."""
    nodes = [testbed.node() for _ in range(3)]
    testbed.name([one.peer() for one in nodes])
    threads = [one.start(WANTED) for one in nodes]
    for thread in threads:
        thread.join()
    assert [one.failure for one in nodes] == [None] * 3
    assert all(one.file(WANTED).read_bytes() == CONTENT for one in nodes)
    print(sorted(testbed.uploaded))
    assert len(testbed.uploaded) <= 1.5 * BLOCKS


def test_a_node_that_has_all_gives_all(testbed: World) -> None:
    first, second = testbed.node(), testbed.node()
    first.file(WANTED).write_bytes(CONTENT)
    testbed.name([first.peer(complete=True), second.peer()])
    second.fetch(WANTED)
    assert second.file(WANTED).read_bytes() == CONTENT and testbed.uploaded == []


def test_without_other_nodes_everything_comes_from_the_service(testbed: World) -> None:
    alone = testbed.node()
    testbed.name([alone.peer()])
    alone.fetch(WANTED)
    assert alone.file(WANTED).read_bytes() == CONTENT and len(testbed.uploaded) == BLOCKS


def test_a_service_of_an_earlier_version_is_asked_for_the_file(testbed: World) -> None:
    testbed.hashes = None
    node = testbed.node()
    node.fetch(WANTED)
    assert node.file(WANTED).read_bytes() == CONTENT and testbed.uploaded == [0]


def test_an_interrupted_fetch_continues_with_the_blocks_that_are_right(testbed: World) -> None:
    node = testbed.node()
    testbed.name([node.peer()])
    damaged = bytearray(CONTENT[: 3 * image_blocks.SIZE])
    damaged[image_blocks.SIZE + 5] ^= 1
    partial_file(node.file(WANTED)).write_bytes(damaged)  # of an earlier version, which fetched from front to back
    node.fetch(WANTED)
    assert node.file(WANTED).read_bytes() == CONTENT
    assert sorted(testbed.uploaded) == [one * image_blocks.SIZE for one in (1, 3, 4, 5)]
    node.file(WANTED).unlink()
    with block_file(node.file(WANTED)).open("wb") as file:  # blocks 1 and 5, and holes
        for block in (1, 5):
            file.seek(block * image_blocks.SIZE)
            file.write(CONTENT[block * image_blocks.SIZE :][: image_blocks.SIZE])
    testbed.uploaded.clear()
    node.fetch(WANTED)
    assert node.file(WANTED).read_bytes() == CONTENT and not list(node.config.images_dir.glob("*.blocks"))
    assert sorted(testbed.uploaded) == [one * image_blocks.SIZE for one in (0, 2, 3, 4)]


def test_the_hashes_of_the_service_do_not_replace_that_of_the_row(testbed: World) -> None:
    """The sha256 of the row decides. The partial file is deleted."""
    node = testbed.node()
    testbed.name([node.peer()])
    other = Wanted("ab" * 32, "qcow2", len(CONTENT))
    with pytest.raises(Failed, match="sha256 differs"):
        node.fetch(other)
    assert list(node.config.images_dir.iterdir()) == []
    for wrong in ([], HASHES[:-1], [*HASHES[:-1], "x"], [*HASHES[:-1], None]):
        testbed.hashes = wrong  # type: ignore[assignment]
        with pytest.raises(Failed, match="hashes"):
            node.fetch(WANTED)


def test_a_node_that_sends_wrong_blocks_is_not_asked_again(testbed: World) -> None:
    """Its blocks are not written; the rest comes from others. The control is a node with right ones."""
    hostile, honest, node = (testbed.node() for _ in range(3))
    hostile.file(WANTED).write_bytes(bytes(len(CONTENT)))
    honest.file(WANTED).write_bytes(CONTENT)
    testbed.name([hostile.peer(complete=True), honest.peer(complete=True), node.peer()])
    node.fetch(WANTED)
    assert node.file(WANTED).read_bytes() == CONTENT and testbed.uploaded == []
    node.file(WANTED).unlink()
    testbed.name([hostile.peer(complete=True), node.peer()])
    node.fetch(WANTED)
    assert node.file(WANTED).read_bytes() == CONTENT and len(testbed.uploaded) == BLOCKS


def test_a_node_that_sends_nothing_delays_a_fetch_but_does_not_stop_it(
    testbed: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that cannot be reached, nor one that does not answer."""
    monkeypatch.setattr(block_fetch, "_HELLO", 0.2)
    monkeypatch.setattr(block_fetch, "_LEAST_IDLE", 0.2)
    node = testbed.node()
    with socket.create_server(("127.0.0.9", 0)) as listener:  # it never answers
        port = listener.getsockname()[1]
        silent = [Peer(f"node-{number}", f"127.0.0.{number}", port, number == 9) for number in (8, 9)]
        testbed.name([*silent, node.peer()])
        node.fetch(WANTED)
    assert node.file(WANTED).read_bytes() == CONTENT


# who gets what


@contextmanager
def requester(testbed: World, identity: str, authority: Authority, folder: Path) -> Iterator[ssl.SSLContext]:
    """TLS as a node of that name."""
    key = requests.new_key()
    pair = folder / f"{identity}.pem"
    issued = authority.node(identity, key.public_key(), utcnow())
    pair.write_bytes(issued.certificate.encode() + requests.key_pem(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(pair)
    yield context


def ask(context: ssl.SSLContext, node: ExchangingNode, *questions: bytes) -> list[Any]:
    """The replies; a block as its bytes. It ends early if the node ends the connection."""
    found: list[Any] = []
    with suppress(OSError), ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection((node.address, node.port), 10))
        tls = stack.enter_context(context.wrap_socket(plain))
        replies = stack.enter_context(tls.makefile("rb"))
        for one in questions:
            tls.sendall(one + b"\n")
            line = replies.readline()
            if not line:
                break
            reply = json.loads(line)
            found.append(replies.read(reply["size"]) if "size" in reply else reply)
    return found


def question(block: object = None, sha256: str = WANTED.sha256) -> bytes:
    return json.dumps({"image": sha256} if block is None else {"image": sha256, "block": block}).encode()


@pytest.fixture
def giving(testbed: World) -> Iterator[World]:
    """The first node has the image and gives it to node-2, which is not there."""
    node = testbed.node()
    node.file(WANTED).write_bytes(CONTENT)
    other = Peer("node-2", "127.0.0.3", 2000, False)
    testbed.name([node.peer(complete=True), Peer("node-3", "127.0.0.4", 2000, True), other])
    until(lambda: node.exchange._offered)
    yield testbed


def test_only_nodes_that_the_hub_names_get_blocks(giving: World, tmp_path: Path) -> None:
    """The first is the control. The hub names only nodes that need the image."""
    node = giving.nodes[0]
    last = CONTENT[5 * image_blocks.SIZE :]
    with requester(giving, "node-2", giving.authority, tmp_path) as named:
        assert ask(named, node, question(), question(5)) == [{"have": "3f", "unreached": []}, last]
        absent = {"error": "absent"}
        for block in (6, -1, 1 << 80, True, "0", 0.0, [0]):
            assert ask(named, node, question(block)) == [absent], block
        denied = {"error": "denied"}
        assert ask(named, node, question(0, "ab" * 32), question(0, "../x")) == [denied, denied]
        for broken in (b"[]", b"{}", b"\xff", b"x" * 5000, b"[" * 1000):
            assert ask(named, node, broken, question()) == []
        assert ask(named, node, question(5)) == [last], "it still answers"
    for stranger in ("node-4", "node-3"):  # node-3 has the image, says the hub: it needs none
        with requester(giving, stranger, giving.authority, tmp_path) as context:
            assert ask(context, node, question(), question(0)) == [denied, denied]


def test_only_certificates_of_the_testbed_are_accepted(giving: World, tmp_path: Path) -> None:
    """Those of another authority, a server's, and none; the control is the test above."""
    node = giving.nodes[0]
    with requester(giving, "node-2", Authority.create(tmp_path / "other", utcnow()), tmp_path) as context:
        assert ask(context, node, question()) == []
    key = requests.new_key()
    pair = tmp_path / "server.pem"
    pair.write_bytes(giving.authority.server(["node-2"], key.public_key(), utcnow()).certificate.encode())
    with pair.open("ab") as file:
        file.write(requests.key_pem(key))
    for with_certificate in (True, False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if with_certificate:
            context.load_cert_chain(pair)
        assert ask(context, node, question()) == []


@pytest.mark.parametrize("wrong", ["nothing", "authority", "identity"])
def test_a_node_asks_only_the_one_that_the_hub_named(testbed: World, tmp_path: Path, wrong: str) -> None:
    """Whoever else is at its address. The first is the control."""
    other = Authority.create(tmp_path / "elsewhere", utcnow()) if wrong == "authority" else None
    there, node = testbed.node(other), testbed.node()
    there.file(WANTED).write_bytes(CONTENT)
    named = replace(there.peer(complete=True), identity="node-9") if wrong == "identity" else there.peer(complete=True)
    for one in testbed.nodes:
        one.name(shared(WANTED, [named, node.peer()]))
    until(lambda: all(one.exchange._process is not None for one in testbed.nodes))
    if wrong == "nothing":
        with node.exchange.connect(named) as connection:
            assert connection.have(WANTED.sha256, BLOCKS)[0] == set(range(BLOCKS))
        return
    with pytest.raises(Failed, match="another name" if wrong == "identity" else "not issued"):
        node.exchange.connect(named)
    assert node.exchange.unreached() == {named.identity}


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"[]\n",
        b"[" * 50000 + b"\n",
        b'{"have": "ffffffffff", "unreached": []}\n',
        b'{"have": "x", "unreached": []}\n',
        b'{"have": "1"}\n',
        b'{"error": "\x1b[2J"}\n',
        b"x" * 100000,
    ],
)
def test_replies_are_checked(reply: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs, Connection(ours) as connection:
        theirs.sendall(reply)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(Failed) as failed:
            connection.have(WANTED.sha256, BLOCKS)
        assert str(failed.value).isprintable()


def test_a_block_of_another_size_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with theirs, Connection(ours) as connection:
        theirs.sendall(b'{"size": 4194304}\n')
        with pytest.raises(Failed, match="another size"):
            connection.block(WANTED.sha256, 5, 7)


def test_the_upload_is_limited(testbed: World, tmp_path: Path) -> None:
    """With 8 MiB a second, 20 MiB need more than a second after those of the first one."""
    node = testbed.node(upload=8 << 20)
    node.file(WANTED).write_bytes(CONTENT)
    testbed.name([node.peer(complete=True), Peer("node-2", "127.0.0.3", 2000, False)])
    with requester(testbed, "node-2", testbed.authority, tmp_path) as context:
        until(lambda: ask(context, node, question()))
        began = time.monotonic()
        found = ask(context, node, *(question(block) for block in range(5)))
    assert [len(one) for one in found] == [image_blocks.SIZE] * 5
    assert time.monotonic() - began > 1.2


# the program


def test_the_port_is_open_while_images_are_exchanged(giving: World) -> None:
    node = giving.nodes[0]
    socket.create_connection((node.address, node.port), 10).close()
    process = node.exchange._process
    assert process is not None
    node.config.image_peers_file.unlink()  # or it is too old
    until(lambda: node.exchange._process is None)
    assert process.ended
    with pytest.raises(OSError):
        socket.create_connection((node.address, node.port), 10)


def images(program: Path) -> list[Path]:
    """The descriptors of images that a process has."""
    found = []
    for one in (program / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if one.readlink().suffix == ".qcow2":
                found.append(one)
    return found


def program_of(node: ExchangingNode) -> tuple[Path, Path]:
    """The process of the program, and its descriptor of the only image that it has."""
    process = node.exchange._process
    assert process is not None
    group = process._talk._process.pid

    def programs() -> list[Path]:
        return [one for one in Path("/proc").iterdir() if one.name.isdecimal() and _is_program(one, group)]

    until(lambda: [one for one in programs() if images(one)])
    (program,) = programs()
    (image,) = images(program)
    return program, image


def test_the_files_of_images_that_are_no_longer_exchanged_are_closed(giving: World) -> None:
    """Else a deleted image would use its space. The program is the same."""
    node = giving.nodes[0]
    program, _ = program_of(node)
    other = replace(WANTED, sha256="ab" * 32)
    node.name(shared(other, [node.peer(complete=True), Peer("node-2", "127.0.0.3", 2000, False)]))
    until(lambda: not images(program))
    node.name(shared(WANTED, [node.peer(complete=True), Peer("node-2", "127.0.0.3", 2000, False)]))
    until(lambda: images(program))


def test_the_program_has_no_rights(giving: World) -> None:
    """Its own user without capabilities, no network, no file of the node; it cannot write the image that it gives."""
    program, image = program_of(giving.nodes[0])
    status = dict(line.split(":\t", 1) for line in (program / "status").read_text().splitlines())
    assert set(status["Uid"].split()) == {"58481"} and status["Groups"].strip() == ""
    assert all(int(status[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert {one.split(":")[0].strip() for one in (program / "net/dev").read_text().splitlines()[2:]} == {"lo"}
    assert (program / "ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    flags = (program / "fdinfo" / image.name).read_text().split("flags:\t")[1].split()[0]
    assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY
    assert not (program / "root/var/lib").exists() and not (program / "root/w").exists()


def _is_program(process: Path, group: int) -> bool:
    """Whether it is the Python that descends from the process `group`."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        above = process
        while words[0] == b"/usr/bin/python3" and above.name not in ("0", "1"):
            if above.name == str(group):
                return True
            above = Path("/proc") / (above / "stat").read_text().rpartition(")")[2].split()[1]
    except (OSError, IndexError):
        pass
    return False
