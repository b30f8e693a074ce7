"""The init of lxc slivers: what a request may ask for, what each part keeps of it, and which images have systemd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, SHA, Service

from slicemgr import names, sliver_record
from slicemgr.agent import images
from slicemgr.agent.journal import Journal
from slicemgr.drivers.kernel import cgroup
from slicemgr.errors import Code, Refused
from slicemgr.model import Desired, Init, OperationState, Phase
from slicemgr.service.slices import snapshots
from slicemgr.service.views import images as image_views
from slicemgr.service.views import slices as slice_views
from slicemgr.store import pending
from slicemgr.store import tables as t

ABLE = {**FACTS, "kinds": {"lxc": True, "kvm": True}, "inits": {"minimal": True, "systemd": True}}


def with_systemd(service: Service, value: bool | None) -> None:
    with service.store.write() as c:
        c.execute(t.images.update().where(t.images.c.sha256 == SHA).values(systemd=value))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, facts=ABLE) as made:
        with_systemd(made, True)
        yield made


def show(service: Service, name: str) -> dict[str, Any]:
    with service.store.read() as c:
        return slice_views.slice(c, name)


def test_a_slice_has_the_init_that_was_requested(service: Service) -> None:
    service.create("plain")
    service.create("units", init="systemd")
    service.create("machine", type="kvm")
    assert [show(service, name)["init"] for name in ("plain", "units", "machine")] == ["minimal", "systemd", None]
    assert [row.sliver.init for row in service.rows()[:2]] == [Init.MINIMAL, Init.SYSTEMD]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"init": "runit"}, "minimal or systemd"),
        ({"init": 1}, "is unknown"),
        ({"init": "systemd", "type": "kvm"}, "a virtual machine always boots the init of its image"),
    ],
)
def test_a_request_that_is_wrong_on_any_node(service: Service, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words) as error:
        service.create(**fields)
    assert (error.value.code, error.value.field, service.count("slices")) == (Code.INVALID, "init", 0)


@pytest.mark.parametrize(("systemd", "words"), [(False, "has no systemd"), (None, "restart the agent")])
def test_an_image_without_systemd(service: Service, systemd: bool | None, words: str) -> None:
    with_systemd(service, systemd)
    with pytest.raises(Refused, match=words) as error:
        service.create(init="systemd")
    assert (error.value.field, service.count("slices")) == ("init", 0)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"inits": {"systemd": False}, "inits_reason": "its kernel has no cgroup v2"}, "its kernel has no cgroup v2"),
        ({}, "its agent is of an earlier version"),
    ],
)
def test_a_node_that_cannot(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    with Service(tmp_path, facts={**FACTS, **facts}) as service:
        with_systemd(service, True)
        with pytest.raises(Refused, match=words) as error:
            service.create(init="systemd")
        assert (error.value.field, service.count("slices")) == ("init", 0)


def test_a_clone_has_the_init_of_its_original(service: Service) -> None:
    service.create(init="systemd")
    (row,) = service.rows()
    service.record(pending.SliverSeen(row.sliver.id, Phase.RUNNING, host_key="ssh-ed25519 AAAA"))
    exp = snapshots.SliceReference("exp", ADMIN)
    operation = snapshots.create(service.store, service.config, exp, "one")
    with service.store.read() as c:
        id_ = str(c.scalar(sa.select(t.snapshots.c.id)))
    service.record(pending.SnapshotMade(row.sliver.id, id_, 1), pending.OperationEnded(operation, OperationState.DONE))
    snapshots.clone(service.store, service.config, exp, "one", {"name": "twin"})
    assert show(service, "twin")["init"] == "systemd"


def test_the_record_of_a_sliver_has_its_init(service: Service) -> None:
    service.create(init="systemd")
    (row,) = service.rows()
    record = sliver_record.to_json(row.sliver)
    assert sliver_record.from_json(record).init is Init.SYSTEMD
    del record["init"]  # as an earlier version wrote it
    assert sliver_record.from_json(record).init is Init.MINIMAL
    assert sliver_record.from_json(record).desired is Desired.RUNNING


def test_limits_are_those_of_the_group_above_the_subtree() -> None:
    scope = r"/machine.slice/machine-lxc\x2d1\x2dx.scope/libvirt"
    for below in ("", "/init.scope", "/system.slice/slicemgr-subtree/libvirt"):
        assert cgroup.above_subtree(f"{scope}/{cgroup.SUBTREE}{below}") == scope
    assert cgroup.above_subtree(scope) == scope


def put_systemd(root: Path, directory: str = "usr/lib/systemd") -> None:
    (root / directory).mkdir(parents=True)
    (root / directory / "systemd").write_text("")


def test_where_systemd_is_in_an_image(tmp_path: Path) -> None:
    for name in ("merged", "old", "none", "linked"):
        (tmp_path / name).mkdir()
    put_systemd(tmp_path / "merged")
    put_systemd(tmp_path / "old", "lib/systemd")
    put_systemd(tmp_path / "outside")
    (tmp_path / "linked" / "usr").symlink_to(tmp_path / "outside" / "usr")  # leads nowhere inside the image
    found = {name: images.has_systemd(tmp_path / name) for name in ("merged", "old", "none", "linked", "missing")}
    assert found == {"merged": True, "old": True, "none": False, "linked": False, "missing": False}


@pytest.mark.parametrize("systemd", [True, False])
def test_images_of_an_earlier_version_are_examined_once(service: Service, systemd: bool) -> None:
    with_systemd(service, None)
    base = names.base_dir(service.config.node.pool, SHA)
    base.mkdir(parents=True)
    if systemd:
        put_systemd(base)
    with Journal(service.store, "node1") as journal:
        images.note_findings(service.config, service.store, journal)
        journal.flush()
        with service.store.read() as c:
            (shown,) = image_views.images(c, SHA)
        assert (shown["systemd"], shown["state"]) == (systemd, "ready")
        with_systemd(service, not systemd)
        images.note_findings(service.config, service.store, journal)
        journal.flush()
    with service.store.read() as c:
        (shown,) = image_views.images(c, SHA)
    assert shown["systemd"] is not systemd, "a known fact is not read again"
