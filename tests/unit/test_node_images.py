"""A node fetches a disk image from the service over real sockets: what it gets, and what it refuses."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from bare_service import ADMIN, Service
from flask import Flask, Response, request
from test_join_command import chain, served
from werkzeug.test import TestResponse

from slicemgr import agent_process
from slicemgr.agent import image_source
from slicemgr.agent.image_offers import ImageOffers
from slicemgr.agent.image_source import Source, Wanted
from slicemgr.certificates import image_tokens, requests
from slicemgr.certificates.authority import Authority
from slicemgr.certificates.member import Member
from slicemgr.certificates.private_files import write_private
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.hub import signer
from slicemgr.ipc import image_socket
from slicemgr.link import join as link
from slicemgr.model import ImageState
from slicemgr.policy import image_blocks
from slicemgr.service.nodes import image_files, image_hashes, joining, membership
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA = hashlib.sha256(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
PATH = f"/api/v1/node-images/{SHA}"


class Joined:
    """A service with an image, and a node that joined it and has a sliver of that image."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service, self.folder = service, folder
        self.authority = signer.prepare(service.store, service.config.authority_dir)
        self.member, self.key = self.join("node7")
        for sha256, name, content in ((SHA, "lab", CONTENT), (OTHER, "other", b"other")):
            service.add_image(sha256, name, ImageState.READY)
            (service.config.uploads_dir / f"{sha256}.qcow2").write_bytes(content)
            with service.store.write() as c:
                c.execute(t.images.update().where(t.images.c.sha256 == sha256).values(file_size=len(content)))
        service.create("exp", image="lab")
        self.place("node7")

    def join(self, name: str) -> tuple[Member, object]:
        store = self.service.store
        made, key = membership.add(store, {"name": name}, ADMIN), requests.new_key()
        request = requests.new_request(key)
        joining.join(store, made.token, request, "127.0.0.1")
        assert signer.sign(store, self.authority) == 1
        found = joining.join(store, made.token, request, "127.0.0.1")
        folder = self.folder / name
        folder.mkdir()
        write_private(folder / link.KEY, requests.key_pem(key))
        write_private(folder / link.AUTHORITY, self.authority.certificate.encode())
        return Member(folder, "http://127.0.0.1:1", found.identity), key

    def place(self, node: str) -> None:
        with self.service.store.write() as c:
            c.execute(t.slivers.update().values(node=node))

    def token(self, sha256: str = SHA, age: timedelta = timedelta(), identity: str = "", key: object = None) -> str:
        return image_tokens.sign(key or self.key, identity or self.member.identity, sha256, utcnow() - age)  # type: ignore[arg-type]

    def get(self, token: str, path: str = PATH, **headers: str) -> tuple[int, bytes]:
        response = self.service.app.test_client().get(path, headers={"Authorization": f"Node {token}", **headers})
        with response:
            return response.status_code, response.data


@pytest.fixture
def testbed(tmp_path: Path) -> Iterator[Joined]:
    with Service(tmp_path / "service") as service:
        yield Joined(service, tmp_path)


@contextmanager
def centre(content: Callable[[], Response]) -> Iterator[str]:
    """The URL of a server that answers each request for an image with `content`."""
    app = Flask("centre")
    app.add_url_rule("/api/v1/node-images/<sha256>", view_func=lambda sha256: content())
    with served(app) as url:
        yield url


def fetch(testbed: Joined, url: str, size: int = len(CONTENT), source: Source | None = None) -> Path:
    target = testbed.folder / f"{SHA}.qcow2"
    at = dataclasses.replace(testbed.member, url=url)
    source = source or Source(at, threading.Event(), pause=0.001)
    source.fetch(Wanted(SHA, "qcow2", size), target, lambda step, percent: None)
    return target


def test_a_node_fetches_the_image_of_its_sliver_over_tls(testbed: Joined) -> None:
    seen: list[int | None] = []
    with served(testbed.service.app, chain(testbed.authority, testbed.folder / "tls")) as url:
        source = Source(dataclasses.replace(testbed.member, url=url), threading.Event())
        target = testbed.folder / f"{SHA}.qcow2"
        source.fetch(Wanted(SHA, "qcow2", len(CONTENT)), target, lambda step, percent: seen.append(percent))
    assert target.read_bytes() == CONTENT and target.stat().st_mode & 0o777 == 0o600
    assert seen[-1] == 100 and not list(testbed.folder.glob("*.fetch"))


def test_another_authority_is_not_trusted(testbed: Joined) -> None:
    other = Authority.create(testbed.folder / "other", utcnow())
    with (
        served(testbed.service.app, chain(other, testbed.folder / "tls")) as url,
        pytest.raises(Failed, match="certificate of the service"),
    ):
        fetch(testbed, url)


@pytest.mark.parametrize("url", ["http://testbed.example", "ftp://127.0.0.1"])
def test_a_token_never_goes_over_a_network_without_tls(testbed: Joined, url: str) -> None:
    with pytest.raises(Failed, match="not fetched over"):
        fetch(testbed, url)


def test_tokens(testbed: Joined) -> None:
    """The first is the control; all others are refused."""
    right = testbed.token()
    assert testbed.get(right) == (200, CONTENT)
    stranger, key = testbed.join("node8")
    late, early = image_tokens.LIFETIME + timedelta(seconds=1), timedelta(seconds=-2)
    wrong = {
        "expired": testbed.token(age=late),
        "valid for longer": testbed.token(age=early),
        "for another image": testbed.token(OTHER),
        "of a node without slivers": testbed.token(identity=stranger.identity, key=key),
        "with the key of another node": testbed.token(key=key),
        "in the name of another node": testbed.token(identity=stranger.identity),
        "of a key without a certificate": testbed.token(key=requests.new_key()),
        "changed": right.replace(f".{right.split('.')[2]}.", f".{int(right.split('.')[2]) - 1}."),
        "none": "x",
    }
    assert {what: testbed.get(token)[0] for what, token in wrong.items()} == dict.fromkeys(wrong, 403)
    assert testbed.service.app.test_client().get(PATH).status_code == 401
    client = {"Authorization": f"Bearer {testbed.service.token()}"}
    assert testbed.service.app.test_client().get(PATH, headers=client).status_code == 401, "no user has this right"


def test_the_right_ends_with_sliver_certificate_and_node(testbed: Joined) -> None:
    token = testbed.token()
    assert testbed.get(token)[0] == 200
    testbed.place("node1")
    assert testbed.get(token)[0] == 403
    testbed.place("node7")
    assert testbed.get(token)[0] == 200
    with testbed.service.store.write() as c:
        membership.revoke(c, testbed.member.identity, utcnow())
    assert testbed.get(token)[0] == 403


def test_no_other_image_of_the_service_is_served(testbed: Joined) -> None:
    """A token for it is not enough: the node must need the image."""
    path = f"/api/v1/node-images/{OTHER}"
    assert testbed.get(testbed.token(OTHER), path)[0] == 403
    with testbed.service.store.write() as c:
        c.execute(t.slices.update().values(image=OTHER))
    assert testbed.get(testbed.token(OTHER), path) == (200, b"other")
    with testbed.service.store.write() as c:
        c.execute(t.images.update().where(t.images.c.sha256 == OTHER).values(state=ImageState.DELETING))
    assert testbed.get(testbed.token(OTHER), path)[0] == 403


def test_ranges(testbed: Joined) -> None:
    token = testbed.token()
    assert testbed.get(token, Range="bytes=1000-") == (206, CONTENT[1000:])
    assert testbed.get(token, Range="bytes=5-9") == (206, CONTENT[5:10])
    assert testbed.get(token, Range="bytes=0-0") == (206, CONTENT[:1])
    assert testbed.get(token, Range=f"bytes=0-{len(CONTENT) - 1}") == (200, CONTENT)
    end = len(CONTENT)
    for wrong in (f"bytes={end}-", f"bytes=5-{end}", "bytes=9-5", "bytes=-5", "bytes=1-,7-", "lines=1-", "x"):
        assert testbed.get(token, Range=wrong)[0] == 422, wrong


def test_the_hashes_of_blocks(testbed: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are for the same nodes as the file; it is read once."""
    monkeypatch.setattr(image_blocks, "SIZE", 1 << 18)
    path = f"{PATH}/blocks"
    expected = [hashlib.sha256(CONTENT[at : at + (1 << 18)]).hexdigest() for at in range(0, len(CONTENT), 1 << 18)]
    for _ in range(2):
        status, body = testbed.get(testbed.token(), path)
        assert (status, json.loads(body)) == (200, {"size": 1 << 18, "blocks": expected})
        image_hashes._kept[SHA] = (len(CONTENT), expected := ["the kept ones"])
    monkeypatch.undo()
    stranger, key = testbed.join("node8")
    assert testbed.get(testbed.token(identity=stranger.identity, key=key), path)[0] == 403
    assert testbed.service.app.test_client().get(path).status_code == 401
    image_hashes._kept.clear()


def test_a_node_that_exchanges_fetches_blocks(testbed: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is the only one, and its clock is an hour ahead. The connection breaks once."""

    class Alone:
        identity = "node-alone"

        def unreached(self) -> set[str]:
            return set()

        def __getattr__(self, name: str) -> Callable[..., object]:
            return lambda *_: ()

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(hours=1)

    monkeypatch.setattr(image_blocks, "SIZE", 1 << 18)
    monkeypatch.setattr(image_source, "datetime", Ahead)
    with served(testbed.service.app, chain(testbed.authority, testbed.folder / "tls")) as url:
        at = dataclasses.replace(testbed.member, url=url)
        source = Source(at, threading.Event(), pause=0.001, exchange=Alone())  # type: ignore[arg-type]
        asked: list[int] = []
        answer = source.answer

        def breaking(*arguments: Any, **named: Any) -> Any:
            asked.append(1)
            if len(asked) == 3:
                raise ConnectionResetError
            return answer(*arguments, **named)

        monkeypatch.setattr(source, "answer", breaking)
        assert fetch(testbed, url, source=source).read_bytes() == CONTENT
    image_hashes._kept.clear()
    assert len(asked) == 1 + 4 + 1 and not list(testbed.folder.glob("*.blocks"))


def test_a_lost_connection_goes_on_where_it_stopped(testbed: Joined) -> None:
    """Every connection breaks after a third; the parts come from the real service."""
    first: list[str] = []

    def third() -> Response:
        first.append(request.headers.get("Range", ""))
        inner = testbed.service.app.test_client().get(PATH, headers=dict(request.headers))
        with inner:
            answer = Response(iter([inner.data[: len(CONTENT) // 3 + 1]]), inner.status_code)
            for name in ("Content-Length", "Content-Range"):
                if name in inner.headers:
                    answer.headers[name] = inner.headers[name]
        answer.automatically_set_content_length = False
        return answer

    with centre(third) as url:
        assert fetch(testbed, url).read_bytes() == CONTENT
    step = len(CONTENT) // 3 + 1
    assert first == ["", f"bytes={step}-", f"bytes={2 * step}-"]


def test_a_later_fetch_goes_on_with_the_partial_file(testbed: Joined) -> None:
    partial = testbed.folder / f"{SHA}.fetch"
    partial.write_bytes(CONTENT[:-7])
    with served(testbed.service.app) as url:
        assert fetch(testbed, url).read_bytes() == CONTENT
    partial.write_bytes(CONTENT + b"more")
    with served(testbed.service.app) as url:
        assert fetch(testbed, url).read_bytes() == CONTENT


def test_a_file_with_another_sha256_is_never_used(testbed: Joined) -> None:
    """Neither one that the service sends, nor one whose partial file was damaged."""
    with centre(lambda: Response(CONTENT[::-1])) as url, pytest.raises(Failed, match="sha256 differs"):
        fetch(testbed, url)
    assert not list(testbed.folder.glob(f"{SHA}*"))
    (testbed.folder / f"{SHA}.fetch").write_bytes(b"x" * 100)
    with served(testbed.service.app) as url:
        with pytest.raises(Failed, match="sha256 differs"):
            fetch(testbed, url)
        assert fetch(testbed, url).read_bytes() == CONTENT, "the next attempt begins again"


LENGTHS = {
    "more": lambda: Response(CONTENT + b"x"),
    "less": lambda: Response(CONTENT[:-1]),
    "unknown": lambda: Response(iter([CONTENT])),
    "a part that nobody asked for": lambda: Response(CONTENT, 206),
    "another part": lambda: Response(CONTENT, 206, {"Content-Range": f"bytes 5-{len(CONTENT) + 4}/{len(CONTENT) + 5}"}),
    "elsewhere": lambda: Response("", 302, {"Location": "http://127.0.0.1:9/"}),
}


@pytest.mark.parametrize("answer", LENGTHS.values(), ids=list(LENGTHS))
def test_a_lying_length(testbed: Joined, answer: Callable[[], Response]) -> None:
    with centre(answer) as url, pytest.raises(Failed) as failed:
        fetch(testbed, url)
    assert failed.value.code is not Code.UNAVAILABLE, "it is not asked again at once"
    assert not (testbed.folder / f"{SHA}.qcow2").exists()
    partial = testbed.folder / f"{SHA}.fetch"
    assert not partial.exists() or partial.stat().st_size == 0


def test_more_than_the_size_of_the_row_is_never_read(testbed: Joined) -> None:
    """The length is right, the body has no end."""

    def endless() -> Response:
        answer = Response((b"x" * 65536 for _ in iter(int, 1)), 200)
        answer.headers["Content-Length"] = "1000"
        return answer

    with centre(endless) as url, pytest.raises(Failed, match="sha256 differs"):
        fetch(testbed, url, size=1000)


def test_a_busy_service_is_asked_again_and_at_last_reported(testbed: Joined) -> None:
    answers = iter([Response("", 503), Response("", 429), Response(CONTENT)])
    with centre(lambda: next(answers)) as url:
        assert fetch(testbed, url).read_bytes() == CONTENT
    (testbed.folder / f"{SHA}.qcow2").unlink()
    asked: list[int] = []

    def busy() -> Response:
        asked.append(1)
        return Response("", 503)

    with centre(busy) as url, pytest.raises(Failed, match="busy: status 503"):
        fetch(testbed, url)
    assert len(asked) == image_source._ATTEMPTS


def test_a_node_with_a_wrong_clock_uses_that_of_the_service(testbed: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour ahead. The control: without the time of the service it is refused."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(hours=1)

    monkeypatch.setattr(image_source, "datetime", Ahead)
    with served(testbed.service.app) as url:
        assert fetch(testbed, url).read_bytes() == CONTENT
        monkeypatch.setattr(Source, "_follow_clock", lambda *_: False)
        with pytest.raises(Failed, match="status 403"):
            fetch(testbed, url)


def test_no_room(testbed: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_source, "RESERVE", 1 << 62)
    with served(testbed.service.app) as url, pytest.raises(Refused, match="no room") as refused:
        fetch(testbed, url)
    assert refused.value.code is Code.QUOTA


def test_an_agent_that_stops_keeps_what_it_has(testbed: Joined) -> None:
    stop = threading.Event()
    with served(testbed.service.app) as url:
        source = Source(dataclasses.replace(testbed.member, url=url), stop, pause=0.001)
        with pytest.raises(SlicemgrError):
            source.fetch(Wanted(SHA, "qcow2", len(CONTENT)), testbed.folder / f"{SHA}.qcow2", lambda *_: stop.set())
        assert 0 < (testbed.folder / f"{SHA}.fetch").stat().st_size < len(CONTENT)


def test_a_node_may_not_take_all_threads(testbed: Joined) -> None:
    """It gets two downloads at a time. The end of one makes room for the next."""
    client, token = testbed.service.app.test_client(), testbed.token()

    def ask() -> TestResponse:
        return client.get(PATH, headers={"Authorization": f"Node {token}"})

    held = [ask(), ask()]
    third = ask()
    assert third.status_code == 429 and third.headers["Retry-After"]
    held.pop().close()
    with ask() as again:
        assert again.status_code == 200
    held.pop().close()


@pytest.mark.parametrize("kind", ["nothing", "link", "another size"])
def test_a_file_that_the_service_lost(testbed: Joined, kind: str) -> None:
    path = testbed.service.config.uploads_dir / f"{SHA}.qcow2"
    path.unlink()
    if kind == "link":
        other = testbed.folder / "copy"
        other.write_bytes(CONTENT)
        path.symlink_to(other)
    elif kind == "another size":
        path.write_bytes(CONTENT[:-1])
    status, body = testbed.get(testbed.token())
    assert status == 503 and (b"does not have the file" in body or b"does not respond" in body)
    granted = image_files.judge(testbed.service.store, testbed.token(), SHA, utcnow())
    assert (granted.node, granted.size) == ("node7", len(CONTENT))


@pytest.fixture
def offering(testbed: Joined) -> Iterator[Joined]:
    """The agent beside the service has the file of the image, the web process does not."""
    config = testbed.service.config
    config.images_dir.mkdir(parents=True)
    (config.uploads_dir / f"{SHA}.qcow2").rename(config.images_dir / f"{SHA}.qcow2")
    with ImageOffers(config, partial(agent_process._judge, testbed.service.store)):
        yield testbed


def test_the_agent_beside_the_service_opens_the_file(offering: Joined) -> None:
    with served(offering.service.app) as url:
        assert fetch(offering, url).read_bytes() == CONTENT


def test_the_web_process_alone_gets_no_image_of_the_agent(offering: Joined) -> None:
    """Whatever it sends: the agent judges the token. The first is the control, and its descriptor cannot write."""
    config = offering.service.config
    descriptor = image_socket.ask(config.image_socket, offering.token(), SHA)
    try:
        assert os.pread(descriptor, 10, 0) == CONTENT[:10]
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)
    for token, sha256 in (
        (offering.token(OTHER), SHA),
        (offering.token(), OTHER),
        (offering.token(), f"../images/{SHA}"),
        (offering.token(key=requests.new_key()), SHA),
        ("", SHA),
    ):
        with pytest.raises(Refused, match="not valid for this image"):
            image_socket.ask(config.image_socket, token, sha256)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
        stream.connect(str(config.image_socket))
        stream.send(b"[1]")
        assert b"does not name" in stream.recv(4096)
    (config.images_dir / f"{SHA}.qcow2").write_bytes(b"shorter")
    with pytest.raises(Refused, match="another size"):
        image_socket.ask(config.image_socket, offering.token(), SHA)


def test_an_operation_of_the_node_gives_the_right_until_it_ends(testbed: Joined) -> None:
    testbed.place("node1")
    assert testbed.get(testbed.token())[0] == 403
    with testbed.service.store.write() as c:
        c.execute(t.operations.update().values(image=SHA))
        c.execute(t.operation_parts.update().values(node="node7"))
    assert testbed.get(testbed.token())[0] == 200
    with testbed.service.store.write() as c:
        c.execute(t.operation_parts.update().values(state="done"))
    assert testbed.get(testbed.token())[0] == 403


def test_what_is_sent_to_nodes_is_counted(testbed: Joined) -> None:
    """For `/metrics`; a refused request sends nothing of an image."""
    for token, headers in ((testbed.token(), {}), (testbed.token(), {"Range": "bytes=0-99"}), ("bad", {})):
        testbed.get(token, **headers)
    (family,) = testbed.service.app.extensions["slicemgr"].image_traffic.collect()
    sent = [one.value for one in family.samples if one.name == "slicemgr_web_image_bytes_total"]
    assert sent == [len(CONTENT) + 100]
