"""What a node does when a sliver needs an image that it lacks: it fetches it, the operation waits, old images go.

libguestfs and btrfs are replaced here.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, SHA, Service, settings
from browsers import Browser
from tenants import Tenants

from slicemgr import names
from slicemgr.agent import garbage, node_images
from slicemgr.agent.image_source import Wanted
from slicemgr.agent.image_waits import ImageWaits
from slicemgr.agent.images import Importer, note_file
from slicemgr.agent.journal import Journal
from slicemgr.agent.node import Node
from slicemgr.agent.node_images import NodeImages
from slicemgr.drivers.importer.disk_image import DiskFacts, TreeFacts
from slicemgr.errors import Code, Failed, Refused
from slicemgr.model import Image, ImageState, NodeImageState, OperationState, Sliver
from slicemgr.policy.image_needs import Needs
from slicemgr.service.nodes import images as image_service
from slicemgr.service.nodes import membership
from slicemgr.service.views import images as image_views
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

SHAS = [f"{number:x}" * 64 for number in range(1, 5)]
BASE_ONLY = Needs(disk=False)
WAIT = 60.0  # seconds, for a machine with much load


class Place:
    """The service of one node, whose agent fetches images from a source that a test controls."""

    def __init__(self, service: Service, journal: Journal) -> None:
        self.service, self.journal = service, journal
        self.fetched: list[str] = []
        self.answers: list[Exception] = []
        self.let = threading.Event()
        self.let.set()
        self.free = 1 << 60
        config = service.config
        for directory in (config.node.pool / "bases", config.node.pool / "slivers"):
            directory.mkdir(parents=True)
        self.node = Node.open(config, service.store, journal, threading.Event())
        self.importer = importer = _Unpacker(config, self.node.pool, journal, self.node.machines, self.node.stop)
        self.images = NodeImages(self.node, importer, self)  # type: ignore[arg-type]
        self.waits = ImageWaits(self.images, journal)

    def fetch(self, wanted: Wanted, target: Path, progress: Callable[[str, int | None], None]) -> None:
        """As `Source.fetch`."""
        self.fetched.append(wanted.sha256)
        progress("fetch", 40)
        assert self.let.wait(WAIT)
        if self.answers:
            raise self.answers.pop(0)
        target.write_bytes(b"x" * wanted.size)

    def have(self, sha256: str) -> None:
        self.images.push(sha256, lambda step, percent: None)

    def states(self, sha256: str = SHA) -> list[tuple[str, str, str]]:
        assert self.journal.flush()
        with self.service.store.read() as c:
            return [(one["node"], one["state"], one["error"]) for one in image_views.on_nodes(c, sha256)]

    def slivers(self) -> dict[str, Sliver]:
        return {row.sliver.id: row.sliver for row in self.service.rows()}

    def operation(self) -> pending.Operation:
        with self.service.store.read() as c:
            return pending.pending_operations(c, "node1")[-1]

    def files(self) -> set[str]:
        return {one.name.partition(".")[0] for one in self.service.config.images_dir.iterdir()}

    def until(self, check: Callable[[], object]) -> None:
        waited = threading.Event()
        for _ in range(int(WAIT / 0.02)):
            if check():
                return
            waited.wait(0.02)
        pytest.fail("it did not happen")


class _Unpacker(Importer):
    """Extracts and receives nothing: the base is an empty folder. received: the names of files, with their content."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.received: list[tuple[str, bytes]] = []
        self.extracted = 0
        self.failures: list[Exception] = []

    def extract(self, sha256: str, format: str, disk: Path, *_: Any) -> tuple[DiskFacts, TreeFacts]:
        self.extracted += 1
        tree = TreeFacts("x86_64", "Debian 12", 7)
        names.base_dir(self._config.node.pool, sha256).mkdir()
        note_file(self._config, sha256).write_text(json.dumps(asdict(tree)))
        return DiskFacts(format, 1, 1), tree

    def receive(self, image: Image, file: Path, progress: Any) -> None:
        self.received.append((file.name, file.read_bytes()))
        if self.failures:
            raise self.failures.pop(0)
        names.base_dir(self._config.node.pool, image.sha256).mkdir()
        self.note(image.sha256, TreeFacts(image.arch, image.os, image.base_size))

    def use_disk(self, disk: Path, format: str) -> None:
        self.received.append((disk.name, b""))

    def delete_files(self, sha256: str) -> None:
        for one in self._config.images_dir.glob(f"{sha256}.*"):
            one.unlink()
        names.base_dir(self._config.node.pool, sha256).rmdir()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with Service(settings(tmp_path)) as service, Journal(service.store, "node1") as journal:
        made = Place(service, journal)
        monkeypatch.setattr(NodeImages, "_has_room", lambda *_: made.free >= len(made.files()))
        monkeypatch.setattr(type(made.node.pool), "wait_cleaned", lambda *_: True)
        yield made


def test_an_operation_waits_for_its_image(place: Place) -> None:
    """It shows how far the image is, and begins once it is there. A deletion does not wait."""
    id_ = place.service.create("exp", count=2)
    operation, slivers = place.operation(), place.slivers()
    place.let.clear()
    assert place.waits.holds_back(operation, slivers) and place.waits.absent(slivers.values()) == set(slivers)
    place.until(lambda: place.images.want(SHA, BASE_ONLY).percent == 40)
    assert place.waits.holds_back(operation, slivers)
    assert place.states() == [("node1", "fetching", "")]
    place.let.set()
    place.until(lambda: not place.waits.holds_back(operation, slivers))
    assert place.fetched == [SHA] and place.waits.absent(slivers.values()) == set()
    assert place.states() == [("node1", "ready", "")]
    with place.service.store.read() as c:
        (step,) = c.execute(sa.select(t.operation_steps).where(t.operation_steps.c.operation == id_)).all()
    assert (step.name, step.state) == ("image", OperationState.DONE)
    assert step.sliver == min(slivers), "other nodes have a step of their own"


def test_slivers_that_are_deleted_or_have_a_root_do_not_wait(place: Place) -> None:
    place.service.create("exp", count=2)
    first, second = place.slivers().values()
    names.root_dir(place.service.config.node.pool, first.id).mkdir(parents=True)
    assert not place.images.missing(first) and place.images.missing(second)
    with place.service.store.write() as c:
        c.execute(t.slivers.update().values(desired="absent"))
    assert not any(place.images.missing(one) for one in place.slivers().values())
    assert place.fetched == []


def test_one_machine_never_waits(place: Place) -> None:
    """The control: without a source, a lost base is the error that it was before."""
    place.service.create("exp")
    alone = NodeImages(place.node, place.images._importer, None)
    assert not any(alone.missing(one) for one in place.slivers().values())
    with pytest.raises(Refused, match="were lost"):
        alone.push(SHA, lambda step, percent: None)


def test_a_failure_is_shown_and_repeated(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_images, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(node_images._Attempt, "__init__", _quick(node_images._Attempt.__init__))
    place.service.create("exp")
    place.answers = [Failed("the service is busy"), Failed("the service is busy")]
    operation, slivers = place.operation(), place.slivers()
    place.let.clear()
    assert place.waits.holds_back(operation, slivers)
    place.let.set()
    place.until(lambda: place.states() == [("node1", "failed", "the service is busy")] or len(place.fetched) > 1)
    place.until(lambda: not place.waits.holds_back(operation, slivers))
    assert place.fetched == [SHA] * 3 and place.states() == [("node1", "ready", "")]


def _quick(init: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, *args: Any, **values: Any) -> None:
        init(self, *args, **{"pause": 0.05, **values})

    return made


def test_another_architecture_than_in_the_row_is_not_used(place: Place) -> None:
    with place.service.store.write() as c:
        c.execute(t.images.update().values(arch="aarch64"))
    with pytest.raises(Failed, match="x86_64 here, but aarch64"):
        place.have(SHA)
    assert place.files() == set() and place.states()[0][1] == "failed"


def test_old_images_go_when_room_is_short_but_none_in_use(place: Place) -> None:
    """The one that was not used for longest first. An image of a sliver without a row counts, by its record."""
    for number, sha256 in enumerate(SHAS):
        place.service.add_image(sha256, f"image-{number}")
        place.have(sha256)
        os.utime(note_file(place.service.config, sha256), (number, number))
    place.service.create("exp", image="image-0")
    place.images.used(SHAS[1])
    place.free = 2
    place.have(SHA)
    assert place.files() == {SHAS[0], SHAS[1], SHA}
    assert place.states(SHAS[2]) == [] and place.states(SHAS[1]) == [("node1", "ready", "")]
    lost = names.sliver_dir(place.service.config.node.pool, "abcdefgh-0")
    lost.mkdir()
    place.free = 0
    place.service.add_image("a" * 64, "more")
    place.have("a" * 64)
    assert SHAS[1] in place.files(), "a sliver whose image is unknown keeps all of them"
    lost.rmdir()
    place.service.add_image("b" * 64, "most")
    place.have("b" * 64)
    assert place.files() == {SHAS[0], "b" * 64}


def test_an_image_in_use_is_not_dropped(place: Place) -> None:
    place.have(SHA)
    place.service.create("exp")
    with pytest.raises(Refused, match="a sliver of this node uses") as refused:
        place.images.drop(SHA)
    assert refused.value.code is Code.CONFLICT and place.files() == {SHA}
    with place.service.store.write() as c:
        c.execute(t.slivers.delete())
        c.execute(t.operation_parts.update().values(state=OperationState.DONE))
    place.images.drop(SHA)
    assert place.files() == set() and place.states() == []


def test_fetched_images_are_no_leftovers(place: Place) -> None:
    """A node of a testbed does not have the rows of all images."""
    place.have(SHA)
    assert place.images.kept() == [SHA]
    assert NodeImages(place.node, place.images._importer, None).kept() == []
    assert garbage.Wanted.of((), (), place.images.kept()).images == {SHA} and not garbage.Wanted.of((), ()).images


def test_an_image_that_is_gone_or_is_being_deleted_is_not_fetched(place: Place) -> None:
    with pytest.raises(Refused, match="does not exist any more"):
        place.have("c" * 64)
    with place.service.store.write() as c:
        c.execute(t.images.update().values(state=ImageState.DELETING))
    with pytest.raises(Refused, match="does not exist any more"):
        place.have(SHA)
    assert place.fetched == []


# the rows


def joined(service: Service, name: str) -> None:
    """A row of a node that joined and whose agent has reported."""
    values = {"name": name, "identity": f"node-{name}", "state": "active", "address": "192.0.2.9", "facts": FACTS}
    with service.store.write() as c:
        c.execute(t.nodes.insert().values(**values, agent_seen_at=utcnow()))


def test_the_state_on_nodes_in_the_rows(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        joined(service, "node7")
        ready = pending.ImageOnNode(SHA, "node1", NodeImageState.READY, base_size=7)
        other = pending.ImageOnNode(SHA, "node7", NodeImageState.FAILED, "no room")
        service.record(ready, other, pending.ImageOnNode(SHA, "node9", NodeImageState.READY))
        service.record(pending.ImageOnNode("f" * 64, "node1", NodeImageState.READY))
        with service.store.read() as c:
            found = image_views.on_nodes(c, SHA)
            assert [(one["node"], one["state"], one["error"], one["base_size"]) for one in found] == [
                ("node1", "ready", "", 7),
                ("node7", "failed", "no room", 0),
            ]
            assert [one["name"] for one in image_views.of_node(c, "node7")] == ["debian-12"]
        service.record(pending.ImageOnNode(SHA, "node7", NodeImageState.READY, base_size=8))
        membership.rename(service.store, "node7", "node8", ADMIN)
        with service.store.read() as c:
            assert [one["node"] for one in image_views.on_nodes(c, SHA)] == ["node1", "node8"]
        service.record(pending.ImageOnNode(SHA, "node1", NodeImageState.ABSENT))
        service.create("exp")
        service.record(pending.ImageGone(SHA))
        assert service.count("image_nodes") == 0 and service.count("images") == 1


def test_who_imports_and_what_is_kept(tmp_path: Path) -> None:
    """Without an agent beside the service a node that joined imports, and the service keeps the file for the others."""
    with Service(tmp_path, facts=None) as service:
        store, config = service.store, service.config
        upload = image_service.Upload("new", "raw", "cd" * 32, 1)
        with pytest.raises(Refused, match="no node has a running agent"):
            image_service.check_upload(store, "new", "raw", ADMIN)
        joined(service, "node7")
        with store.write() as c:
            c.execute(t.nodes.insert().values(name="node6", identity="node-6", state="joined", address="", facts={}))

        def keep(target: Path) -> None:
            target.write_bytes(b"x")

        sha256, operation = image_service.register_upload(store, config, upload, ADMIN, keep)
        with store.read() as c:
            (row,) = pending.pending_operations(c, "node7")
        assert (row.id, row.kind, row.params["size"]) == (operation, "image-import", 1)
        service.record(pending.ImageSeen(sha256, ImageState.READY, arch="x86_64"))
        assert image_service.sweep_uploads(store, config) == []
        service.record(pending.OperationEnded(row.id, OperationState.DONE), node="node7")
        service.record(pending.ImageOnNode(sha256, "node7", NodeImageState.READY))
        service.record(pending.NodeSeen("node1", "192.0.2.1", FACTS))
        image_service.delete(store, config, "new", ADMIN)
        assert list(config.uploads_dir.iterdir()) == []
        with store.read() as c:
            asked = {name: [one.kind for one in pending.pending_operations(c, name)] for name in ("node1", "node7")}
        assert asked == {"node1": ["image-delete"], "node7": ["image-drop"]}


def test_push(tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        joined(tenants, "node7")
        admin = tenants.client("root")
        answer = admin.post("/api/v1/images/debian-12/push", json={"node": "node7"})
        assert (answer.status_code, answer.get_json()["operation"]["kind"]) == (202, "image-push")
        with tenants.store.read() as c:
            (row,) = pending.pending_operations(c, "node7")
        assert (row.image, row.image_name) == (SHA, "debian-12")
        assert admin.post("/api/v1/images/debian-12/push", json={"node": "nowhere"}).status_code == 404
        assert admin.post("/api/v1/images/debian-12/push", json={}).status_code == 422
        with tenants.store.write() as c:
            c.execute(t.nodes.update().where(t.nodes.c.name == "node7").values(state="joined"))
        assert admin.post("/api/v1/images/debian-12/push", json={"node": "node7"}).status_code == 409
        tenants.record(pending.ImageOnNode(SHA, "node7", NodeImageState.FETCHING))
        found = tenants.client("root").get("/api/v1/images/debian-12/nodes").get_json()["nodes"]
        assert [(one["node"], one["state"]) for one in found] == [("node7", "fetching")]
        tenants.record(pending.ImageOnNode(SHA, "node7", NodeImageState.FAILED, "<b>no room"))
        browser = Browser(tenants, "root")
        for path in ("/images/debian-12", "/nodes/node7"):
            page = browser.get(path).text
            assert "&lt;b&gt;no room" in page and "<b>no room" not in page and "node7" in page
        tenants.record(pending.ImageOnNode(SHA, "node7", NodeImageState.READY))
        assert "node7" not in browser.get("/images/debian-12").text, "on one node there is nothing to compare"
