"""After a restore: what was created since the backup keeps its address and ports, and an admin decides about it."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, KEY, SHA, Service

import slicemgr.store
from slicemgr import backup_commands, sliver_record
from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.model import Desired, ImageState, Sliver
from slicemgr.service.leases import leases
from slicemgr.service.nodes import images
from slicemgr.service.nodes.images import Upload
from slicemgr.service.restores import adoption, review
from slicemgr.service.restores.adoption import Wish
from slicemgr.service.slices import slices
from slicemgr.store import Store, archive, backup, incarnation, pending, tables
from slicemgr.store.updates import utcnow

REQUEST = {"type": "lxc", "image": "debian-12", "count": 2, "ssh_keys": [KEY]}


@dataclasses.dataclass
class World:
    """A service restored from a backup that has the slice `old`; `new` was created after it."""

    config: Config
    store: Store
    old: list[Sliver]
    new: list[Sliver]

    def record(self, *updates: pending.Update) -> None:
        with self.store.write() as c:
            pending.record(c, updates, "node1")

    def report(self, *unclaimed: pending.UnclaimedSliver, **found: Any) -> None:
        self.record(pending.HostSeen("node1", unclaimed, **found))

    def image_state(self) -> str:
        with self.store.read() as c:
            return str(c.scalar(sa.select(tables.images.c.state).where(tables.images.c.sha256 == SHA)))

    def report_new(self, state: str = "running", **found: Any) -> None:
        self.report(*(seen(one, state) for one in self.new), **found)

    def review(self) -> review.Review:
        with self.store.read() as c:
            return review.review(c)

    def rows(self) -> dict[str, Sliver]:
        with self.store.read() as c:
            return {row.sliver.id: row.sliver for row in pending.slivers(c, "node1")}


def seen(sliver: Sliver, state: str = "running", snapshots: tuple[str, ...] = ()) -> pending.UnclaimedSliver:
    return pending.UnclaimedSliver(sliver.id, state, sliver_record.to_json(sliver), snapshots)


def _restore(service: Service, folder: Path) -> list[Sliver]:
    """Restore the database of a service from a backup. Returns the sliver of `old` and those of `new`."""
    service.create("old")
    path = folder / "backup.tar"
    backup.save(service.store, path, "node1", {}, {}, secrets=False)
    service.create("new", count=2)
    slivers = [row.sliver for row in service.rows()]
    service.store.close()
    with archive.read(path) as source:
        backup.restore(service.config.store_url, source, replace=True)
    return slivers


@functools.cache
def _restored() -> tuple[bytes, list[Sliver]]:
    """SQLite's file after a restore, made once: the migrations in it take longer than a test."""
    with tempfile.TemporaryDirectory() as folder, Service(Path(folder)) as service:
        slivers = _restore(service, Path(folder))
        return service.database.read_bytes(), slivers


@pytest.fixture
def world(tmp_path: Path, each_store: str) -> Iterator[World]:
    with Service(tmp_path) as service:
        slivers = _restore(service, tmp_path) if each_store == "postgresql" else []
    if each_store == "sqlite":
        content, slivers = _restored()
        service.database.write_bytes(content)
    with slicemgr.store.open(service.config) as store:
        yield World(service.config, store, slivers[:1], slivers[1:])


def uses(slivers: list[Sliver]) -> set[object]:
    """What belongs to one sliver alone."""
    ports = {("port", port) for one in slivers for port in range(one.ports.first, one.ports.last + 1)}
    return (
        ports | {one.address for one in slivers} | {one.uid_first for one in slivers} | {one.serial for one in slivers}
    )


def create(world: World, name: str) -> list[Sliver]:
    slices.create(world.store, world.config, slices.Draft({**REQUEST, "name": name}), ADMIN)
    return [one for one in world.rows().values() if one.slice_name == name]


def test_without_a_hold_the_addresses_and_ports_are_given_again(world: World) -> None:
    """The control: what the hold prevents."""
    with world.store.write() as c:
        incarnation.end(c, utcnow())
    assert uses(create(world, "other")) == uses(world.new)


def test_an_adopted_slice_keeps_all_that_it_uses(world: World) -> None:
    world.report_new()
    assert [one.sliver for one in world.review().found] == [one.id for one in world.new]
    with pytest.raises(Refused, match="has no row") as caught:
        review.finish(world.store, world.config)
    assert caught.value.code is Code.CONFLICT
    assert adoption.adopt(world.store, world.config, Wish("new")) == "new"
    rows = world.rows()
    for one in world.new:
        assert rows[one.id] == dataclasses.replace(one, snapshots=())
    world.report_new()  # the agent has read the rows before
    assert world.review().found == ()
    world.report()
    review.finish(world.store, world.config)
    others = create(world, "others")
    assert len(others) == 2
    assert not uses(others) & uses([*world.new, *world.old])
    assert max(one.serial for one in world.new) < min(one.serial for one in others)
    slices.act(world.store, world.config, "new", "delete", ADMIN)


def test_the_project_owner_and_name_can_be_chosen(world: World) -> None:
    world.report_new("stopped")
    with world.store.write() as c:
        c.execute(tables.projects.insert().values(name="lab", created_at=utcnow()))
        c.execute(tables.users.insert().values(name="ada", admin=False, created_at=utcnow()))
    for wish, wrong in (
        (Wish("new", project="none"), "none"),
        (Wish("new", owner="nobody"), "there is no user 'nobody'"),
        (Wish("new", name="old"), "has a slice 'old'"),
        (Wish("new", name="x\ny"), "name: "),
        (Wish("what"), "no sliver of 'what' exists without a row"),
    ):
        with pytest.raises(Refused, match=wrong):
            adoption.adopt(world.store, world.config, wish)
    assert set(world.rows()) == {one.id for one in world.old}, "nothing half done stays"
    adoption.adopt(world.store, world.config, Wish(world.new[0].tag, project="lab", owner="ada", name="kept"))
    with world.store.read() as c:
        row = c.execute(sa.select(tables.slices).where(tables.slices.c.name == "kept")).one()
    assert (row.project, row.owner, row._mapping["count"]) == ("lab", "ada", 2)
    assert row.expires_at > utcnow() + timedelta(hours=1)
    assert {one.desired for one in world.rows().values() if one.slice_name == "kept"} == {Desired.STOPPED}


def test_a_released_slice_stays_until_its_agent_has_removed_it(world: World) -> None:
    world.report_new()
    assert world.new[0].id in review.release(world.store, world.config, "new")
    with world.store.read() as c:
        assert incarnation.released(c, "node1") == [one.id for one in world.new]
    with pytest.raises(Refused, match="was released"):
        adoption.adopt(world.store, world.config, Wish("new"))
    world.report_new()  # a report does not take a decision back
    assert all(one.released for one in world.review().found)
    with pytest.raises(Refused, match="has no row") as caught:
        review.finish(world.store, world.config)
    assert "wait until the agent has removed it" in caught.value.hint
    world.report()
    review.finish(world.store, world.config)
    with pytest.raises(Refused, match="not on hold"):
        world.review()


def test_not_before_each_node_has_reported(world: World) -> None:
    with pytest.raises(Refused, match="node node1 has not reported") as caught:
        review.finish(world.store, world.config)
    assert "--without node1" in caught.value.hint
    review.finish(world.store, world.config, ["node1"])


def test_a_slice_whose_roots_are_gone_is_stopped_and_not_made_again(world: World) -> None:
    world.report(lost=(world.old[0].id,))
    [lost] = world.review().lost
    assert (lost.name, lost.slivers, lost.count) == ("old", (world.old[0].id,), 1)
    review.finish(world.store, world.config)
    with world.store.read() as c:
        [row] = pending.slivers(c, "node1")
    assert row.sliver.desired is Desired.STOPPED
    assert "its root was lost" in row.error


def test_a_slice_whose_roots_are_gone_can_be_released(world: World) -> None:
    world.report(lost=(world.old[0].id,))
    assert "is deleted" in review.release(world.store, world.config, "old")
    assert world.rows() == {}
    with world.store.read() as c:
        assert c.scalar(sa.select(sa.func.count()).select_from(tables.ports)) == 0


def test_what_belongs_to_a_slice_without_a_root_is_free_after_its_release(world: World) -> None:
    """The slice `old` was deleted after the backup, and `new` got its address."""
    heir = dataclasses.replace(world.new[0], address=world.old[0].address, siblings=1)
    world.report(seen(heir), lost=(world.old[0].id,))
    with pytest.raises(Refused, match=f"belongs to {world.old[0].id} of slice old") as caught:
        adoption.adopt(world.store, world.config, Wish("new"))
    assert f"--release {world.old[0].tag}" in caught.value.hint
    review.release(world.store, world.config, world.old[0].tag)
    adoption.adopt(world.store, world.config, Wish("new"))
    assert world.rows()[heir.id].address == heir.address


def test_a_slice_without_a_readable_record_can_only_be_released(world: World) -> None:
    damaged = {**sliver_record.to_json(world.new[0]), "address": "nowhere"}
    for record in (None, damaged):
        world.report(pending.UnclaimedSliver(world.new[0].id, "running", record, ()))
        with pytest.raises(Refused, match="cannot be read"):
            adoption.adopt(world.store, world.config, Wish(world.new[0].tag))
    review.release(world.store, world.config, world.new[0].tag)


def test_the_hosts_newer_state_goes_into_the_rows(world: World) -> None:
    old = world.old[0]
    newer = {"generation": 3, "epoch": 1, "origin": f"{old.id}/abcdefgh", "inherited": 5, "disk": 1 << 40}
    world.report(changed={old.id: {**newer, "desired": "paused", "snapshots": ["abcdefgh"], "node": "other"}})
    review.finish(world.store, world.config)
    row = world.rows()[old.id]
    assert (row.generation, row.epoch, row.origin, row.inherited) == (3, 1, f"{old.id}/abcdefgh", 5)
    assert (row.limits.disk, row.desired) == (1 << 40, Desired.PAUSED)
    assert [(one.id, one.made) for one in row.snapshots] == [("abcdefgh", True)]


def test_snapshots_of_an_adopted_slice_are_kept(world: World) -> None:
    world.report(*(seen(one, snapshots=("abcdefgh",)) for one in world.new))
    adoption.adopt(world.store, world.config, Wish("new"))
    assert {one.id for sliver in world.new for one in world.rows()[sliver.id].snapshots} == {"abcdefgh"}
    with world.store.read() as c:
        assert c.scalar(sa.select(tables.snapshots.c.name)) == "restored-abcdefgh"


def test_an_image_that_was_imported_after_the_backup_belongs_to_the_project(world: World) -> None:
    image = "cd" * 32
    world.report(*(seen(dataclasses.replace(one, image=image)) for one in world.new))
    adoption.adopt(world.store, world.config, Wish("new", project="default"))
    with world.store.read() as c:
        row = c.execute(sa.select(tables.images).where(tables.images.c.sha256 == image)).one()
    assert (row.project, row.state, row.format) == ("default", ImageState.READY, "qcow2")


def test_leases_do_not_end_during_the_hold_and_not_at_once_after_it(world: World) -> None:
    with world.store.write() as c:
        c.execute(tables.slices.update().values(expires_at=utcnow() + timedelta(minutes=1)))
    late = utcnow() + timedelta(days=400)
    assert leases.expire(world.store, world.config, late) == 0
    world.report()
    review.finish(world.store, world.config)
    with world.store.read() as c:
        until = c.scalar(sa.select(tables.slices.c.expires_at))
    assert until is not None and until > utcnow() + review.LEASE - timedelta(minutes=5)


def test_reports_from_before_the_restore_and_after_the_hold_are_ignored(world: World) -> None:
    with world.store.write() as c:
        h = tables.host_reports
        c.execute(h.insert().values(node="node1", incarnation=0, at=utcnow(), found={"lost": []}))
    assert world.review().silent == ("node1",)
    world.report()
    assert world.review().silent == ()
    review.finish(world.store, world.config)
    world.report_new()
    with world.store.read() as c:
        assert review.found(c) == ()


def test_the_review_as_text(world: World) -> None:
    world.report_new(lost=(world.old[0].id,), images=(SHA,), changed={world.old[0].id: {"generation": 3}})
    text = "\n".join(backup_commands.lines(world.review()))
    first = world.new[0]
    for words in (
        "The testbed is on hold since the restore at",
        f"without a row: sliver {first.id} of slice new, project default, on node1, running, {first.address}, ports ",
        f"roots gone: slice old ({world.old[0].tag}) of project default: 1 of 1 roots are gone",
        "image debian-12: its files are gone; import it again",
        f"newer than its row: {world.old[0].id}: generation 3",
        "Next: `--adopt SLICE --project PROJECT` or `--release SLICE`",
    ):
        assert words in text


def test_an_image_without_its_files_can_be_imported_again(world: World) -> None:
    world.report(images=(SHA,))
    review.finish(world.store, world.config)
    with pytest.raises(Refused, match="image debian-12 has no files on the node; import it again"):
        create(world, "more")
    upload = Upload("debian-12", "qcow2", SHA, 5)
    _, operation = images.register_upload(world.store, world.config, upload, ADMIN, Path.touch)
    assert operation
    assert images.register_upload(world.store, world.config, upload, ADMIN, Path.touch) == (SHA, operation)
    world.record(pending.ImageGone(SHA))  # its import fails, and the slice `old` refers to the row
    assert world.image_state() == ImageState.MISSING
    images.register_upload(world.store, world.config, upload, ADMIN, Path.touch)
    world.record(pending.ImageSeen(SHA, ImageState.READY))
    assert len(create(world, "more")) == 2
