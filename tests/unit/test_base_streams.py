"""Streams of bases: who may send one, what a node fetches for which sliver, and which nodes exchange them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
import test_image_peers
import test_images_on_nodes
import test_node_images
from bare_service import ADMIN, SHA, Service, config_in
from test_image_peers import Centre
from test_images_on_nodes import Place
from test_join_command import served
from test_node_images import CONTENT, Joined

from slicemgr.agent.image_source import Source, Wanted
from slicemgr.agent.journal import Journal
from slicemgr.agent.node_images import NodeImages
from slicemgr.certificates import requests
from slicemgr.config import ExchangeConfig
from slicemgr.drivers.importer import base_stream
from slicemgr.errors import Code, Failed, Refused
from slicemgr.hub import image_peers
from slicemgr.model import BaseStream, ImageState, NodeImageState
from slicemgr.policy import messages
from slicemgr.policy.image_blocks import BASE, Peer, Shared
from slicemgr.policy.image_needs import ALL, Needs
from slicemgr.policy.messages import BadMessage
from slicemgr.service.nodes import images as image_service
from slicemgr.service.views import images as image_views
from slicemgr.store import pending
from slicemgr.store import tables as t

STREAM = b"a btrfs send stream" * 1000
DIGEST = hashlib.sha256(STREAM).hexdigest()
IMAGE = test_node_images.SHA
PATH = f"/api/v1/node-images/{IMAGE}/base"

testbed = test_node_images.testbed
place = test_images_on_nodes.place
centre = test_image_peers.centre


# what the service takes


def importing(testbed: Joined, *, base_size: int = 1000, state: ImageState = ImageState.READY) -> None:
    """Let the node import its image."""
    with testbed.service.store.write() as c:
        c.execute(t.images.update().where(t.images.c.sha256 == IMAGE).values(base_size=base_size, state=state))
        c.execute(t.operations.update().values(kind="image-import", image=IMAGE))
        c.execute(t.operation_parts.update().values(node="node7"))


def put(testbed: Joined, content: bytes = STREAM, token: str = "", version: str = "1") -> int:
    headers = {"Authorization": f"Node {token or testbed.token()}"}
    client = testbed.service.app.test_client()
    return client.put(f"{PATH}?version={version}", data=content, headers=headers).status_code


def recorded(testbed: Joined) -> tuple[str, int, int]:
    i = t.images.c
    with testbed.service.store.read() as c:
        query = sa.select(i.stream_sha256, i.stream_size, i.stream_version).where(i.sha256 == IMAGE)
        return tuple(c.execute(query).one())


def test_the_node_that_imports_sends_the_base_once(testbed: Joined) -> None:
    assert testbed.get(testbed.token(), PATH)[0] == 404, "there is none yet"
    importing(testbed)
    assert put(testbed) == 204
    assert recorded(testbed) == (DIGEST, len(STREAM), 1)
    assert put(testbed, b"another") == 409 and recorded(testbed)[0] == DIGEST
    assert testbed.get(testbed.token(), PATH) == (200, STREAM)
    status, body = testbed.get(testbed.token(), f"{PATH}/blocks")
    assert (status, json.loads(body)["blocks"]) == (200, [DIGEST])
    assert testbed.get(testbed.token()) == (200, CONTENT), "the disk image is another file"
    uploads = testbed.service.config.uploads_dir
    assert (uploads / f"{IMAGE}.base").read_bytes() == STREAM and not list(uploads.glob("incoming-*"))
    assert image_service.sweep_uploads(testbed.service.store, testbed.service.config) == []


def test_nobody_else_sends_a_base(testbed: Joined) -> None:
    """A node with a sliver of the image, a node without, a user; and nothing is left of what they sent."""
    stranger, key = testbed.join("node8")
    foreign = testbed.token(identity=stranger.identity, key=key)
    assert put(testbed) == 403, "it uses the image, but does not import it"
    importing(testbed)
    assert put(testbed, token=foreign) == 403
    assert put(testbed, token=testbed.token(key=requests.new_key())) == 403
    assert testbed.service.app.test_client().put(f"{PATH}?version=1", data=STREAM).status_code == 401
    with testbed.service.store.write() as c:
        c.execute(t.operation_parts.update().values(state="done"))
    assert put(testbed) == 403, "the import has ended"
    assert recorded(testbed) == ("", 0, 0) and not list(testbed.service.config.uploads_dir.glob("*.base"))
    with testbed.service.store.write() as c:
        c.execute(t.operation_parts.update().values(state="running"))
    assert put(testbed) == 204, "the control"


def test_what_is_no_base(testbed: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    importing(testbed, base_size=0)
    assert put(testbed) == 503, "the findings of the import are not recorded yet"
    importing(testbed, state=ImageState.UPLOADED)
    assert put(testbed) == 503
    importing(testbed)
    for wrong in ("", "0", "-1", "x", "9999999"):
        assert put(testbed, version=wrong) == 422, wrong
    assert put(testbed, b"") == 422
    monkeypatch.setattr("slicemgr.service.nodes.image_files._ROOM", 0)
    assert put(testbed, b"x" * 2001) == 422, "more than twice its files"
    assert recorded(testbed) == ("", 0, 0)
    assert put(testbed, b"x" * 2000) == 204, "the control"


def test_a_base_goes_with_its_image(testbed: Joined) -> None:
    importing(testbed)
    assert put(testbed) == 204
    store, config = testbed.service.store, testbed.service.config
    with store.write() as c:
        c.execute(t.slices.update().values(image=test_node_images.OTHER))
    image_service.delete(store, config, "lab", ADMIN)
    assert not list(config.uploads_dir.glob(f"{IMAGE}.*"))


def test_a_node_sends_and_fetches_over_the_network(testbed: Joined, tmp_path: Path) -> None:
    importing(testbed, state=ImageState.UPLOADED)
    file, wanted = tmp_path / "made.base", Wanted(DIGEST, BASE, len(STREAM), IMAGE)
    file.write_bytes(STREAM)
    with served(testbed.service.app) as url:
        source = Source(dataclasses.replace(testbed.member, url=url), threading.Event(), pause=0.05)
        recording = threading.Timer(0.3, importing, (testbed,))
        recording.start()
        source.send(wanted, file, 1)
        recording.join()
        with pytest.raises(Refused, match="has the base"):
            source.send(wanted, file, 1)
        target = tmp_path / f"{IMAGE}.base"
        source.fetch(wanted, target, lambda step, percent: None)
        assert target.read_bytes() == STREAM
        with testbed.service.store.write() as c:
            c.execute(t.images.update().values(stream_sha256="f" * 64))
        target.unlink()
        with pytest.raises(Failed, match="sha256 differs"):
            source.fetch(dataclasses.replace(wanted, sha256="f" * 64), target, lambda step, percent: None)
        assert not target.exists()


# what a node fetches


def with_stream(place: Place, version: int = base_stream.VERSION) -> None:
    place.service.record(pending.BaseStreamMade(SHA, DIGEST, 3, version))
    place.service.record(pending.BaseStreamMade(SHA, "f" * 64, 4, version))  # a second one changes nothing


def files(place: Place) -> list[tuple[str, str]]:
    assert place.journal.flush()
    with place.service.store.read() as c:
        return [(one["disk"], one["base"]) for one in image_views.on_nodes(c, SHA)]


def test_a_container_needs_the_stream_alone(place: Place) -> None:
    with_stream(place)
    with place.service.store.read() as c:
        (image,) = pending.images(c)
    assert image.stream == BaseStream(DIGEST, 3, base_stream.VERSION)
    place.images.push(SHA, lambda step, percent: None, Needs(disk=False))
    assert place.fetched == [DIGEST] and place.importer.extracted == 0
    assert place.importer.received == [(f"{SHA}.base", b"xxx")] and files(place) == [("", "ready")]
    place.service.create("exp")
    assert not any(place.images.missing(one) for one in place.slivers().values())
    with place.service.store.write() as c:
        c.execute(t.slices.update().values(type="kvm", boot="loader"))
    (machine,) = place.slivers().values()
    assert place.images.missing(machine), "it needs the disk image"
    place.images.push(SHA, lambda step, percent: None, Needs(base=False))
    assert place.fetched == [DIGEST, SHA] and place.importer.extracted == 0 and not place.images.missing(machine)
    assert files(place) == [("ready", "ready")]


def test_a_machine_needs_the_disk_image_alone(place: Place) -> None:
    with_stream(place)
    place.images.push(SHA, lambda step, percent: None, Needs(base=False))
    assert place.fetched == [SHA] and place.importer.extracted == 0 and files(place) == [("ready", "")]
    assert place.images.kept() == [SHA]
    place.images.push(SHA, lambda step, percent: None, ALL)
    assert place.fetched == [SHA, DIGEST] and files(place) == [("ready", "ready")]


@pytest.mark.parametrize("case", ["no stream", "another version", "not received", "not fetched"])
def test_else_the_disk_image_is_extracted(place: Place, case: str) -> None:
    if case != "no stream":
        with_stream(place, base_stream.VERSION + (case == "another version"))
    if case == "not received":
        place.importer.failures = [Failed("the stream is damaged")]
    if case == "not fetched":
        place.answers = [Failed("the service does not have it", code=Code.UNAVAILABLE)]
    place.images.push(SHA, lambda step, percent: None, Needs(disk=False))
    tried = case in ("not received", "not fetched")
    assert place.fetched == ([DIGEST] if tried else []) + [SHA]
    assert place.importer.extracted == 1 and files(place) == [("ready", "ready")]
    assert not (place.service.config.images_dir / f"{SHA}.base").exists()


@pytest.mark.parametrize("streams", [True, False])
def test_a_node_can_refuse_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: bool) -> None:
    config = dataclasses.replace(config_in(tmp_path), exchange=ExchangeConfig(streams=streams))
    monkeypatch.setattr(NodeImages, "_has_room", lambda *_: True)
    with Service(config) as service, Journal(service.store, "node1") as journal:
        place = Place(service, journal)
        with_stream(place)
        place.images.push(SHA, lambda step, percent: None, Needs(disk=False))
        assert place.fetched == ([DIGEST] if streams else [SHA])
        assert place.importer.extracted == (0 if streams else 1) == 1 - len(place.importer.received)
        assert files(place) == [("" if streams else "ready", "ready")]


# which nodes exchange it


def named(centre: Centre) -> dict[str, dict[str, dict[str, bool]]]:
    """By format and identity: the nodes that are named to it, and whether they have all of it."""
    found: dict[str, dict[str, dict[str, bool]]] = {}
    with centre.store.read() as c:
        for who, shared in image_peers.orders(c).items():
            for one in shared:
                assert (one.sha256, one.image) == ((DIGEST, SHA) if one.format == BASE else (SHA, ""))
                found.setdefault(one.format, {})[who] = {peer.identity: peer.complete for peer in one.peers}
    return found


def test_nodes_exchange_each_file_by_itself(centre: Centre) -> None:
    with centre.store.write() as c:
        c.execute(t.images.update().values(stream_sha256=DIGEST, stream_size=9, stream_version=1))
    centre.report("n1", "ready", disk="ready", base="ready", stream=True)
    centre.report("n2", "fetching", disk="", base="fetching", stream=True)
    centre.report("n3", "ready", disk="ready", base="ready")  # it has extracted the base itself
    bases = {one: {"node-1": True, "node-2": False} for one in ("node-1", "node-2")}
    assert named(centre) == {BASE: bases}
    centre.report("n3", "fetching", disk="fetching")
    disks = {one: {"node-1": True, "node-3": False} for one in ("node-1", "node-3")}
    assert named(centre) == {BASE: bases, "qcow2": disks}
    with centre.store.write() as c:
        c.execute(t.images.update().values(stream_sha256=""))
    assert named(centre) == {"qcow2": disks}


def test_orders_of_streams() -> None:
    shared = Shared(DIGEST, BASE, 9, (Peer("node-a", "192.0.2.1", 8481, True),), SHA)
    assert messages.parse_peers(messages.peers([shared])) == [shared]
    for wrong in ({"image": ""}, {"image": "../x"}, {"format": "qcow2"}):
        raw = json.loads(messages.peers([shared]))
        raw["images"][0].update(wrong)
        with pytest.raises(BadMessage):
            messages.parse_peers(json.dumps(raw))


def test_what_nodes_of_an_earlier_version_report(tmp_path: Path) -> None:
    """They have the disk image and the base that they extracted."""
    with Service(tmp_path) as service:
        for state, size, expected in (
            (NodeImageState.FETCHING, 0, ("fetching", "")),
            (NodeImageState.READY, 7, ("ready", "ready")),
        ):
            service.record(pending.ImageOnNode(SHA, "node1", state, base_size=size))
            with service.store.read() as c:
                assert [(one["disk"], one["base"]) for one in image_views.on_nodes(c, SHA)] == [expected]
