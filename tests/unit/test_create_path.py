"""Every way to a new slice passes the same function: its check of access binds each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from bare_service import KEY
from browsers import Browser
from tenants import Tenants
from werkzeug.test import TestResponse

from slicemgr.errors import Code, Refused
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.store import tables as t

API = "/api/v1"
NOT_HERE = "no slice is created in this test"
FORM = {"project": "lab", "type": "lxc", "image": "debian-12", "size": "small", "name": "new", "more_keys": KEY}


def rest(tenants: Tenants) -> TestResponse:
    return tenants.client("bob").post(f"{API}/slices", json={**tenants.request("new"), "project": "lab"})


def dry_run(tenants: Tenants) -> TestResponse:
    body = {**tenants.request("new"), "project": "lab", "dry_run": True}
    return tenants.client("bob").post(f"{API}/slices", json=body)


def form(tenants: Tenants) -> TestResponse:
    bob = Browser(tenants, "bob")
    return bob.post("/new", {**FORM, "once": bob.once("/new")})


def grant(tenants: Tenants) -> TestResponse:
    return tenants.client("root").post(f"{API}/requests/{tenants.found['request']}/grant", json={})


def clone(tenants: Tenants) -> TestResponse:
    return tenants.client("bob").post(f"{API}/slices/exp/snapshots/before/clone", json={"name": "new"})


def slices(tenants: Tenants) -> set[str]:
    with tenants.store.read() as c:
        return set(c.scalars(sa.select(t.slices.c.name)))


@pytest.mark.parametrize(
    ("way", "made"),
    [(rest, {"new"}), (dry_run, set()), (form, {"new"}), (grant, {"large"}), (clone, {"new"})],
    ids=["rest", "dry run", "form", "grant", "clone"],
)
def test_each_way_is_bound_by_the_one_check(
    way: Callable[[Tenants], TestResponse], made: set[str], tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And succeeds without the refusal, which is the control."""

    def refuse(by: Principal, project: str) -> None:
        raise Refused(Code.DENIED, NOT_HERE)

    before = slices(tenants)
    with monkeypatch.context() as patch:
        patch.setattr(access, "make_slice", refuse)
        assert NOT_HERE in way(tenants).text.replace("No slice", "no slice")
    assert slices(tenants) == before
    assert way(tenants).status_code in (200, 202, 303)
    assert slices(tenants) == before | made
