"""The agent during the hold after a restore: it changes nothing, keeps slivers without a row reachable, and reports."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, SHA, Service, service, settings
from browsers import Browser
from hypothesis import given
from hypothesis import strategies as st
from tenants import Tenants

from slicemgr import names, sliver_record
from slicemgr.agent import hold, observe, records
from slicemgr.agent.checks import testbed
from slicemgr.agent.hold import Hold, Row
from slicemgr.agent.journal import Journal
from slicemgr.agent.plan import DomainState, Observed
from slicemgr.agent.scheduler import Scheduler
from slicemgr.drivers.guest import authorized_keys
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.network import traffic
from slicemgr.errors import Failed, Refused
from slicemgr.model import GIB, MIB, Boot, BootFacts, Desired, Limits, PortBlock, Sliver, SliverSnapshot, SliverType
from slicemgr.service.nodes import nodes
from slicemgr.store import incarnation, pending, tables
from slicemgr.store.updates import utcnow

OLD = Sliver(
    id="abcdefgh-0",
    serial=1,
    tag="abcdefgh",
    slice_name="old",
    index=0,
    type=SliverType.LXC,
    desired=Desired.RUNNING,
    image=SHA,
    arch="x86_64",
    address="10.77.0.1",
    ports=PortBlock(10000, 20),
    uid_first=0x70000000,
    limits=Limits(512 * MIB, GIB, 512, 1.0, net_in=10**6),
    ssh_keys=("ssh-ed25519 AAAA",),
    boot=Boot.DIRECT,
    boot_facts=BootFacts(bios=True, kernel="/boot/vmlinuz"),
)
NEW = dataclasses.replace(
    OLD, id="zzzzzzzz-0", tag="zzzzzzzz", serial=2, slice_name="new", address="10.77.0.2", ports=PortBlock(10020, 20)
)


# records


@given(
    st.builds(
        dataclasses.replace,
        st.just(OLD),
        serial=st.integers(0, 1 << 60),
        slice_name=st.text(),
        user_data=st.text(),
        generation=st.integers(0, 1000),
        type=st.sampled_from(SliverType),
        boot=st.sampled_from(Boot),
        ssh_keys=st.lists(st.text()).map(tuple),
    )
)
def test_a_record_has_the_whole_row(sliver: Sliver) -> None:
    assert sliver_record.from_json(json.loads(json.dumps(sliver_record.to_json(sliver)))) == sliver


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"id": "../../etc-0"},
        {"id": "abcdefgh-1"},
        {"tag": "..", "id": "..-0"},
        {"address": "10.77.0.0/16"},
        {"address": 1},
        {"ports": [65530, 20]},
        {"ports": ["10000", 20]},
        {"ports": [10000]},
        {"serial": True},
        {"type": "vm"},
        {"limits": {"memory": 1}},
        {"ssh_keys": [1]},
        {"boot_facts": {"more": 1}},
    ],
    ids=str,
)
def test_a_damaged_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="the record of the sliver is damaged"):
        sliver_record.from_json({**sliver_record.to_json(OLD), **change})
    with pytest.raises(Refused, match="the record of the sliver is damaged"):
        sliver_record.from_json([change])


def test_records_in_the_pool(tmp_path: Path) -> None:
    names.sliver_dir(tmp_path, OLD.id).mkdir(parents=True)
    assert records.read(tmp_path, OLD.id) is None
    records.write_missing(tmp_path, [OLD, NEW])
    assert records.read(tmp_path, OLD.id) == OLD
    assert records.read(tmp_path, NEW.id) is None
    (names.sliver_dir(tmp_path, OLD.id) / "host_key.pub").write_text("ssh-ed25519 BBBB\n")
    assert records.read(tmp_path, OLD.id) == dataclasses.replace(OLD, host_key="ssh-ed25519 BBBB")
    file = names.record_file(tmp_path, OLD.id)
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.stat().st_ino
    records.write(tmp_path, OLD)
    assert file.stat().st_ino == before, "an equal record is not written again"
    records.write(tmp_path, dataclasses.replace(OLD, generation=4))
    records.write_missing(tmp_path, [OLD])
    found = records.read(tmp_path, OLD.id)
    assert found is not None and found.generation == 4
    authorized_keys.write_note(tmp_path, OLD.id, ["a", "b"], ["b"])
    found = records.read(tmp_path, OLD.id)
    assert found is not None and found.ssh_keys == ("b",)
    file.write_text("{")
    assert records.read(tmp_path, OLD.id) is None
    names.sliver_dir(tmp_path, NEW.id).mkdir(parents=True)
    names.record_file(tmp_path, NEW.id).write_text(json.dumps(sliver_record.to_json(OLD)))
    assert records.read(tmp_path, NEW.id) is None, "the record of another sliver"


# what differs


def test_a_sliver_without_a_row_is_published_in_place_of_a_row_with_the_same_address_or_ports() -> None:
    assert hold.published([OLD], [NEW]) == [OLD, NEW]
    for same in ({"address": OLD.address}, {"ports": PortBlock(10019, 1)}, {"ports": PortBlock(9990, 11)}):
        heir = dataclasses.replace(NEW, **same)
        assert hold.published([OLD], [heir]) == [heir]


def test_roots_that_are_gone() -> None:
    gone, there = Observed(), Observed(root=True)
    absent = dataclasses.replace(OLD, desired=Desired.ABSENT)
    rows = [Row(OLD, gone, None), Row(NEW, there, None), Row(absent, gone, None)]
    assert hold.lost(rows) == (OLD.id,)


@pytest.mark.parametrize(
    ("want", "observed", "recorded", "columns"),
    [
        ({}, Observed(DomainState.RUNNING, root=True), {}, {}),
        ({}, Observed(None, root=True), {}, {}),
        ({"desired": Desired.STOPPED}, Observed(DomainState.RUNNING, root=True), {}, {"desired": "running"}),
        ({}, Observed(DomainState.PAUSED, root=True), {}, {"desired": "paused"}),
        ({"desired": Desired.ABSENT}, Observed(DomainState.RUNNING, root=True), {}, {}),
        ({}, Observed(DomainState.RUNNING, 4, root=True), {}, {"generation": 4}),
        (
            {},
            Observed(root=True, epoch=2),
            {"epoch": 2, "origin": "a/b", "inherited": 7},
            {"epoch": 2, "origin": "a/b", "inherited": 7},
        ),
        ({}, Observed(root=True, epoch=2), {"epoch": 1, "origin": "a/b"}, {"epoch": 2}),
        ({}, Observed(root=True), {"limits": Limits(1, 2 * GIB, 1, 1.0)}, {"disk": 2 * GIB}),
        ({}, Observed(root=True), {"limits": Limits(1, 1, 1, 1.0)}, {}),
        (
            {"snapshots": (SliverSnapshot("s1", True),)},
            Observed(root=True, snapshots=frozenset({"s1", "s2"})),
            {},
            {"snapshots": ["s2"]},
        ),
        ({}, Observed(root=False, epoch=2), {"epoch": 2}, {}),
    ],
)
def test_rows_that_are_older_than_the_host(
    want: dict[str, Any], observed: Observed, recorded: dict[str, Any], columns: dict[str, Any]
) -> None:
    row = Row(dataclasses.replace(OLD, **want), observed, dataclasses.replace(OLD, **recorded))
    assert hold.changed([row]) == ({OLD.id: columns} if columns else {})


@pytest.mark.parametrize(
    ("observed", "state"),
    [
        (Observed(DomainState.RUNNING, root=True), "running"),
        (Observed(DomainState.PAUSED, root=True), "paused"),
        (Observed(root=True), "stopped"),
        (Observed(traces=True), "remains"),
    ],
)
def test_the_state_of_a_sliver_without_a_row(observed: Observed, state: str) -> None:
    found = hold.unclaimed(NEW.id, observed, NEW)
    assert (found.state, found.record) == (state, sliver_record.to_json(NEW))
    assert hold.unclaimed(NEW.id, observed, None).record is None


def test_doctor_reports_the_hold() -> None:
    assert testbed.hold(None).ok
    check = testbed.hold(incarnation.Incarnation(2, utcnow(), utcnow()))
    assert check.ok is False
    assert "slicemgr restore --review" in check.remedy


# the agent


class Recorded:
    """Stands for a driver: records the calls, and fails for the sliver `broken`."""

    def __init__(self, broken: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.broken = broken

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*words: Any) -> None:
            if name == "kill" and words[0] == self.broken:
                raise Failed("it does not end")
            self.calls.append((name, *words))

        return call


@dataclasses.dataclass
class World:
    """A node whose rows have no slice, with `NEW` in its pool."""

    service: Service
    hold: Hold
    drivers: Recorded
    journal: Journal
    host: observe.Host

    def look(self) -> dict[str, Any]:
        self.hold.look(self.host, [])
        assert self.journal.flush()
        with self.service.store.read() as c:
            return {row.sliver: row for row in c.execute(sa.select(tables.unclaimed))}


def host(pool: Path, *slivers: str) -> observe.Host:
    there = frozenset(slivers)
    return observe.Host({}, there, there, frozenset(), {}, {}, frozenset(), {}, pool, pool / "marks")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Service(tmp_path) as made, Journal(made.store, "node1") as journal:
        pool, drivers = made.config.node.pool, Recorded()
        names.root_dir(pool, NEW.id).mkdir(parents=True)
        records.write(pool, NEW)
        node: Any = type("Node", (), {})()
        node.config, node.store, node.journal = made.config, made.store, journal
        node.hypervisor = node.pool = node.publisher = drivers
        with made.store.write() as c:
            incarnation.begin(c, utcnow(), utcnow())
        yield World(made, Hold(node), drivers, journal, host(pool, NEW.id))


def test_a_sliver_without_a_row_is_published_and_reported(world: World) -> None:
    found = world.look()
    assert world.drivers.calls == [("publish", NEW)]
    assert sliver_record.from_json(found[NEW.id].record) == NEW
    with world.service.store.read() as c:
        report = c.execute(sa.select(tables.host_reports)).one()
    assert (report.node, report.incarnation) == ("node1", 1)
    assert report.found["images"] == [SHA], "the pool has no base of it"


def test_only_a_released_sliver_is_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "remove", lambda *_: None)
    monkeypatch.setattr(traffic, "clear", lambda *_: None)
    world.look()
    with world.service.store.write() as c:
        c.execute(tables.unclaimed.update().values(released=True))
    world.drivers.calls.clear()
    world.drivers.broken = NEW.id
    row = world.look()[NEW.id]
    assert (row.released, "it does not end" in row.detail) == (True, True)
    assert world.drivers.calls == []
    world.drivers.broken = ""
    assert world.look() == {}
    directory = names.sliver_dir(world.service.config.node.pool, NEW.id)
    assert world.drivers.calls == [
        ("kill", NEW.id),
        ("withdraw", NEW.id),
        ("delete_tree", directory, names.qgroup(NEW.serial)),
    ]


@pytest.mark.parametrize("held", [False, True])
def test_the_scheduler_compares_and_repairs_only_without_a_hold(tmp_path: Path, held: bool) -> None:
    config = settings(tmp_path)
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, reconcile=timedelta(milliseconds=10)))
    config.node.run_dir.mkdir(parents=True, exist_ok=True)
    stop, all_served = threading.Event(), threading.Event()
    calls: list[str] = []
    served: list[str] = []

    class Reconciler:
        def compare(self, slivers: Sequence[Sliver], busy: Callable[[str], bool]) -> None:
            calls.append("compare")
            assert all_served.wait(60)
            stop.set()

        def report(self, slivers: Sequence[Sliver]) -> None:
            calls.append("report")
            assert all_served.wait(60)
            stop.set()

    def serve(operation: pending.Operation) -> dict[str, object]:
        served.append(operation.kind)
        if len(served) == (1 if held else 2):
            all_served.set()
        return {}

    rest: Any = None
    with service(config) as store, Journal(store, "node1") as journal:
        for kind in ("gc", "doctor"):
            nodes.request(store, config, "node1", kind, ADMIN, {})
        if held:
            with store.write() as c:
                incarnation.begin(c, utcnow(), utcnow())
                for table in (tables.operations, tables.operation_parts):
                    c.execute(table.update().values(state="queued"))  # as if a request had passed all checks
        Scheduler(config, store, journal, rest, Reconciler(), serve, stop).run()  # type: ignore[arg-type]
    assert calls[0] == ("report" if held else "compare")
    assert set(served) == ({"doctor"} if held else {"gc", "doctor"})


def test_pages_show_the_hold(tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        bob = Browser(tenants, "bob")
        assert "on hold" not in bob.get("/slices").text
        with tenants.store.write() as c:
            incarnation.begin(c, utcnow(), utcnow())
        text = bob.get("/slices").text
        assert "The testbed is on hold since the restore at" in text
        assert "slicemgr restore --review" in text
