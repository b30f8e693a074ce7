"""Spares: who gets one, who does not, and when they are made and discarded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, IMAGE, KEY, SHA, Service
from centre_and_node import LOCAL, NODE, World, move
from sqlalchemy.engine import Connection

from slicemgr import config as settings
from slicemgr.config import SparesConfig
from slicemgr.errors import Refused
from slicemgr.link import inventory
from slicemgr.model import Desired, ImageState, OperationState, Phase
from slicemgr.policy import quota
from slicemgr.service.nodes import evacuation, images, membership
from slicemgr.service.slices import slices, spares
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import slices as slice_views
from slicemgr.store import Store, allocations, pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


def spare_ids(service: Service, *, absent: bool = False) -> list[str]:
    return [
        row.sliver.id for row in service.rows() if row.sliver.spare and (row.sliver.desired is Desired.ABSENT) is absent
    ]


def facts(c: Connection) -> dict[str, Any]:
    return dict(c.scalar(sa.select(t.nodes.c.facts)) or {})


def kinds_of(service: Service) -> list[str]:
    with service.store.read() as c:
        return [one.kind for one in pending.pending_operations(c, "node1")]


def shown(service: Service, name: str) -> dict[str, Any]:
    with service.store.read() as c:
        return slice_views.slice(c, name)


def test_a_create_takes_the_spare_with_all_that_it_has(service: Service) -> None:
    spare = service.add_spare()
    before = next(row.sliver for row in service.rows())
    operation = service.create("exp")
    (row,) = service.rows()
    taken = row.sliver
    same = ("id", "serial", "tag", "address", "ports", "uid_first", "host_key", "limits", "image", "boot")
    assert [getattr(taken, name) for name in same] == [getattr(before, name) for name in same]
    assert (taken.id, taken.spare, taken.slice_name, taken.hostname) == (spare, False, "exp", "exp-0")
    assert (taken.ssh_keys, row.phase) == ((KEY,), Phase.PENDING)
    assert shown(service, "exp")["warm"] is True
    assert shown(service, "exp")["slivers"][0]["ssh"]["host_key"] == KEY, "a client knows the host key at once"
    with service.store.read() as c:
        (made,) = [one for one in pending.pending_operations(c, "node1") if one.id == operation]
        event = c.scalar(sa.select(t.events.c.detail).where(t.events.c.action == "create"))
    assert (made.kind, made.slivers) == ("create", (spare,))
    assert event == f"1 × lxc of {IMAGE}, by taking a spare"


def test_the_second_create_makes_a_sliver(service: Service) -> None:
    spare = service.add_spare()
    service.create("one")
    service.create("two")
    assert [row.sliver.id == spare for row in service.rows()] == [True, False]
    assert [shown(service, name)["warm"] for name in ("one", "two")] == [True, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 2},
        {"ports": 3},
        {"io_weight": 100},
        {"memory_soft": "128M"},
        {"user_data": "#!/bin/sh\n"},
        {"warm": False},
    ],
    ids=str,
)
def test_what_a_running_sliver_cannot_take_over_is_an_ordinary_create(service: Service, fields: dict[str, Any]) -> None:
    with service.store.write() as c:  # a node that can limit input and output
        c.execute(t.nodes.update().values(facts={**facts(c), "io_weight": True}))
    spare = service.add_spare()
    service.create("exp", **fields)
    assert spare_ids(service) == [spare]
    assert shown(service, "exp")["warm"] is False


def test_disk_and_rates_are_taken_over(service: Service) -> None:
    with service.store.write() as c:
        c.execute(t.nodes.update().values(facts={**facts(c), "net_rate": True}))
    spare = service.add_spare()
    service.create("exp", disk="8G", net_in="10Mbit")
    (row,) = service.rows()
    assert (row.sliver.id, row.sliver.limits.disk, row.sliver.limits.net_in) == (spare, 8 << 30, 10_000_000)


@pytest.mark.parametrize(
    "fields",
    [
        *({"memory": "256M"}, {"cpu": 2}, {"pids": 100}, {"cpu_shares": 512}),
        *({"memory_guarantee": 1 << 20}, {"memory_weight": 7}),
    ],
    ids=str,
)
def test_a_container_takes_over_limits_of_its_groups(service: Service, fields: dict[str, Any]) -> None:
    spare = service.add_spare()
    service.create("exp", **fields)
    (row,) = service.rows()
    ((name, value),) = fields.items()
    assert row.sliver.id == spare
    assert getattr(row.sliver.limits, name) == {"256M": 256 << 20}.get(value, value)


@pytest.mark.parametrize("fields", [{"memory": "256M"}, {"cpu": 2}], ids=str)
def test_a_machine_does_not_take_over_limits(tmp_path: Path, fields: dict[str, Any]) -> None:
    kinds = {**FACTS, "kinds": {"lxc": True, "kvm": True}}
    with Service(tmp_path, kinds, spares=SparesConfig(keep=("kvm",))) as service:
        spare = service.add_spare()
        service.create("exp", type="kvm", **fields)
        assert spare_ids(service) == [spare]
        service.create("same", type="kvm")
        assert spare_ids(service) == []


def test_a_spare_that_uses_much_is_not_made_smaller(service: Service) -> None:
    spare = service.add_spare()
    with service.store.write() as c:
        c.execute(t.slivers.update().values(usage_working=100 << 20))
    service.create("small", memory="150M")
    assert spare_ids(service) == [spare]
    service.create("larger", memory="200M")
    assert spare_ids(service) == []


def test_the_spare_that_differs_least_is_taken(tmp_path: Path) -> None:
    keep = SparesConfig(keep=("lxc memory=1G", "lxc memory=512M"))
    with Service(tmp_path, spares=keep) as service:
        spares.fill(service.store, service.config)
        ids = {row.sliver.limits.memory >> 20: row.sliver.id for row in service.rows()}
        service.record(*(pending.SliverSeen(one, Phase.RUNNING, host_key=KEY) for one in ids.values()))
        service.create("exp", memory="512M")
        assert spare_ids(service) == [ids[1024]]
        service.create("more", memory="2G")
        assert spare_ids(service) == []


@pytest.mark.parametrize(
    ("fields", "field"), [({"memory": "6G"}, "memory"), ({"cpu": 64}, "cpu"), ({"net_in": "1Mbit"}, "net_in")]
)
def test_a_node_without_room_or_means_gives_no_spare(service: Service, fields: dict[str, Any], field: str) -> None:
    spare = service.add_spare()
    if field == "memory":  # committed
        with service.store.write() as c:
            c.execute(t.allocations.update().values(memory=1 << 50))
    with pytest.raises(Refused) as refused:
        service.create("exp", **fields)
    assert refused.value.field == field
    assert spare_ids(service) == [spare]


@pytest.mark.parametrize("columns", [{"phase": Phase.PENDING}, {"phase": Phase.FAILED}, {"desired": Desired.ABSENT}])
def test_a_spare_that_is_not_ready_is_not_taken(service: Service, columns: dict[str, Any]) -> None:
    service.add_spare()
    with service.store.write() as c:
        c.execute(t.slivers.update().values(**columns))
    service.create("exp")
    assert shown(service, "exp")["warm"] is False


@pytest.mark.parametrize(
    "columns",
    [
        {"drained": True},
        {"silent_since": utcnow()},
        {"state": "joined"},
        {"agent_seen_at": None},
        {"agent_seen_at": utcnow() - timedelta(minutes=2)},
    ],
    ids=str,
)
def test_a_node_that_takes_no_slivers_gives_no_spare(service: Service, columns: dict[str, Any]) -> None:
    service.add_spare()
    with service.store.write() as c:
        c.execute(t.nodes.update().values(**columns))
    with service.store.read() as c:
        spec = spares.kinds(c, service.config)[0].spec
        assert list(spares.find(c, service.config, spec, SHA)) == []


@pytest.mark.parametrize("where", [{"node": "node2"}, {"site": "elsewhere"}])
def test_a_spare_elsewhere_is_not_taken(service: Service, where: dict[str, str]) -> None:
    spare = service.add_spare()
    with pytest.raises(Refused):
        service.create("exp", **where)
    assert spare_ids(service) == [spare]


def test_spares_use_no_quota_and_no_counter(service: Service) -> None:
    service.add_spare()
    with service.store.read() as c:
        assert allocations.differences(c) == {}
        (node,) = node_views.nodes(c, service.config.network)
    assert (node["used"]["slivers"], node["used"]["spares"]) == (0, 1)
    service.create("exp")
    with service.store.read() as c:
        assert allocations.differences(c) == {}
        (node,) = node_views.nodes(c, service.config.network)
    assert (node["used"]["slivers"], node["used"]["spares"]) == (1, 0)


def test_the_quota_is_checked_for_a_spare_too(service: Service) -> None:
    spare = service.add_spare()
    draft = slices.Draft(service.request("exp"), allowed=quota.Quota(slivers=0))
    with pytest.raises(quota.OverQuota):
        slices.create(service.store, service.config, draft, ADMIN)
    assert spare_ids(service) == [spare]


def test_a_spare_that_was_taken_meanwhile_is_refused(service: Service) -> None:
    spare = service.add_spare()
    with service.store.write() as c, pytest.raises(Refused, match="a concurrent request took the sliver"):
        c.execute(t.spares.delete())
        spares.take(c, spare, "x", spares.kinds(c, service.config)[0].spec, utcnow())


def test_the_pool_fills_again_and_no_further(service: Service) -> None:
    service.add_spare()
    spares.fill(service.store, service.config)
    assert len(spare_ids(service)) == 1 and kinds_of(service) == []
    service.create("exp")
    spares.fill(service.store, service.config)
    assert spare_ids(service) == [], "requests go first"
    service.end_operations()
    spares.fill(service.store, service.config)
    assert len(spare_ids(service)) == 1 and kinds_of(service) == ["spare"]


def with_spares(service: Service, *keep: str, **more: Any) -> None:
    service.config = replace(service.config, spares=SparesConfig(keep, **more))


def test_a_few_are_made_at_a_time(service: Service) -> None:
    with_spares(service, "lxc count=6")
    spares.fill(service.store, service.config)
    assert len(spare_ids(service)) == 4
    service.end_operations()
    spares.fill(service.store, service.config)
    assert len(spare_ids(service)) == 6


@pytest.mark.parametrize("keep", [(), ("lxc memory=256M",), ("lxc image=other",)])
def test_what_the_settings_do_not_want_is_discarded(service: Service, keep: tuple[str, ...]) -> None:
    spare = service.add_spare()
    with_spares(service, *keep)
    spares.fill(service.store, service.config)
    assert spare_ids(service, absent=True) == [spare]
    assert "delete" in kinds_of(service)


def test_a_spare_is_replaced_after_a_day_and_a_failed_one_sooner(service: Service) -> None:
    spare = service.add_spare()

    def aged(**ago: float) -> None:
        with service.store.write() as c:
            c.execute(t.spares.update().values(created_at=utcnow() - timedelta(**ago)))

    aged(hours=23)
    spares.fill(service.store, service.config)
    assert spare_ids(service) == [spare]
    service.record(pending.SliverSeen(spare, Phase.FAILED, "its init is broken"))
    aged(minutes=9)
    spares.fill(service.store, service.config)
    assert spare_ids(service) == [spare], "a broken image is not tried again at once"
    aged(minutes=11)
    spares.fill(service.store, service.config)
    assert spare_ids(service, absent=True) == [spare]
    service.record(pending.SliverGone(spare))
    service.end_operations()
    fresh = service.add_spare()
    aged(hours=25)
    spares.fill(service.store, service.config)
    assert spare_ids(service, absent=True) == [fresh]


def test_another_image_of_the_name_replaces_the_spare(service: Service) -> None:
    with_spares(service, f"lxc image={IMAGE}")
    spare = service.add_spare()
    service.add_image("cd" * 32, "next")
    with service.store.write() as c:
        c.execute(t.images.update().where(t.images.c.sha256 == SHA).values(name="old"))
        c.execute(t.images.update().where(t.images.c.sha256 == "cd" * 32).values(name=IMAGE))
    spares.fill(service.store, service.config)
    assert spare_ids(service, absent=True) == [spare]


def test_an_image_with_spares_can_be_deleted(service: Service) -> None:
    spare = service.add_spare()
    images.delete(service.store, service.config, IMAGE, ADMIN)
    assert spare_ids(service, absent=True) == [spare]
    assert sorted(kinds_of(service)) == ["delete", "image-delete"]
    service.record(pending.ImageGone(SHA))
    assert spare_ids(service, absent=True) == [spare], "the agent still knows what it deletes"
    service.record(pending.SliverGone(spare))
    assert (service.count("spares"), service.count("slivers"), service.count("ports")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("more", "drained"), [({"memory": 100, "memory_available": 9}, False), ({}, True)], ids=["pressure", "drained"]
)
def test_spares_give_way(service: Service, more: dict[str, int], drained: bool) -> None:
    spare = service.add_spare()
    with service.store.write() as c:
        found = {**facts(c), **more}
        c.execute(t.nodes.update().values(facts=found, drained=drained))
    spares.fill(service.store, service.config)
    assert spare_ids(service, absent=True) == [spare]


def test_the_last_ports_are_for_requests(tmp_path: Path) -> None:
    network = settings.NetworkConfig(ports_first=10000, ports_last=10000 + 20 * 9 - 1)
    with Service(tmp_path, network=network) as service:
        spare = service.add_spare()
        spares.fill(service.store, service.config)
        assert spare_ids(service) == [spare]
        service.create("exp", warm=False)
        spares.fill(service.store, service.config)
        assert spare_ids(service, absent=True) == [spare]


def test_of_several_images_the_most_used_one_is_kept(service: Service) -> None:
    other = "cd" * 32
    service.add_image(other, "other")
    with service.store.read() as c:
        assert spares.kinds(c, service.config) == [], "none is the default"
    for number, image in enumerate((IMAGE, "other", "other")):
        service.create(f"exp{number}", image=image, warm=False)
    with service.store.read() as c:
        assert [kind.image for kind in spares.kinds(c, service.config)] == [other]
    service.end_operations()
    spares.fill(service.store, service.config)
    for number in range(2):
        service.create(f"more{number}", image=IMAGE, warm=False)
    with service.store.read() as c:
        assert [kind.image for kind in spares.kinds(c, service.config)] == [other], "3 to 2 is not twice as many"
    with service.store.write() as c:
        c.execute(t.images.update().where(t.images.c.sha256 == other).values(project="default"))
    with service.store.read() as c:
        assert [kind.image for kind in spares.kinds(c, service.config)] == [SHA], "it is not everybody's"


def test_spares_stay_when_the_last_slice_goes(service: Service) -> None:
    spare = service.add_spare()
    with service.store.read() as c:
        assert [kind.image for kind in spares.kinds(c, service.config)] == [SHA], "no slice has an image"
    spares.fill(service.store, service.config)
    assert spare_ids(service) == [spare]
    with service.store.write() as c:
        c.execute(t.images.update().values(project="default"))
    with service.store.read() as c:
        assert spares.kinds(c, service.config) == [], "it is not everybody's"


def test_an_image_that_is_not_ready_has_no_spares(service: Service) -> None:
    with service.store.write() as c:
        c.execute(t.images.update().values(state=ImageState.UPLOADED))
    spares.fill(service.store, service.config)
    assert spare_ids(service) == []


@pytest.mark.parametrize("text", ["", "vmware", "lxc count=0", "lxc colour=red", "lxc memory", "lxc image=../x"])
def test_a_wrong_setting_is_named(text: str) -> None:
    with pytest.raises(Refused) as caught:
        settings.parse(f'[spares]\nkeep = ["{text}"]\n'.encode(), Path("slicemgr.toml"))
    assert (caught.value.field, "is not understood" in caught.value.message) == ("spares.keep", True)
    settings.parse(b'[spares]\nkeep = ["kvm image=debian-12 machine=thin memory=128M cpu=0.5 count=2"]\n', Path("x"))


def test_sizes_of_the_settings_are_those_of_the_spare(service: Service) -> None:
    with_spares(service, "lxc memory=256M cpu=0.5 ports=3 pids=64 init=minimal disk=1G")
    service.add_spare()
    service.create("exp", memory="256M", cpu=0.5, ports=3, pids=64)
    (row,) = service.rows()
    assert shown(service, "exp")["warm"] is True
    assert (row.sliver.limits.memory, row.sliver.limits.cpu, row.sliver.ports.count) == (256 << 20, 0.5, 3)


# --- nodes that joined --------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The node that joined can have spares, and has the files of the image; that of the centre is drained."""
    with World(tmp_path) as made:
        with made.centre.write() as c:
            c.execute(t.nodes.update().where(t.nodes.c.name == "node1").values(drained=True))
            c.execute(t.nodes.update().where(t.nodes.c.name == NODE).values(facts=JOINED_FACTS, agent_seen_at=utcnow()))
            ready = {"base": "ready", "disk": "ready", "state": "ready"}
            c.execute(t.image_nodes.insert().values(image=SHA, node=NODE, updated_at=utcnow(), **ready))
        yield made


JOINED_FACTS = {**FACTS, "spares": True, "addresses": "10.78.0.0/16", "ports_first": 20000, "ports_last": 29999}


def spares_of(store: Store) -> list[str]:
    with store.read() as c:
        return sorted(c.scalars(sa.select(t.spares.c.sliver)))


def test_a_node_that_joined_keeps_spares_and_slices_take_them(world: World) -> None:
    with world.centre.write() as c:
        c.execute(t.nodes.update().values(drained=False))
    for name in ("one", "two"):
        world.service.create(name, node="node1", warm=False)
        move(world.centre, name)
    with world.centre.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == "node1").values(drained=True))
        c.execute(t.operation_parts.update().values(state="done"))
    spares.fill(world.centre, world.service.config)
    world.settle()
    (spare,) = spares_of(world.centre)
    assert spares_of(world.node) == [spare] and world.mirrored() == world.wanted()
    with world.node.read() as c:
        (row,) = pending.slivers(c, LOCAL, {spare})
        (operation,) = pending.pending_operations(c, LOCAL)
    assert (row.sliver.id, row.sliver.spare, operation.kind) == (spare, True, "spare")
    done = pending.SliverDone(operation.id, spare, OperationState.DONE)
    ended = pending.OperationEnded(operation.id, OperationState.DONE)
    world.record(pending.SliverSeen(spare, Phase.RUNNING, host_key=KEY), done, ended)
    world.settle()

    world.service.create("exp", memory="1G")
    world.settle()
    assert spares_of(world.node) == [] and world.mirrored() == world.wanted()
    with world.node.read() as c:
        (row,) = pending.slivers(c, LOCAL, {spare})
    assert (row.sliver.id, row.sliver.spare, row.sliver.hostname, row.sliver.ssh_keys) == (
        spare,
        False,
        "exp-0",
        (KEY,),
    )
    assert row.sliver.limits.memory == 1 << 30


@pytest.mark.parametrize(
    "lacks", [{"facts": {**JOINED_FACTS, "spares": False}}, {"facts": FACTS}, {"silent_since": utcnow()}, {"base": ""}]
)
def test_a_node_that_cannot_have_spares_gets_none(world: World, lacks: dict[str, Any]) -> None:
    with world.centre.write() as c:
        table = t.image_nodes if "base" in lacks else t.nodes
        c.execute(table.update().where(table.c["node" if "base" in lacks else "name"] == NODE).values(lacks))
    spares.fill(world.centre, world.service.config)
    assert spares_of(world.centre) == []


def test_spares_of_a_node_that_is_away_wait_and_end_with_it(world: World) -> None:
    spares.fill(world.centre, world.service.config)
    world.settle()
    kept = spares_of(world.centre)
    with pytest.raises(Refused, match="spare"):
        membership.remove(world.centre, NODE, ADMIN)
    with world.centre.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == NODE).values(silent_since=utcnow(), drained=True))
    spares.fill(world.centre, world.service.config)
    assert spares_of(world.centre) == kept
    evacuation.evacuate(world.centre, world.service.config, NODE, ADMIN, lost=True)
    assert spares_of(world.centre) == []
    membership.remove(world.centre, NODE, ADMIN)


def test_the_inventory_of_a_node_has_no_spares(world: World) -> None:
    spares.fill(world.centre, world.service.config)
    world.settle()
    assert spares_of(world.node) != [] and inventory.take(world.node, LOCAL).slivers == ()
