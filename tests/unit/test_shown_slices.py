"""What lists show of slices: each value from its column, taken by its place in a row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import SHA, Service

from slicemgr.service.slices.specs import LIMITS
from slicemgr.service.views import slices as slice_views
from slicemgr.store import tables as t
from slicemgr.store.dialect import among

pytestmark = pytest.mark.usefixtures("both_stores")

_AT = datetime(2026, 1, 31, 12, 0, 5, 999999, tzinfo=UTC)
_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDZL+rD/vRwJyc8ynlZ34fozFD0H1+ae81XD1/BIyS4U"
_LIMITS = {name: 1000 + number for number, name in enumerate(LIMITS)}
_SLIVER = {
    "usage_working": 1,
    "usage_charged": 2,
    "usage_disk": 3,
    "guest_memory": 4,
    "usage_at": 1769860801,
    "oom_kills": 5,
    "oom_at": _AT,
    "acceleration": "kvm",
    "booted": "yes",
    "keys_missing": "keys",
    "error": "bad",
    "desired": "running",
    "phase": "paused",
    "port_first": 10100,
    "port_count": 20,
    "address": "10.77.7.7",
}
_SLICE = {
    "created_at": _AT,
    "expires_at": _AT.replace(day=1),
    "lease_ended_at": _AT.replace(day=2),
    "lease_notice": "notice",
    "boot": "uefi",
    "init": "systemd",
    "on_loss": "rebuild",
    "warm": True,
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


def show(service: Service) -> dict[str, Any]:
    with service.store.read() as c:
        return slice_views.slice(c, "exp")


def test_each_field_shows_its_column(service: Service) -> None:
    service.create("exp")
    with service.store.write() as c:
        c.execute(t.slices.update().values(_SLICE))
        c.execute(t.slivers.update().values(**_SLIVER, **_LIMITS, host_key=_KEY))
        c.execute(t.nodes.update().values(address="192.0.2.77", silent_since=_AT.replace(day=3)))
        id_, node = c.execute(sa.select(t.slivers.c.id, t.slivers.c.node)).one()
    shown = show(service)
    fingerprint = shown["slivers"][0]["ssh"].pop("fingerprint")
    sliver = {
        "index": 0,
        "id": id_,
        "node": node,
        "state": "resuming",
        "unknown_since": None,
        "address": "10.77.7.7",
        "ssh": {"host": "192.0.2.77", "port": 10100, "host_key": _KEY},
        "ports": {"first": 10100, "last": 10119},
        "limits": _LIMITS,
        "usage": {"memory": 1, "working": 1, "charged": 2, "disk": 3, "guest_memory": 4, "at": "2026-01-31T12:00:01Z"},
        "acceleration": "kvm",
        "booted": "yes",
        "keys_missing": "keys",
        "oom_kills": 5,
        "oom_at": "2026-01-31T12:00:05Z",
        "error": "bad",
    }
    assert shown == {
        "name": "exp",
        "type": "lxc",
        "project": "default",
        "owner": "admin",
        "state": "resuming",
        "created_at": "2026-01-31T12:00:05Z",
        "expires_at": "2026-01-01T12:00:05Z",
        "lease_ended_at": "2026-01-02T12:00:05Z",
        "notice": "notice",
        "image": "debian-12",
        "image_sha256": SHA,
        "boot": None,
        "machine": None,
        "init": "systemd",
        "on_loss": "rebuild",
        "warm": True,
        "snapshots": 0,
        "slivers": [sliver],
    }
    assert fingerprint.startswith("SHA256:")
    with service.store.write() as c:
        c.execute(t.slices.update().values(type="kvm"))
        c.execute(t.nodes.update().values(lost=True))
    shown = show(service)
    assert (shown["boot"], shown["init"], shown["state"]) == ("uefi", None, "unknown")
    assert shown["slivers"][0]["unknown_since"] == "2026-01-03T12:00:05Z"


def test_a_sliver_without_values_shows_none(service: Service) -> None:
    service.create("exp")
    with service.store.write() as c:
        c.execute(t.slivers.update().values(pids=0))
    sliver = show(service)["slivers"][0]
    empty = ("unknown_since", "acceleration", "booted", "keys_missing", "oom_at", "error")
    assert {sliver[name] for name in empty} == {None} == set(sliver["usage"].values())
    assert sliver["ssh"]["fingerprint"] is sliver["ssh"]["host_key"] is sliver["limits"]["pids"] is None


def test_among_finds_the_listed_values_alone(service: Service) -> None:
    odd = ["'", '"', "\\", ",", "{}", "NULL", "", "\N{SNOWMAN}", "a"]
    with service.store.write() as c:
        for name in (*odd, "b"):
            c.execute(t.users.insert().values(name=name, admin=False, created_at=_AT))

        def found(*names: str) -> set[str]:
            return set(c.scalars(sa.select(t.users.c.name).where(among(c, t.users.c.name, names))))

        assert found(*odd, "x") == set(odd)
        assert found() == set()
