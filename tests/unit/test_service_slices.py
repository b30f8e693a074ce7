"""Use-cases of slices over a real database: all or nothing, and the reason when refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bare_service import ADMIN, FACTS, SHA, Service

from slicemgr.config import LimitsConfig
from slicemgr.errors import Code, Refused
from slicemgr.ipc.wake import Listener
from slicemgr.model import Desired, Phase, Role
from slicemgr.policy.access import Principal
from slicemgr.service.leases import leases
from slicemgr.service.nodes import nodes
from slicemgr.service.slices import slices
from slicemgr.service.views import events as event_views
from slicemgr.service.views import images as image_views
from slicemgr.service.views import nodes as node_views
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import slices as slice_views
from slicemgr.store import pending
from slicemgr.store.updates import utcnow

pytestmark = pytest.mark.usefixtures("both_stores")

DAY = timedelta(days=1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


def act(service: Service, action: str, name: str = "exp", by: Principal = ADMIN) -> str:
    return slices.act(service.store, service.config, name, action, by)


def show(service: Service, name: str = "exp") -> dict[str, Any]:
    with service.store.read() as c:
        return slice_views.slice(c, name)


def events(service: Service, name: str = "exp") -> list[tuple[str, str]]:
    with service.store.read() as c:
        return [(event["user"], event["action"]) for event in event_views.events(c, slice=name)]


def desired(service: Service) -> set[Desired]:
    return {row.sliver.desired for row in service.rows()}


def settle(service: Service) -> None:
    """Record the reports of an agent for the desired state."""
    for row in service.rows():
        if row.sliver.desired is Desired.ABSENT:
            service.record(pending.SliverGone(row.sliver.id))
        else:
            service.record(pending.SliverSeen(row.sliver.id, Phase(row.sliver.desired.value), ""))


@pytest.fixture
def refused(service: Service) -> Iterator[list[Refused]]:
    """Collects a refusal and checks that nothing happened."""
    before = service.content()
    caught: list[Refused] = []
    yield caught
    assert caught, "nothing was refused"
    assert service.content() == before


def refuse(caught: list[Refused], call: Any, *args: Any, **named: Any) -> Refused:
    with pytest.raises(Refused) as error:
        call(*args, **named)
    caught.append(error.value)
    return error.value


def test_a_slice_from_the_request_to_its_end(service: Service) -> None:
    service.create("exp", count=2)
    assert show(service)["state"] == "creating"
    settle(service)
    assert show(service)["state"] == "running"
    for action, on_the_way, then in (
        ("stop", "stopping", "stopped"),
        ("start", "starting", "running"),
        ("pause", "pausing", "paused"),
        ("resume", "resuming", "running"),
        ("restart", "running", "running"),
    ):
        act(service, action)
        assert show(service)["state"] == on_the_way
        settle(service)
        assert show(service)["state"] == then
    act(service, "delete")
    assert show(service)["state"] == "deleting"
    settle(service)
    assert (service.count("slices"), service.count("slivers"), service.count("ports")) == (0, 0, 0)
    assert [action for _, action in reversed(events(service))] == [
        *("create", "stop", "start", "pause", "resume", "restart", "delete")
    ]


def test_the_agent_is_woken_after_each_commit(service: Service) -> None:
    with Listener(service.config.wake_socket) as listener:
        service.create()
        assert listener.wait(5)
        act(service, "stop")
        assert listener.wait(5)
        with pytest.raises(Refused):
            service.create()
        assert not listener.wait(0)


def test_some_failed_is_partial_all_failed_is_failed(service: Service) -> None:
    service.create(count=2)
    settle(service)
    first, second = (row.sliver.id for row in service.rows())
    service.record(pending.SliverSeen(first, Phase.FAILED, "no room"))
    assert (show(service)["state"], show(service)["slivers"][0]["error"]) == ("partial", "no room")
    service.record(pending.SliverSeen(second, Phase.FAILED, "no room"))
    assert show(service)["state"] == "failed"


def test_names_are_free_again_once_the_slice_is_gone(service: Service) -> None:
    service.create()
    tag = service.rows()[0].sliver.tag
    act(service, "delete")
    with pytest.raises(Refused):
        service.create()
    settle(service)
    service.create()
    assert service.rows()[0].sliver.tag != tag


def test_a_taken_name(service: Service) -> None:
    service.create()
    before = service.content()
    with pytest.raises(Refused) as error:
        service.create()
    assert (error.value.code, error.value.field) == (Code.CONFLICT, "name")
    assert service.content() == before


@pytest.mark.parametrize(
    ("fields", "code", "field", "words"),
    [
        ({"image": "windows"}, Code.INVALID, "image", "there is no image 'windows'"),
        ({"node": "node9"}, Code.INVALID, "node", "the nodes are node1"),
        ({"type": "kvm"}, Code.INVALID, "type", "cannot run kvm"),
        ({"cpu": 5}, Code.INVALID, "cpu", "at most 4"),
        ({"io_weight": 100}, Code.INVALID, "io_weight", "no I/O controller"),
        ({"net_in": "1Mbit"}, Code.INVALID, "net_in", "its kernel lacks sch_tbf, ifb"),
        ({"net_out": "1Mbit"}, Code.INVALID, "net_out", "its kernel lacks sch_tbf, ifb"),
        ({"memory": "9G"}, Code.QUOTA, "memory", "exceed the capacity of node node1"),
        ({"disk": "101G"}, Code.QUOTA, "disk", "exceed the capacity of node node1"),
        ({"memory": "8G", "count": 33}, Code.QUOTA, "memory", "not enough memory on"),
        ({"disk": "64G", "count": 65}, Code.QUOTA, "disk", "not enough disk on"),
        (
            {"count": 50, "ports": 1000},
            Code.QUOTA,
            "ports",
            "not enough blocks of 1000 ports: 50 requested, 22 available",
        ),
    ],
)
def test_what_the_node_cannot_do(
    service: Service, refused: list[Refused], fields: dict[str, Any], code: Code, field: str, words: str
) -> None:
    error = refuse(refused, service.create, **fields)
    assert (error.code, error.field) == (code, field)
    assert words in str(error)


def test_an_image_by_its_sha256(service: Service) -> None:
    service.create(image=SHA)
    assert show(service)["image"] == "debian-12"


def test_network_rates_where_the_node_can(tmp_path: Path) -> None:
    with Service(tmp_path, facts={**FACTS, "net_rate": True}) as service:
        service.create(net_in="1.5Mbit", net_out="64kbit")
        limits = service.rows()[0].sliver.limits
        assert (limits.net_in, limits.net_out) == (1_500_000, 64_000)
        shown = show(service)["slivers"][0]["limits"]
        assert (shown["net_in"], shown["net_out"]) == (1_500_000, 64_000)


def test_io_weight_and_kvm_where_the_node_can(tmp_path: Path) -> None:
    with Service(tmp_path, facts={**FACTS, "io_weight": True, "kinds": {"lxc": True, "kvm": True}}) as service:
        service.create(type="kvm", io_weight=77)
        assert service.rows()[0].sliver.limits.io_weight == 77


@pytest.mark.parametrize(
    ("action", "first", "words"),
    [
        ("pause", "stop", "only a running slice"),
        ("resume", "stop", "start a stopped slice"),
        ("resume", "start", "is not paused"),
        *[(action, "delete", "is being deleted") for action in slices.ACTIONS],
    ],
)
def test_actions_that_do_not_fit(service: Service, action: str, first: str, words: str) -> None:
    service.create()
    act(service, first)
    before = service.content()
    with pytest.raises(Refused, match=words) as error:
        act(service, action)
    assert error.value.code is Code.CONFLICT
    assert service.content() == before


@pytest.mark.parametrize("action", [*slices.ACTIONS, "renew"])
def test_no_such_slice_or_not_for_you(service: Service, action: str) -> None:
    def call(name: str, by: Principal) -> None:
        if action == "renew":
            slices.renew(service.store, service.config, name, DAY, by)
        else:
            act(service, action, name, by)

    with pytest.raises(Refused) as error:
        call("nothing", ADMIN)
    assert error.value.code is Code.NOT_FOUND
    service.create()
    with pytest.raises(Refused) as error:
        call("exp", Principal("eve", False))
    assert error.value.code is Code.NOT_FOUND, "as if it were not there"
    with pytest.raises(Refused) as error:
        call("exp", Principal("eve", False, {"default": Role.MEMBER}))
    assert error.value.code is Code.DENIED


def test_delete_comes_through_while_the_create_is_pending(service: Service) -> None:
    service.create()
    act(service, "delete")
    assert desired(service) == {Desired.ABSENT}


def test_a_large_slice_or_none(tmp_path: Path) -> None:
    limits = LimitsConfig(slivers_per_slice=500, memory_overcommit=1000, disk_overcommit=1000)
    with Service(tmp_path, limits=limits) as service:
        service.create(count=500)
        assert service.count("ports") == 10000
        service.create("more", count=500)
        with pytest.raises(Refused, match="138 available"):
            service.create("evenmore", count=139)
        service.create("rest", count=138)


def test_node_operations(service: Service) -> None:
    nodes.request(service.store, service.config, "node1", "gc", ADMIN, {"apply": True})
    with service.store.read() as c:
        (operation,) = pending.pending_operations(c, "node1")
    assert (operation.kind, dict(operation.params), operation.slivers) == ("gc", {"apply": True}, ())
    with pytest.raises(Refused) as error:
        nodes.request(service.store, service.config, "node9", "gc", ADMIN, {})
    assert error.value.code is Code.NOT_FOUND


# leases


def test_renewing_an_ended_lease(service: Service) -> None:
    service.create(lease="1h")
    settle(service)
    leases.expire(service.store, service.config, utcnow() + timedelta(hours=2))
    slices.renew(service.store, service.config, "exp", 1000 * DAY, ADMIN)
    granted = show(service)["expires_at"]
    assert granted < (utcnow() + 91 * DAY).isoformat(), "the granted date, not the requested one"
    assert events(service)[0] == ("admin", "renew")
    settle(service)
    act(service, "start")
    assert leases.expire(service.store, service.config, utcnow() + 2 * DAY) == 0


def test_a_clock_that_jumps_stops_nobody_and_deletes_nothing(service: Service) -> None:
    for number in range(6):
        service.create(f"exp{number}")
    settle(service)
    now = utcnow()
    leases.expire(service.store, service.config, now)
    before = service.count("operations")
    assert leases.expire(service.store, service.config, now + 3650 * DAY) == 0
    assert leases.expire(service.store, service.config, now + timedelta(minutes=1)) == 0
    assert (desired(service), service.count("operations")) == ({Desired.RUNNING}, before)


def test_a_slice_stopped_by_a_wrong_clock_may_start_again(service: Service) -> None:
    service.create()
    settle(service)
    now = utcnow()
    leases.expire(service.store, service.config, now + 8 * DAY)
    assert desired(service) == {Desired.STOPPED}
    settle(service)
    leases.expire(service.store, service.config, now + timedelta(minutes=2))
    act(service, "start")


def test_a_slice_being_deleted_is_left_alone(service: Service) -> None:
    service.create(lease="1h")
    act(service, "delete")
    assert leases.expire(service.store, service.config, utcnow() + 2 * DAY) == 0


# views


def test_lists_take_the_same_number_of_queries_however_long_they_are(service: Service) -> None:
    import sqlalchemy as sa

    def queries() -> int:
        seen: list[str] = []
        listener = lambda *args: seen.append(args[2])  # noqa: E731
        sa.event.listen(service.store.engine, "before_cursor_execute", listener)
        with service.store.read() as c:
            slice_views.slices(c)
            operation_views.operations(c)
            image_views.images(c)
            node_views.nodes(c, service.config.network)
            event_views.events(c)
        sa.event.remove(service.store.engine, "before_cursor_execute", listener)
        return len(seen)

    service.create("a")
    few = queries()
    for number in range(10):
        service.create(f"b{number}", count=3)
    assert queries() == few


def test_a_node_that_is_used(service: Service) -> None:
    service.create(count=2, memory="64M", disk="1G", ports=5)
    with service.store.read() as c:
        node = node_views.nodes(c, service.config.network, "node1")[0]
        with pytest.raises(Refused):
            node_views.nodes(c, service.config.network, "node9")
    assert node["used"] == {
        "slivers": 2,
        "memory_limits": 128 << 20,
        "memory_guarantees": 0,
        "disk_limits": 2 << 30,
        "ports": 10,
        "addresses": 2,
        "spares": 0,
    }


def test_an_admin_gets_the_full_names_of_slices_elsewhere(service: Service) -> None:
    other = Principal("member", False, {"default": Role.MEMBER})
    service.create()
    with service.store.write() as c:
        c.exec_driver_sql("INSERT INTO projects (name, created_at) SELECT 'lab', created_at FROM projects")
        c.exec_driver_sql("UPDATE slices SET project = 'lab'")
    with service.store.read() as c:
        for by, hint in ((ADMIN, "in other projects there is lab/exp"), (other, "list them with `slicectl list`")):
            with pytest.raises(Refused, match="there is no slice 'exp'") as error:
                slices.find(c, "exp", by)
            assert error.value.hint == hint
        assert slices.find(c, "exp", ADMIN, "lab").project == "lab"


def test_the_error_names_where_no_slice_was_found(service: Service) -> None:
    """Of a project that the user cannot see, it is the same as of one that does not exist."""
    roles = dict.fromkeys(("lab", "default"), Role.MEMBER)
    many = dict.fromkeys((f"p{number}" for number in range(9)), Role.MEMBER)
    with service.store.read() as c:
        for by, project, where in (
            (ADMIN, None, " in project 'default'"),
            (ADMIN, "lab", " in project 'lab'"),
            (Principal("eve", False, roles), None, " in your projects 'default', 'lab'"),
            (Principal("eve", False, roles), "lab", " in project 'lab'"),
            (Principal("eve", False, many), None, " in your 9 projects"),
            (Principal("eve", False), "default", " in project 'default'"),
            (Principal("eve", False), "nowhere", " in project 'nowhere'"),
            (Principal("eve", False), None, ""),
        ):
            with pytest.raises(Refused) as error:
                slices.find(c, "exp", by, project)
            assert error.value.message == f"there is no slice 'exp'{where}"
