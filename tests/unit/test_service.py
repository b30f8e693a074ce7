"""Use cases on a real database: atomicity, no double allocation, and reasons of refusals."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, PATIENT, SHA, request, service, settings

from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.model import Desired, ImageState, OperationState, Phase
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.leases import leases
from slicemgr.service.leases.clock import Uptime
from slicemgr.service.nodes import images, nodes
from slicemgr.service.slices import slices
from slicemgr.service.views import images as image_views
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import slices as slice_views
from slicemgr.store import Store, pending, updates
from slicemgr.store import open as open_store
from slicemgr.store import tables as t

pytestmark = pytest.mark.usefixtures("both_stores")

ALL = (t.slices, t.slivers, t.ports, t.operations, t.operation_parts, t.operation_slivers, t.events)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return settings(tmp_path)


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    with service(config) as opened:
        yield opened


def create(store: Store, config: Config, name: str = "exp", **more: Any) -> str:
    return slices.create(store, config, slices.Draft(request(name, **more)), ADMIN).operation


def counts(store: Store) -> list[int]:
    with store.read() as c:
        return [c.scalar(sa.select(sa.func.count()).select_from(table)) or 0 for table in ALL]


def settle(store: Store, phase: Phase) -> None:
    """As if the agent had done it."""
    with store.write() as c:
        pending.record(
            c, [updates.SliverSeen(id_, phase) for id_ in c.scalars(sa.select(t.slivers.c.id)).all()], "node1"
        )


def test_fifty_creates_at_once_for_the_last_ten_blocks(tmp_path: Path) -> None:
    config = settings(tmp_path, ports_first=20000, ports_last=20000 + 10 * 20 - 1)
    config = replace(config, store=replace(config.store, lock_timeout=PATIENT.lock_timeout))

    def attempt(store: Store, number: int) -> Refused | None:
        try:
            create(store, config, f"exp-{number}")
        except Refused as error:
            return error
        return None

    with service(config) as store, ExitStack() as others:
        stores = [others.enter_context(open_store(config)) for _ in range(5)]  # as five processes would have
        with ThreadPoolExecutor(50) as pool:
            results = list(pool.map(lambda number: attempt(stores[number % 5], number), range(50)))
        refused = [one for one in results if one is not None]
        assert len(results) - len(refused) == 10
        assert {one.code for one in refused} == {Code.QUOTA}
        assert all("port" in one.message for one in refused)
        with store.read() as c:
            rows = c.execute(sa.select(t.slivers)).all()
            ports = list(c.scalars(sa.select(t.ports.c.port)))
        assert len(rows) == 10
        for column in ("address", "uid_first", "port_first"):
            assert len({getattr(row, column) for row in rows}) == 10
        assert sorted(ports) == list(range(20000, 20200))
        assert counts(store)[0] == counts(store)[3] == counts(store)[5] == 10


@pytest.mark.parametrize(
    ("network", "more", "field"),
    [
        ({"ports_last": 10059}, {}, "count"),
        ({"addresses": "10.77.0.0/30"}, {}, "count"),
        ({}, {"memory": "7G", "count": 40}, "memory"),
        ({}, {"memory": "9G", "count": 1}, "memory"),
        ({}, {"disk": "60G", "count": 100}, "disk"),
        ({}, {"disk": "65G", "count": 1}, "disk"),
    ],
)
def test_all_or_nothing(tmp_path: Path, network: dict[str, Any], more: dict[str, Any], field: str) -> None:
    config = settings(tmp_path, **network)
    with service(config) as store:
        before = counts(store)
        with pytest.raises(Refused) as caught:
            create(store, config, **{"count": 4, **more})
        assert caught.value.code is Code.QUOTA
        assert caught.value.field in (field, "ports" if field == "count" else field)
        assert counts(store) == before


@pytest.mark.parametrize(
    ("more", "code", "field", "message"),
    [
        ({"image": "nope"}, Code.INVALID, "image", "there is no image 'nope'"),
        ({"node": "nope"}, Code.INVALID, "node", "'nope' is unknown"),
        ({"type": "kvm"}, Code.INVALID, "type", "cannot run kvm"),
        ({"cpu": 5}, Code.INVALID, "cpu", "exceed the capacity of node node1"),
        ({"io_weight": 5}, Code.INVALID, "io_weight", "does not support"),
        ({"name": "taken"}, Code.CONFLICT, "name", "there is already a slice 'taken'"),
    ],
)
def test_what_the_rows_forbid(
    store: Store, config: Config, more: dict[str, Any], code: Code, field: str, message: str
) -> None:
    create(store, config, "taken")
    before = counts(store)
    with pytest.raises(Refused) as caught:
        create(store, config, **more)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert message in caught.value.message
    assert counts(store) == before


def test_an_image_that_is_not_ready_makes_no_slice(store: Store, config: Config) -> None:
    with store.write() as c:
        c.execute(t.images.update().values(state=ImageState.UPLOADED))
    with pytest.raises(Refused, match="still being imported"):
        create(store, config)
    assert counts(store) == [0] * len(ALL)


def test_without_a_node_nothing_is_made(store: Store, config: Config) -> None:
    with store.write() as c:
        c.execute(t.nodes.delete())
    with pytest.raises(Refused) as caught:
        create(store, config)
    assert caught.value.code is Code.UNAVAILABLE


def test_a_stranger_sees_no_project_and_runs_nothing(store: Store, config: Config) -> None:
    someone = Principal("someone", False)
    with pytest.raises(Refused) as caught:
        slices.create(store, config, slices.Draft(request(project="default")), someone)
    assert caught.value.code is Code.NOT_FOUND
    with pytest.raises(Refused, match="someone may not create slices or images"):
        slices.create(store, config, slices.Draft(request()), someone)
    with pytest.raises(Refused, match="may not"):
        nodes.request(store, config, "node1", "gc", someone, {})
    assert counts(store) == [0] * len(ALL)


def test_actions_and_states(store: Store, config: Config) -> None:
    create(store, config, count=2)

    def state() -> str:
        return str(shown(store)["state"])

    assert state() == "creating"
    settle(store, Phase.RUNNING)
    assert state() == "running"
    with pytest.raises(Refused, match="is not paused"):
        slices.act(store, config, "exp", "resume", ADMIN)
    slices.act(store, config, "exp", "pause", ADMIN)
    assert state() == "pausing"
    settle(store, Phase.PAUSED)
    with pytest.raises(Refused, match="is not running"):
        slices.act(store, config, "exp", "pause", ADMIN)
    slices.act(store, config, "exp", "stop", ADMIN)
    settle(store, Phase.STOPPED)
    assert state() == "stopped"
    slices.act(store, config, "exp", "restart", ADMIN)
    with store.read() as c:
        assert set(c.scalars(sa.select(t.slivers.c.generation))) == {1}
    slices.act(store, config, "exp", "delete", ADMIN)
    assert state() == "deleting"
    for action in slices.ACTIONS:
        with pytest.raises(Refused) as caught:
            slices.act(store, config, "exp", action, ADMIN)
        assert caught.value.code is Code.CONFLICT
    with pytest.raises(Refused, match="is being deleted"):
        slices.renew(store, config, "exp", timedelta(days=1), ADMIN)
    with pytest.raises(Refused) as caught:
        slices.act(store, config, "nope", "stop", ADMIN)
    assert caught.value.code is Code.NOT_FOUND


def shown(store: Store, name: str = "exp") -> dict[str, Any]:
    with store.read() as c:
        return slice_views.slice(c, name)


def test_what_was_freed_goes_to_the_next_only_later(store: Store, config: Config) -> None:
    create(store, config, "one")
    first = shown(store, "one")["slivers"][0]
    with store.write() as c:
        pending.record(c, [updates.SliverGone(first["id"])], "node1")
    create(store, config, "two")
    second = shown(store, "two")["slivers"][0]
    assert first["address"] != second["address"] and first["ports"] != second["ports"]


def test_a_renewal_is_cut_to_policy(store: Store, config: Config) -> None:
    create(store, config)
    slices.renew(store, config, "exp", timedelta(days=1000), ADMIN)
    with store.read() as c:
        end = c.scalar(sa.select(t.slices.c.expires_at))
    assert end is not None and abs(end - datetime.now(UTC) - config.lease.longest) < timedelta(hours=1)


def test_a_lease_ends_by_stopping_then_deleting(store: Store, config: Config) -> None:
    create(store, config, lease="1h")
    now = datetime.now(UTC)

    def expire(later: timedelta) -> int:
        return leases.expire(store, config, now + later, Uptime("boot", later.total_seconds()))

    assert expire(timedelta(0)) == 0
    assert expire(timedelta(hours=2)) == 1
    with pytest.raises(Refused, match="lease of slice exp has ended"):
        slices.act(store, config, "exp", "start", ADMIN)
    assert expire(timedelta(hours=3)) == 0
    with store.read() as c:
        assert set(c.scalars(sa.select(t.slivers.c.desired))) == {Desired.STOPPED}
    assert expire(timedelta(hours=2) + config.lease.grace) == 1
    assert shown(store)["state"] == "deleting"


def upload(config: Config, name: str = "new", sha256: str = "cd" * 32) -> tuple[images.Upload, Path]:
    path = config.uploads_dir / f"incoming-{name}"
    path.write_bytes(b"x")
    return images.Upload(name, "raw", sha256, 1), path


def test_an_upload_is_kept_or_nothing_is(store: Store, config: Config) -> None:
    one, path = upload(config)
    sha256, operation = images.register_upload(store, config, one, ADMIN, lambda to: (path.rename(to), None)[1])
    assert operation is not None and sha256 == one.sha256
    assert [each.name for each in config.uploads_dir.iterdir()] == [f"{sha256}.raw"]
    other, path = upload(config, "debian-12", "ef" * 32)
    with pytest.raises(Refused) as caught:
        images.register_upload(store, config, other, ADMIN, lambda to: (path.rename(to), None)[1])
    assert (caught.value.code, caught.value.field) == (Code.CONFLICT, "name")
    assert images.sweep_uploads(store, config) == [path]
    with store.read() as c:
        assert {each["name"] for each in image_views.images(c)} == {"debian-12", "new"}


def test_an_upload_that_cannot_be_kept_leaves_no_row(store: Store, config: Config) -> None:
    one, _ = upload(config)

    def breaks(_: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        images.register_upload(store, config, one, ADMIN, breaks)
    with store.read() as c:
        assert [each["name"] for each in image_views.images(c)] == ["debian-12"]
        assert operation_views.operations(c) == []


def test_the_same_file_again_is_the_same_image(store: Store, config: Config) -> None:
    again = images.Upload("another", "qcow2", SHA, 1000)
    assert images.register_upload(store, config, again, ADMIN, lambda _: pytest.fail("kept")) == (SHA, None)


def test_an_image_in_use_stays(store: Store, config: Config) -> None:
    create(store, config)
    with pytest.raises(Refused) as caught:
        images.delete(store, config, "debian-12", ADMIN)
    assert caught.value.code is Code.CONFLICT and "exp" in caught.value.hint
    with store.read() as c:
        assert image_views.images(c, images.find(c, SHA[:8], ADMIN).sha256)[0]["used_by"] == 1
    with pytest.raises(Refused) as caught, store.read() as c:
        images.find(c, SHA[:7], ADMIN)
    assert caught.value.code is Code.NOT_FOUND


def test_an_unused_image_is_deleted_once(store: Store, config: Config) -> None:
    images.delete(store, config, "debian-12", ADMIN)
    with pytest.raises(Refused, match="already being deleted"):
        images.delete(store, config, "debian-12", ADMIN)


def test_a_request_to_an_unknown_node(store: Store, config: Config) -> None:
    with pytest.raises(Refused) as caught:
        nodes.request(store, config, "nope", "doctor", ADMIN, {})
    assert (caught.value.code, caught.value.field) == (Code.NOT_FOUND, "node")


def test_the_local_admins_token(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "run" / "client.json"
    authentication.ensure_local_admin(store, path, "http://x")
    first = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    authentication.ensure_local_admin(store, path, "http://x")
    assert path.read_text() == first
    path.write_text("{broken")
    authentication.ensure_local_admin(store, path, "http://x")
    assert path.read_text() != first
    with store.read() as c:
        assert c.scalar(sa.select(sa.func.count()).select_from(t.tokens)) == 1
    with pytest.raises(Refused) as caught:
        authentication.authenticate(store, "wrong")
    assert caught.value.code is Code.UNAUTHENTICATED


def test_an_operation_is_shown_with_its_steps(store: Store, config: Config) -> None:
    id_ = create(store, config, count=2)
    with store.write() as c:
        sliver = shown(store)["slivers"][0]["id"]
        pending.record(
            c,
            [
                updates.OperationStarted(id_),
                updates.StepSeen(id_, sliver, "root", OperationState.RUNNING, percent=50),
                updates.SliverDone(id_, sliver, OperationState.DONE),
                updates.OperationEnded(id_, OperationState.FAILED, "broke", "mend it"),
                updates.OperationEnded(id_, OperationState.DONE),
            ],
            "node1",
        )
    with store.read() as c:
        found = operation_views.operation(c, id_)
    assert (found["state"], found["error"], found["hint"]) == ("failed", "broke", "mend it")
    assert found["progress"] == {"done": 1, "total": 2}
    assert [step["percent"] for step in found["steps"]] == [50]


def test_a_step_tells_when_it_began_and_how_long_it_took(store: Store, config: Config) -> None:
    id_ = create(store, config)
    with store.read() as c:
        asked = c.scalar(sa.select(t.operations.c.created_at).where(t.operations.c.id == id_))
    assert asked is not None
    begun, ended = asked + timedelta(seconds=0.25), asked + timedelta(seconds=1.75)
    with store.write() as c:
        root = (id_, "a-0", "root")
        pending.record(
            c,
            [
                updates.StepSeen(*root, OperationState.RUNNING, at=begun),
                updates.StepSeen(*root, OperationState.DONE, at=ended),
                updates.StepSeen(id_, "a-0", "domain", OperationState.RUNNING, at=ended),
            ],
            "node1",
        )
    with store.read() as c:
        found = operation_views.operation(c, id_)["steps"]
    assert [(one["began"], one["seconds"]) for one in found] == [(0.25, 1.5), (1.75, None)]


@pytest.mark.parametrize(
    ("states", "word"),
    [({"running"}, "running"), ({"running", "stopped"}, "partial"), ({"running", "creating"}, "creating")],
)
def test_one_word_for_a_slice(states: set[str], word: str) -> None:
    assert slice_views.slice_state(states) == word


@pytest.mark.parametrize("desired", Desired)
@pytest.mark.parametrize("phase", Phase)
def test_every_sliver_has_a_word(desired: Desired, phase: Phase) -> None:
    word = slice_views.sliver_state(desired, phase)
    assert word.isalpha()
    assert (word == "deleting") == (desired is Desired.ABSENT)
