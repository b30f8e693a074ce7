"""Snapshots in the service, over both databases: requests, refusals, lists, and clones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, KEY, Service

from slicemgr.errors import Code, Refused
from slicemgr.model import GIB, MIB, Desired, OperationState, Phase, Role, Sliver, SliverSnapshot
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import OverQuota
from slicemgr.service.nodes import images
from slicemgr.service.projects import projects
from slicemgr.service.slices import slices, snapshots
from slicemgr.service.slices.snapshots import SliceReference
from slicemgr.service.views import events as event_views
from slicemgr.service.views import slices as slice_views
from slicemgr.service.views import snapshots as snapshot_views
from slicemgr.store import pending as work
from slicemgr.store import tables as t

pytestmark = pytest.mark.usefixtures("each_store")
EXP = SliceReference("exp", ADMIN)
STRANGER = Principal("carol", False, {"rival": Role.PI})
MEMBER = Principal("bob", False, {"default": Role.MEMBER})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        made.token()
        yield made


def slivers(service: Service, name: str = "exp") -> list[Sliver]:
    return [row.sliver for row in service.rows() if row.sliver.slice_name == name]


def make(service: Service, name: str = "exp", **fields: Any) -> None:
    """A slice that the agent has made."""
    service.create(name, **fields)
    service.record(
        *(work.SliverSeen(one.id, Phase.RUNNING, host_key="ssh-ed25519 AAAA") for one in slivers(service, name))
    )


def take(service: Service, name: str, size: int = 5 * MIB, at: SliceReference = EXP) -> str:
    """A snapshot that the agent has made; its id."""
    operation = snapshots.create(service.store, service.config, at, name)
    with service.store.read() as c:
        id_ = str(c.scalar(sa.select(t.snapshots.c.id).where(t.snapshots.c.name == name)))
    service.record(*(work.SnapshotMade(one.id, id_, size) for one in slivers(service, at.slice)))
    service.record(work.OperationEnded(operation, OperationState.DONE))
    return id_


def shown(service: Service, name: str | None = None) -> list[dict[str, Any]]:
    with service.store.read() as c:
        return snapshot_views.of_slice(c, slices.find(c, "exp", ADMIN).id, name)


def refused(code: Code, words: str | None, ask: Any) -> None:
    with pytest.raises(Refused, match=words) as error:
        ask()
    assert error.value.code is code


def test_what_the_agent_is_told_and_what_people_see(service: Service) -> None:
    make(service, count=2)
    operation = snapshots.create(service.store, service.config, EXP, "one")
    with service.store.read() as c:
        (pending,) = [one for one in work.pending_operations(c, "node1") if one.id == operation]
    first, second = slivers(service)
    (wanted,) = first.snapshots
    assert pending.kind == "snapshot" and pending.slivers == (first.id, second.id)
    assert pending.params["snapshot"] == wanted.id and not wanted.made
    (seen,) = shown(service)
    assert (seen["name"], seen["state"], seen["size"]) == ("one", "making", None)
    service.record(work.SnapshotMade(first.id, wanted.id, 3, "why"))
    assert shown(service)[0]["state"] == "making"
    service.record(work.SnapshotMade(second.id, wanted.id, 4))
    (seen,) = shown(service)
    assert (seen["state"], seen["size"], seen["user"]) == ("ready", 7, "admin")
    assert [(one["index"], one["size"], one["detail"]) for one in seen["slivers"]] == [(0, 3, "why"), (1, 4, None)]
    assert slivers(service)[0].snapshots == (SliverSnapshot(wanted.id, True, 3),)
    with service.store.read() as c:
        assert slice_views.slice(c, "exp")["snapshots"] == 1


def test_one_that_could_not_be_made_is_gone(service: Service) -> None:
    make(service)
    snapshots.create(service.store, service.config, EXP, "one")
    service.record(work.SnapshotGone(slivers(service)[0].snapshots[0].id))
    assert shown(service) == [] and slivers(service)[0].snapshots == ()
    assert service.count("sliver_snapshots") == 0


def test_names_numbers_and_states_that_are_refused(service: Service) -> None:
    store, config = service.store, service.config

    def ask(name: Any = "two") -> Any:
        return lambda: snapshots.create(store, config, EXP, name)

    refused(Code.NOT_FOUND, "no slice", ask())
    service.create()
    refused(Code.CONFLICT, "still being created", ask())
    service.record(*(work.SliverSeen(one.id, Phase.RUNNING, host_key="k") for one in slivers(service)))
    for name in ("", "Two", "-two", "two-", "t wo", "zwei\u0301", "x" * 41, None, 7, ["two"], "../two"):
        refused(Code.INVALID, None, ask(name))
    take(service, "one")
    refused(Code.CONFLICT, "already", ask("one"))
    for number in range(2, config.limits.snapshots_per_slice + 1):
        take(service, f"s{number}")
    refused(Code.CONFLICT, "which is the limit", ask())
    snapshots.delete(store, config, EXP, "one")
    take(service, "one")
    slices.act(store, config, "exp", "delete", ADMIN)
    refused(Code.CONFLICT, "being deleted", ask())


def test_not_two_at_once(service: Service) -> None:
    make(service)
    store, config = service.store, service.config
    operation = snapshots.create(store, config, EXP, "one")
    for work_on in (
        lambda: snapshots.create(store, config, EXP, "two"),
        lambda: snapshots.restore(store, config, EXP, "one"),
        lambda: snapshots.delete(store, config, EXP, "one"),
    ):
        refused(Code.CONFLICT, "is being created", work_on)
    refused(Code.CONFLICT, "still being created", lambda: snapshots.clone(store, config, EXP, "one", {"name": "twin"}))
    sliver = slivers(service)[0]
    service.record(
        work.SnapshotMade(sliver.id, sliver.snapshots[0].id, 1), work.OperationEnded(operation, OperationState.DONE)
    )
    take(service, "two")
    snapshots.restore(store, config, EXP, "one")
    refused(Code.CONFLICT, "is being restored", lambda: snapshots.delete(store, config, EXP, "one"))
    refused(Code.CONFLICT, "is being restored", lambda: snapshots.restore(store, config, EXP, "two"))
    snapshots.delete(store, config, EXP, "two")


def test_a_restore_wants_another_root_and_nothing_else(service: Service) -> None:
    make(service, count=2)
    id_ = take(service, "one")
    before = slivers(service)
    slices.act(service.store, service.config, "exp", "stop", ADMIN)
    snapshots.restore(service.store, service.config, EXP, "one")
    after = slivers(service)
    assert [one.epoch for one in after] == [1, 1]
    assert [one.origin for one in after] == [f"{one.id}/{id_}" for one in before]
    assert {one.desired for one in after} == {Desired.STOPPED}
    assert [one.generation for one in after] == [one.generation for one in before]


def test_a_clone_is_a_request_like_the_original_and_pays_for_its_beginning(service: Service) -> None:
    make(service, count=2, memory="256M", disk="1G", ports=7)
    id_ = take(service, "one", 100 * MIB)
    snapshots.clone(service.store, service.config, EXP, "one", {"name": "twin"})
    original, twin = slivers(service), slivers(service, "twin")
    assert [one.origin for one in twin] == [f"{one.id}/{id_}" for one in original]
    assert {one.inherited for one in twin} == {100 * MIB} and {one.epoch for one in twin} == {0}
    for same in ("type", "image", "limits", "ssh_keys", "siblings"):
        assert {getattr(one, same) for one in twin} == {getattr(one, same) for one in original}
    for own in ("address", "uid_first", "id", "serial"):
        assert not {getattr(one, own) for one in twin} & {getattr(one, own) for one in original}
    assert {one.ports.count for one in twin} == {7} and {one.host_key for one in twin} == {""}
    assert all(one.snapshots == () for one in twin)
    with service.store.read() as c:
        assert projects.used(c, "default").disk == 4 * GIB, "two of each, as if they were copies"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"name": "exp"}, "name"),
        ({"name": "Twin"}, "name"),
        ({"name": "twin", "disk": "110M"}, "disk"),
        ({"name": "twin", "disk": "little"}, "disk"),
        ({"name": "twin", "lease": "1000d"}, "lease"),
        ({"name": "twin", "count": 3}, "count"),
        ({"name": "twin", "ssh_keys": "key"}, "ssh_keys"),
        ({"name": "twin", "ssh_keys": ["key"]}, "ssh_keys"),
    ],
)
def test_wishes_for_a_clone_that_are_refused(service: Service, raw: dict[str, Any], field: str) -> None:
    make(service)
    take(service, "one", 100 * MIB)
    before = service.content()
    with pytest.raises(Refused) as error:
        snapshots.clone(service.store, service.config, EXP, "one", raw)
    assert error.value.field == field
    assert service.content() == before


def test_a_clone_beyond_the_quota_and_with_wishes(service: Service) -> None:
    make(service)
    take(service, "one")
    projects.change(service.store, "default", {"quota": {"slices": 1}}, ADMIN)
    with pytest.raises(OverQuota) as error:
        snapshots.clone(service.store, service.config, EXP, "one", {"name": "twin"})
    assert "reason" not in error.value.hint
    projects.change(service.store, "default", {"quota": {"slices": 2}}, ADMIN)
    wishes = {"name": "twin", "disk": "8G", "lease": "1d", "ssh_keys": [KEY]}
    snapshots.clone(service.store, service.config, EXP, "one", wishes)
    (twin,) = slivers(service, "twin")
    assert twin.limits.disk == 8 * GIB and twin.ssh_keys == (KEY,)


def test_needed_only_until_the_clones_root_is_made(service: Service) -> None:
    """Its host key is the first thing that follows the root."""
    make(service)
    take(service, "one")
    take(service, "two")
    store, config = service.store, service.config
    snapshots.clone(store, config, EXP, "one", {"name": "twin"})
    refused(Code.CONFLICT, "twin is being created", lambda: snapshots.delete(store, config, EXP, "one"))
    refused(Code.CONFLICT, "twin is being created", lambda: slices.act(store, config, "exp", "delete", ADMIN))
    snapshots.delete(store, config, EXP, "two")
    (twin,) = slivers(service, "twin")
    service.record(work.SliverSeen(twin.id, Phase.PENDING, host_key="ssh-ed25519 BBBB"))
    snapshots.delete(store, config, EXP, "one")
    slices.act(store, config, "exp", "delete", ADMIN)
    assert slivers(service, "twin")[0].origin, "what its root began as is remembered"


def test_they_go_with_their_slice_and_hold_its_image(service: Service) -> None:
    make(service)
    take(service, "one")
    refused(
        Code.CONFLICT, "in use", lambda: images.delete(service.store, service.config, slivers(service)[0].image, ADMIN)
    )
    service.record(*(work.SliverGone(one.id) for one in slivers(service)))
    assert [service.count(name) for name in ("slices", "snapshots", "sliver_snapshots")] == [0, 0, 0]


@pytest.mark.parametrize("by", [STRANGER, MEMBER], ids=["stranger", "member"])
def test_others_look_or_do_not_even_know(service: Service, by: Principal) -> None:
    make(service)
    take(service, "one")
    at, store, config = SliceReference("exp", by, "default"), service.store, service.config
    code = Code.NOT_FOUND if by is STRANGER else Code.DENIED
    for ask in (
        lambda: snapshots.create(store, config, at, "two"),
        lambda: snapshots.delete(store, config, at, "one"),
        lambda: snapshots.restore(store, config, at, "one"),
        lambda: snapshots.clone(store, config, at, "one", {"name": "twin"}),
    ):
        refused(code, None, ask)


def test_every_change_is_an_event_and_the_list_costs_two_queries(service: Service) -> None:
    make(service)
    for number in range(3):
        take(service, f"s{number}")
    snapshots.clone(service.store, service.config, EXP, "s1", {"name": "twin"})
    snapshots.restore(service.store, service.config, EXP, "s1")
    snapshots.delete(service.store, service.config, EXP, "s2")
    with service.store.read() as c:
        events = [(one["action"], one["detail"], one["slice"]) for one in event_views.events(c, slice="exp")]
    assert events[:3] == [
        ("snapshot delete", "s2", "exp"),
        ("snapshot restore", "s1", "exp"),
        ("snapshot clone", "s1 into twin", "exp"),
    ]
    statements: list[str] = []
    sa.event.listen(service.store.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with service.store.read() as c:
        id_ = slices.find(c, "exp", ADMIN).id
        statements.clear()
        assert [one["name"] for one in snapshot_views.of_slice(c, id_)] == ["s1", "s0"]
    assert len(statements) == 2
