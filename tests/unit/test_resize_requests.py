"""Resizing beyond the quota: a request with the new disk limit, over REST, the pages and the Python client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from browsers import Browser
from tenants import ALICE, BOB, DAVE, ROOT, Tenants, with_mail
from test_projects import limit, refused, request_of

from slicemgr import store as stores
from slicemgr.errors import Code
from slicemgr.model import GIB, Phase, Scope
from slicemgr.policy.access import Principal
from slicemgr.service.slices import limit_changes, requests, slices
from slicemgr.store import pending, schema
from slicemgr.store import tables as t

EXP = "/slices/exp?project=lab"
RESIZE = "/slices/exp/resize?project=lab"
API = f"/api/v1{RESIZE}"


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    """A testbed that sends mail; lab has a quota of 5 GiB of disk and a ceiling of 8 GiB; bob has one sliver."""
    with with_mail(tmp_path) as made:
        limit(made, disk="5G", ceiling={"disk": "8G"})
        yield made


def disk(tenants: Tenants) -> int:
    return tenants.rows()[0].sliver.limits.disk


def wait(tenants: Tenants, size: int = 6 * GIB, by: Principal = BOB) -> str:
    """The id of a request to resize bob's slice."""
    made = limit_changes.resize(
        tenants.store, tenants.config, "exp", {"disk": size}, by, project="lab", why="data sets"
    )
    assert not made.operation
    return made.request


def grant(tenants: Tenants, id: str, by: Principal = ALICE, **trimmed: Any) -> str:
    return requests.grant(tenants.store, tenants.config, id, trimmed, "", by)


def test_within_the_quota_it_is_done_at_once_and_beyond_it_waits(tenants: Tenants) -> None:
    bob, before = tenants.client("bob"), disk(tenants)
    assert bob.post(API, json={"disk": "6G"}).status_code == 403
    answer = bob.post(API, json={"disk": "6G", "reason": "data sets"})
    assert answer.status_code == 202 and set(answer.get_json()) == {"request"} and disk(tenants) == before
    found = answer.get_json()["request"]
    assert (found["action"], found["name"], found["project"]) == ("resize", "exp", "lab")
    assert (found["wanted"], found["reason"]) == ({"disk": 6 * GIB}, "data sets") and "left in the" in found["exceeds"]
    answer = bob.post(API, json={"disk": "5G", "reason": "data sets"})
    assert set(answer.get_json()) == {"operation", "slice"} and disk(tenants) == 5 * GIB
    assert bob.post(API, json={"disk": "7G", "reason": "more"}).status_code == 409, "one request waits already"


def test_memory_within_the_quota_is_changed_at_once_and_beyond_it_waits(tenants: Tenants) -> None:
    bob = tenants.client("bob")
    limit(tenants, memory="2G", memory_guarantee="512M", ceiling={"memory": "4G", "memory_guarantee": "1G"})
    changes = {"memory": "1G", "memory_guarantee": "512M", "memory_weight": 300}
    answer = bob.post(API, json=changes)
    assert answer.status_code == 202, answer.text
    limits = tenants.rows()[0].sliver.limits
    assert (limits.memory, limits.memory_guarantee, limits.memory_weight) == (GIB, GIB // 2, 300)
    assert answer.get_json()["slice"]["slivers"][0]["limits"]["memory_guarantee"] == GIB // 2
    answer = bob.post(API, json={"memory_guarantee": "768M"})
    assert (answer.status_code, answer.get_json()["field"]) == (403, "memory_guarantee")
    assert "0 MiB of 512 MiB left" in answer.text
    waiting = bob.post(API, json={"memory_guarantee": "768M", "reason": "a cache"}).get_json()["request"]["id"]
    page = Browser(tenants, "alice").get(f"/requests/{waiting}").text
    assert "768 MiB" in page and "Current memory guarantee per sliver" in page and 'name="disk"' not in page
    grant(tenants, waiting, memory_guarantee="640M")
    assert tenants.rows()[0].sliver.limits.memory_guarantee == 640 << 20
    assert request_of(tenants, waiting)["granted"] == {"memory_guarantee": 640 << 20}


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({}, "disk", "give at least one of disk, memory, memory_guarantee, memory_weight"),
        ({"memory": "128M"}, "memory", "less than the memory guarantee"),
        ({"memory_guarantee": "1G"}, "memory_guarantee", "exceeds the memory limit"),
        ({"memory_weight": 0}, "memory_weight", "out of range"),
    ],
)
def test_memory_that_a_sliver_cannot_have_is_refused(
    tenants: Tenants, changes: dict[str, Any], field: str, says: str
) -> None:
    bob = tenants.client("bob")
    assert bob.post(API, json={"memory_guarantee": "256M"}).status_code == 202
    before = tenants.rows()[0].sliver.limits
    answer = bob.post(API, json=changes)
    problem = answer.get_json()
    assert (problem["code"], problem["field"]) == ("invalid", field), problem
    assert says in problem["detail"] + problem["hint"]
    assert tenants.rows()[0].sliver.limits == before


def test_a_running_machine_gets_no_more_memory_than_it_started_with(tenants: Tenants) -> None:
    """It started with 512 MiB; without that in its row, it keeps what it has."""
    bob = tenants.client("bob")
    sliver = tenants.rows()[0].sliver.id
    with tenants.store.write() as c:
        c.execute(t.slices.update().values(type="kvm"))
    assert "not known with how much" in bob.post(API, json={"memory": "256M"}).get_json()["detail"]
    tenants.record(pending.SliverSeen(sliver, Phase.RUNNING, memory_started=512 << 20))
    for memory in ("256M", "512M"):
        assert bob.post(API, json={"memory": memory}).status_code == 202
    refused = bob.post(API, json={"memory": "513M"})
    assert (refused.status_code, refused.get_json()["field"]) == (409, "memory")
    assert "it started with 512 MiB" in refused.text and "slicectl stop exp" in refused.get_json()["hint"]
    with tenants.store.write() as c:
        c.execute(t.slivers.update().values(desired="stopped"))
    assert bob.post(API, json={"memory": "600M"}).status_code == 202


def test_a_grant_resizes(tenants: Tenants) -> None:
    waiting = wait(tenants)
    answer = tenants.client("alice").post(f"/api/v1/requests/{waiting}/grant", json={})
    assert answer.status_code == 202, answer.text
    assert disk(tenants) == 6 * GIB
    made = answer.get_json()
    assert made["operation"]["kind"] == "resize" and made["slice"]["name"] == "exp"
    found = request_of(tenants, waiting)
    assert (found["state"], found["granted"], found["unread"]) == ("granted", None, True)
    with tenants.store.read() as c:
        ((subject, body),) = c.execute(sa.select(t.mails.c.subject, t.mails.c.body)).all()
    assert subject == "request to resize slice exp of project lab: granted" and "granted by alice" in body
    actions = [action for _, action, _ in tenants.events()]
    assert "request grant" in actions and "resize" in actions


def test_a_trimmed_grant_shows_both_limits(tenants: Tenants) -> None:
    waiting = wait(tenants, 9 * GIB)
    error = refused(Code.QUOTA, grant, tenants, waiting)
    assert "project ceiling" in error.message and "an admin" in error.hint
    refused(Code.INVALID, grant, tenants, waiting, count=1)
    refused(Code.CONFLICT, grant, tenants, waiting, disk="1G")
    assert request_of(tenants, waiting)["state"] == "waiting"
    grant(tenants, waiting, disk="8G")
    assert disk(tenants) == 8 * GIB and request_of(tenants, waiting)["granted"] == {"disk": 8 * GIB}
    detail = next(detail for _, action, detail in tenants.events() if action == "request grant")
    assert detail.endswith("disk 8.0 GiB instead of 9.0 GiB")
    page = Browser(tenants, "bob").get(f"/requests/{waiting}").text
    assert "9 GiB" in page and "granted: 8 GiB" in page


def test_an_admin_grants_beyond_the_ceiling(tenants: Tenants) -> None:
    grant(tenants, wait(tenants, 9 * GIB), ROOT)
    assert disk(tenants) == 9 * GIB


def test_declined_and_withdrawn_requests_change_nothing(tenants: Tenants) -> None:
    before, first = disk(tenants), wait(tenants)
    requests.decline(tenants.store, first, "no space", ALICE, tenants.config)
    second = wait(tenants)
    requests.withdraw(tenants.store, second, BOB)
    for one, state in ((first, "declined"), (second, "withdrawn")):
        assert request_of(tenants, one)["state"] == state
        refused(Code.CONFLICT, grant, tenants, one)
    assert disk(tenants) == before


@pytest.mark.parametrize(("by", "code"), [(BOB, Code.DENIED), (DAVE, Code.NOT_FOUND)])
def test_only_pis_and_admins_grant(tenants: Tenants, by: Principal, code: Code) -> None:
    waiting, before = wait(tenants), disk(tenants)
    refused(code, grant, tenants, waiting, by)
    assert disk(tenants) == before


def test_only_who_may_resize_can_request_it(tenants: Tenants) -> None:
    refused(Code.DENIED, wait, tenants, by=DAVE)
    reader = Principal("bob", False, BOB.roles, Scope.READ)
    refused(Code.DENIED, wait, tenants, by=reader)


def test_a_request_ends_with_its_slice(tenants: Tenants) -> None:
    """Another slice of that name is not resized by the request for the first one."""
    waiting = wait(tenants)
    slices.act(tenants.store, tenants.config, "exp", "delete", ALICE, project="lab")
    found = request_of(tenants, waiting)
    assert (found["state"], found["answer"], found["unread"]) == ("withdrawn", "slice exp was deleted", True)
    refused(Code.CONFLICT, wait, tenants)


def test_a_grant_without_the_slice_is_refused(tenants: Tenants) -> None:
    """As after a slice was removed in another way than by its deletion."""
    waiting = wait(tenants)
    tenants.record(*[pending.SliverGone(row.sliver.id) for row in tenants.rows()])
    assert "no longer exists" in refused(Code.CONFLICT, grant, tenants, waiting).message
    assert "Grant and resize" in Browser(tenants, "alice").get(f"/requests/{waiting}").text
    requests.decline(tenants.store, waiting, "it is gone", ALICE)


def test_a_requester_who_left_gets_nothing(tenants: Tenants) -> None:
    waiting, before = wait(tenants), disk(tenants)
    with tenants.store.write() as c:
        c.execute(t.members.delete().where(t.members.c.user == "bob", t.members.c.project == "lab"))
    refused(Code.CONFLICT, grant, tenants, waiting)
    assert disk(tenants) == before


def test_the_form_offers_the_request_when_the_quota_refuses(tenants: Tenants) -> None:
    bob, alice = Browser(tenants, "bob"), Browser(tenants, "alice")
    assert 'name="reason"' not in bob.get(EXP).text
    answer = bob.post(RESIZE, {"disk": "6G"})
    assert answer.status_code == 403 and 'name="reason"' in answer.text and 'data-open="settings"' in answer.text
    assert "exceeds the quota of the project" in answer.text and "`reason`" not in answer.text
    answer = bob.post(RESIZE, {"disk": "6G", "reason": "data <sets>"})
    assert answer.status_code == 303 and "/requests/" in answer.headers["Location"]
    assert "<b>exp</b> (resize) in lab" in bob.get("/slices").text
    where = answer.headers["Location"]
    page = alice.get(where).text
    assert "Request to resize exp" in page and "data &lt;sets&gt;" in page and "6 GiB" in page
    assert 'name="count"' not in page and "Current disk per sliver" in page
    assert "<small>resize</small>" in alice.get("/requests").text
    answer = alice.post(f"{where}/grant", {"disk": "5.5G", "answer": "half of it"})
    assert answer.status_code == 303 and disk(tenants) == 11 * GIB // 2
    page = bob.get(where).text
    assert "Granted with less than requested by alice" in page and "granted: 5.5 GiB" in page


def test_an_earlier_version_does_not_create_slices_for_it(tenants: Tenants) -> None:
    waiting = wait(tenants)
    tenants.store.close()
    schema.downgrade(tenants.config.store_url, "0020")
    schema.upgrade(tenants.config.store_url)
    with stores.open(tenants.config) as store, store.read() as c:
        left = set(c.scalars(sa.select(t.requests.c.id)))
    assert waiting not in left and tenants.found["request"] in left
