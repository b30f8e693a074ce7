"""Quotas and requests: exactly the quota is granted under concurrency, and the rest becomes requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import PATIENT
from browsers import Browser
from hypothesis import given
from hypothesis import strategies as st
from tenants import ALICE, BOB, CAROL, DAVE, LAB_IMAGE, LAB_SHA, ROOT, Tenants, ask

from slicemgr.errors import Code, Refused
from slicemgr.model import RequestState, Role
from slicemgr.policy import quota
from slicemgr.policy.access import Principal
from slicemgr.policy.quota import Amounts, OverQuota, Quota
from slicemgr.service.accounts import users
from slicemgr.service.nodes import images
from slicemgr.service.projects import members, projects
from slicemgr.service.slices import limit_changes, requests, slices, specs
from slicemgr.service.views import events as event_views
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import pages, people
from slicemgr.service.views import slices as slice_views
from slicemgr.store import pending
from slicemgr.store import tables as t

API = "/api/v1"
DAY = timedelta(days=1)
UNLIMITED = dict.fromkeys((*quota.RESOURCES, "lease"))


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with Tenants(tmp_path, store=PATIENT) as made:
        yield made


def limit(tenants: Tenants, name: str = "lab", **limits: Any) -> None:
    """The quota is that and nothing else; so is the ceiling, unless it is named."""
    ceiling = limits.pop("ceiling", {})
    change = {"quota": {**UNLIMITED, **limits}, "ceiling": {**UNLIMITED, **ceiling}}
    projects.change(tenants.store, name, change, ROOT)


def used(tenants: Tenants, name: str = "lab") -> Amounts:
    with tenants.store.read() as c:
        return projects.used(c, name)


def request_of(tenants: Tenants, id: str, by: Principal = BOB) -> dict[str, Any]:
    with tenants.store.read() as c:
        return people.requests(c, by, id)[0]


def refused(code: Code, call: Any, *args: Any, **named: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args, **named)
    assert caught.value.code is code, caught.value
    return caught.value


# the rule


@pytest.mark.parametrize(
    ("most", "has", "adds", "fields"),
    [
        ({"slices": 2}, {"slices": 1}, {"slices": 1}, []),
        ({"slices": 2}, {"slices": 2}, {"slices": 1}, ["name"]),
        ({"slices": 2, "slivers": 3}, {"slices": 2}, {"slices": 1, "slivers": 4}, ["name", "count"]),
        ({"vcpus": 0.3}, {"vcpus": 0.1 + 0.1}, {"vcpus": 0.1}, []),
        ({"vcpus": 0.3}, {"vcpus": 0.3}, {"vcpus": 0.01}, ["cpu"]),
        ({"memory": 10}, {"memory": 99}, {"disk": 5}, []),
        ({"memory": 0}, {}, {"memory": 1}, ["memory"]),
        ({}, {"ports": 10**9}, {"ports": 10**9}, []),
    ],
)
def test_what_fits(most: dict[str, Any], has: dict[str, Any], adds: dict[str, Any], fields: list[str]) -> None:
    if not fields:
        quota.check(Quota(**most), Amounts(**has), Amounts(**adds))
        return
    with pytest.raises(OverQuota) as caught:
        quota.check(Quota(**most), Amounts(**has), Amounts(**adds))
    assert [one.field for one in caught.value.errors] == fields


@given(st.lists(st.integers(1, 5), max_size=30), st.integers(0, 20))
def test_one_after_the_other_never_exceeds(wanted: list[int], most: int) -> None:
    has = 0
    for count in wanted:
        try:
            quota.check(Quota(slivers=most), Amounts(slivers=has), Amounts(slivers=count))
        except OverQuota:
            assert has + count > most
        else:
            has += count
    assert has <= most


# enforced where it is allocated


def test_fifty_at_once_for_the_last_of_a_quota(tenants: Tenants) -> None:
    """Nine fit with the existing one, forty-one become requests; without a quota (the control) all fifty fit."""
    limit(tenants, slices=10)

    def ask_for(number: int) -> slices.Created:
        by = Principal(f"user-{number % 5}", False, {"lab": Role.MEMBER})
        return ask(tenants, by, f"race-{number}", "a race", memory="16M", ports=2)

    for number in range(5):
        users.invite(tenants.store, tenants.config, {"name": f"user-{number}"}, ROOT)
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask_for, range(50)))
    assert sum(bool(one.operation) for one in answers) == 9
    assert sum(bool(one.request) for one in answers) == 41
    assert used(tenants).slices == 10
    limit(tenants)
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask_for, range(100, 150)))
    assert all(one.operation for one in answers)


@pytest.mark.parametrize(
    ("most", "wanted", "field"),
    [
        ({"slices": 1}, {}, "name"),
        ({"slivers": 3}, {"count": 3}, "count"),
        ({"vcpus": 2.5}, {"count": 2, "cpu": 1}, "cpu"),
        ({"memory": "1G"}, {"memory": "513M"}, "memory"),
        ({"disk": "8G"}, {"disk": "5G"}, "disk"),
        ({"ports": 39}, {}, "ports"),
        ({"lease": "2d"}, {"lease": "49h"}, "lease"),
    ],
)
def test_each_resource(tenants: Tenants, most: dict[str, Any], wanted: dict[str, Any], field: str) -> None:
    """bob's slice exists: 1 sliver, 1 core, 512 MiB, 4 GiB, 20 ports."""
    limit(tenants, **most)
    before = tenants.content()
    error = refused(Code.QUOTA, ask, tenants, BOB, "more", **wanted)
    assert error.field == field and "reason" in error.hint
    assert tenants.content() == before
    limit(tenants)
    assert ask(tenants, BOB, "more", **wanted).operation


def test_what_is_stopped_counts_and_what_is_gone_does_not(tenants: Tenants) -> None:
    limit(tenants, slices=1)
    slices.act(tenants.store, tenants.config, "exp", "stop", BOB, project="lab")
    refused(Code.QUOTA, ask, tenants, BOB, "more")
    slices.act(tenants.store, tenants.config, "exp", "delete", BOB, project="lab")
    refused(Code.QUOTA, ask, tenants, BOB, "more")
    tenants.record(*[pending.SliverGone(row.sliver.id) for row in tenants.rows()])
    assert used(tenants) == Amounts()
    assert ask(tenants, BOB, "more").operation


def test_a_resize_is_within_the_quota_too(tenants: Tenants) -> None:
    limit(tenants, disk="6G")
    error = refused(
        Code.QUOTA, limit_changes.resize, tenants.store, tenants.config, "exp", {"disk": 7 << 30}, BOB, project="lab"
    )
    assert error.field == "disk"
    limit_changes.resize(tenants.store, tenants.config, "exp", {"disk": 6 << 30}, BOB, project="lab")
    assert used(tenants).disk == 6 << 30


def test_a_lease_is_as_long_as_the_project_allows(tenants: Tenants) -> None:
    """A silent request gets that much at once; a renewal is cut to it."""
    limit(tenants, lease="2d")
    client = tenants.client("bob")
    made = client.post(f"{API}/slices", json={**tenants.request("short"), "project": "lab"}).get_json()["slice"]
    shown = client.post(f"{API}/slices/exp/renew?project=lab", json={"lease": "80d"}).get_json()
    limit(tenants)
    free = client.post(f"{API}/slices/exp/renew?project=lab", json={"lease": "80d"}).get_json()
    ends, began = (datetime.fromisoformat(made[name]) for name in ("expires_at", "created_at"))
    assert ends - began == 2 * DAY
    assert shown["expires_at"] < free["expires_at"]


def test_one_projects_use_is_not_anothers(tenants: Tenants) -> None:
    limit(tenants, "rival", slices=1)
    assert ask(tenants, CAROL, "exp").operation, "names are a project's own"
    refused(Code.QUOTA, ask, tenants, CAROL, "more")
    assert ask(tenants, BOB, "more").operation


def test_a_pi_sets_the_quota_up_to_the_ceiling(tenants: Tenants) -> None:
    limit(tenants, slivers=2, lease="1d", ceiling={"slivers": 6, "lease": "4d"})
    alice = tenants.client("alice")
    answer = alice.patch(f"{API}/projects/lab", json={"quota": {"slivers": 6, "lease": "3d"}})
    assert answer.status_code == 200
    shown = answer.get_json()
    assert (shown["quota"]["slivers"], shown["quota"]["lease"]) == (6, 3 * 86400)
    assert (shown["ceiling"]["slivers"], shown["ceiling"]["lease"]) == (6, 4 * 86400)
    before = tenants.content()
    for wanted, field, text in (
        ({"slivers": 7}, "quota.slivers", "exceeds the ceiling of the project, 6"),
        ({"slivers": None}, "quota.slivers", "exceeds the ceiling of the project, 6"),
        ({"lease": "5d"}, "quota.lease", "exceeds the ceiling of the project, 4d"),
    ):
        error = refused(Code.QUOTA, projects.change, tenants.store, "lab", {"quota": wanted}, ALICE)
        assert (error.field, error.message) == (field, text) and "an admin" in error.hint
    refused(Code.DENIED, projects.change, tenants.store, "lab", {"quota": {"slivers": 3}}, BOB)
    refused(Code.DENIED, projects.change, tenants.store, "lab", {"ceiling": {"slivers": 9}}, ALICE)
    assert tenants.content() == before
    projects.change(tenants.store, "lab", {"quota": {"slivers": 7}}, ROOT)
    with tenants.store.read() as c:
        assert projects.limits(c, "lab", projects.CEILING).slivers == 7, "an admin's quota raises the ceiling"


def test_a_pi_sets_the_quota_on_the_page(tenants: Tenants) -> None:
    limit(tenants, slivers=2, ceiling={"slivers": 6})
    alice = Browser(tenants, "alice")
    page = alice.get("/projects/lab/settings").text
    assert 'name="quota.slivers"' in page and 'name="ceiling.slivers"' not in page
    fields = {"description": "ours", "quota.slivers": "5", "ceiling.slivers": "99"}
    assert alice.post("/projects/lab/settings", fields).status_code == 303
    with tenants.store.read() as c:
        both = [projects.limits(c, "lab", level).slivers for level in (projects.QUOTA, projects.CEILING)]
    assert both == [5, 6]
    answer = alice.post("/projects/lab/settings", {**fields, "quota.slivers": "7"})
    assert answer.status_code == 403 and "Exceeds the ceiling of the project, 6" in answer.text


def test_a_quota_without_a_unit_is_refused_with_what_it_may_mean(tenants: Tenants) -> None:
    for name in ("memory", "disk"):
        error = refused(Code.INVALID, projects.change, tenants.store, "lab", {"quota": {name: "30"}}, ROOT)
        assert (error.field, error.message) == (f"quota.{name}", "30 B is too little") and "30M" in error.hint
        for allowed in (0, 30, "0", "30M", "65536"):
            projects.change(tenants.store, "lab", {"quota": {name: allowed}}, ROOT)


def test_the_default_project_is_limited_by_the_node_alone(tenants: Tenants) -> None:
    assert ask(tenants, ROOT, "many", count=100, memory="16M", ports=2).operation
    shown = tenants.client("root").get(f"{API}/projects/default").get_json()
    assert shown["quota"] == shown["ceiling"] == UNLIMITED
    assert shown["used"]["slivers"] == 100


def test_used_and_limits_are_shown(tenants: Tenants) -> None:
    shown = tenants.client("dave").get(f"{API}/projects/lab").get_json()
    assert shown["used"] == {
        "slices": 1,
        "slivers": 1,
        "vcpus": 1.0,
        "ports": 20,
        "memory": 512 << 20,
        "memory_guarantee": 0,
        "disk": 4 << 30,
    }
    assert (shown["quota"]["slices"], shown["ceiling"]["slices"], shown["quota"]["lease"]) == (3, 4, 30 * 86400)
    assert {one["user"]: one["role"] for one in shown["members"]} == {"alice": "pi", "bob": "member", "dave": "member"}


# requests


def test_beyond_the_quota_over_http(tenants: Tenants) -> None:
    client = tenants.client("bob")
    body = {**tenants.request("big", count=9, ports=2), "project": "lab"}
    problem = client.post(f"{API}/slices", json=body)
    assert (problem.status_code, problem.get_json(force=True)["code"]) == (403, "quota")
    answer = client.post(f"{API}/slices", json={**body, "reason": " for the paper "})
    made = answer.get_json()["request"]
    assert answer.status_code == 202 and (made["state"], made["reason"]) == ("waiting", "for the paper")
    assert "slivers" in made["exceeds"] and made["wanted"]["count"] == 9
    again = client.post(f"{API}/slices", json={**body, "reason": "again"})
    assert again.status_code == 409, "a double click makes one request"
    within = client.post(f"{API}/slices", json={**tenants.request("small"), "project": "lab", "reason": "needless"})
    assert "operation" in within.get_json(), "within the quota at once, reason or not"


def test_a_request_that_could_never_be_met_does_not_wait(tenants: Tenants) -> None:
    before = tenants.content()
    for wrong in ({"image": "nope"}, {"type": "kvm"}, {"cpu": 99}):
        refused(Code.INVALID, ask, tenants, BOB, "wrong", "please", count=20, **wrong)
    assert tenants.content() == before


def test_granted_by_the_pi_within_the_ceiling(tenants: Tenants) -> None:
    limit(tenants, slivers=2, ceiling={"slivers": 6})
    id_ = ask(tenants, BOB, "big", "please", count=5, ports=2).request
    operation = requests.grant(tenants.store, tenants.config, id_, {}, "fine", ALICE)
    with tenants.store.read() as c:
        made = slice_views.slice(c, "big", "lab")
        assert operation_views.operation(c, operation)["kind"] == "create"
    assert (made["owner"], len(made["slivers"])) == ("bob", 5)
    shown = request_of(tenants, id_)
    assert (shown["state"], shown["decided_by"], shown["answer"]) == ("granted", "alice", "fine")
    assert shown["operation"] == operation


def test_beyond_the_ceiling_only_an_admin_grants_but_trimmed_a_pi_may(tenants: Tenants) -> None:
    limit(tenants, slivers=2, ceiling={"slivers": 4})
    first = ask(tenants, BOB, "one", "please", count=5, ports=2).request
    second = ask(tenants, BOB, "two", "please", count=5, ports=2).request
    before = tenants.content()
    refused(Code.QUOTA, requests.grant, tenants.store, tenants.config, first, {}, "", ALICE)
    assert tenants.content() == before
    requests.grant(tenants.store, tenants.config, first, {"count": 3, "memory": "64M"}, "less is enough", ALICE)
    assert (used(tenants).slivers, used(tenants).memory) == (4, (512 + 3 * 64) << 20)
    requests.grant(tenants.store, tenants.config, second, {}, "", ROOT)
    assert used(tenants).slivers == 9


def test_the_ceiling_is_looked_at_again_when_it_is_granted(tenants: Tenants) -> None:
    """Two requests that would each fit: granted at once by many, one is made."""
    limit(tenants, slivers=2, ceiling={"slivers": 6})
    ids = [ask(tenants, BOB, f"big-{number}", "please", count=5, ports=2).request for number in range(6)]

    def grant(id_: str) -> bool:
        try:
            requests.grant(tenants.store, tenants.config, id_, {}, "", ALICE)
        except OverQuota:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(grant, ids)) == 1
    assert used(tenants).slivers == 6


def test_a_request_is_decided_once(tenants: Tenants) -> None:
    id_ = tenants.found["request"]

    def grant(_: int) -> str:
        try:
            return requests.grant(tenants.store, tenants.config, id_, {}, "", ROOT)
        except Refused as error:
            assert error.code is Code.CONFLICT
            return ""

    with ThreadPoolExecutor(8) as pool:
        assert sum(bool(one) for one in pool.map(grant, range(8))) == 1
    for late in (requests.decline, requests.withdraw):
        args = (tenants.store, id_, "no", ROOT) if late is requests.decline else (tenants.store, id_, BOB)
        assert "already granted by root" in str(refused(Code.CONFLICT, late, *args))


def test_declined_with_a_reason(tenants: Tenants) -> None:
    id_ = tenants.found["request"]
    answer = tenants.client("alice").post(f"{API}/requests/{id_}/decline", json={"reason": " "})
    assert (answer.status_code, answer.get_json(force=True)["field"]) == (422, "reason")
    requests.decline(tenants.store, id_, "not this month", ALICE)
    assert request_of(tenants, id_)["answer"] == "not this month"
    assert ask(tenants, BOB, "large", "again", count=9, ports=2).request, "one may ask again"


@pytest.mark.parametrize("how", ["left", "disabled"])
def test_nothing_is_granted_to_who_is_not_there_any_more(tenants: Tenants, how: str) -> None:
    if how == "left":
        members.remove_member(tenants.store, tenants.config, "lab", "bob", ALICE)
        assert request_of(tenants, tenants.found["request"])["state"] == RequestState.WITHDRAWN
    else:
        users.change(tenants.store, "bob", {"enabled": False}, ROOT)
    refused(Code.CONFLICT, requests.grant, tenants.store, tenants.config, tenants.found["request"], {}, "", ROOT)


@pytest.mark.parametrize("changes", [{"name": "x"}, {"ssh_keys": []}, {"project": "rival"}, {"count": 0}])
def test_what_a_grant_cannot_change(tenants: Tenants, changes: dict[str, Any]) -> None:
    before = tenants.content()
    id_ = tenants.found["request"]
    refused(Code.INVALID, requests.grant, tenants.store, tenants.config, id_, changes, "", ROOT)
    assert tenants.content() == before


def test_no_more_requests_wait_than_somebody_could_read(tenants: Tenants) -> None:
    for number in range(19):
        assert ask(tenants, BOB, f"big-{number}", "please", count=20, ports=2).request
    refused(Code.CONFLICT, ask, tenants, BOB, "big-20", "please", count=20, ports=2)


# names


def test_the_same_name_in_two_projects(tenants: Tenants) -> None:
    ask(tenants, CAROL, "exp")
    both = replace(CAROL, roles={"rival": Role.MEMBER, "lab": Role.MEMBER})
    with tenants.store.read() as c:
        assert slices.find(c, "exp", CAROL).project == "rival"
        assert slices.find(c, "exp", BOB).project == "lab"
        error = refused(Code.CONFLICT, slices.find, c, "exp", both)
        assert "lab, rival" in error.hint
        assert slices.find(c, "exp", both, "lab").project == "lab"
        refused(Code.NOT_FOUND, slices.find, c, "exp", CAROL, "lab")


def test_an_admin_does_not_meet_a_tenants_slice_by_its_bare_name(tenants: Tenants) -> None:
    """`slicectl delete exp` on the node must not delete a tenant's slice after the admin's own is deleted."""
    with tenants.store.read() as c:
        refused(Code.NOT_FOUND, slices.find, c, "exp", ROOT)
        assert slices.find(c, "exp", ROOT, "lab").owner == "bob"
    shown = tenants.client("root").get(f"{API}/slices").get_json()["slices"]
    assert [one["project"] for one in shown] == ["lab"], "lists have all"


def test_whose_a_new_slice_is(tenants: Tenants) -> None:
    body = tenants.request("new")
    assert tenants.client("carol").post(f"{API}/slices", json=body).get_json()["slice"]["project"] == "rival"
    assert tenants.client("root").post(f"{API}/slices", json=body).get_json()["slice"]["project"] == "default"
    bob = tenants.client("bob")
    assert bob.post(f"{API}/slices", json=body).get_json()["slice"]["project"] == "lab", "his default project"
    assert bob.patch(f"{API}/users/bob", json={"default_project": None}).status_code == 200
    several = bob.post(f"{API}/slices", json=body)
    assert (several.status_code, several.get_json(force=True)["field"]) == (422, "project")
    for wanted, status in (("lab", 404), (7, 422), ("nope", 404)):
        answer = tenants.client("carol").post(f"{API}/slices", json={**body, "name": "x", "project": wanted})
        assert answer.status_code == status
    assert tenants.client("root").post(f"{API}/slices", json={**body, "project": "nope"}).status_code == 404


# images


def test_an_image_of_a_project_makes_only_its_slices(tenants: Tenants) -> None:
    assert ask(tenants, BOB, "own", image=LAB_IMAGE).operation
    for wanted in (LAB_IMAGE, LAB_SHA):
        assert refused(Code.INVALID, ask, tenants, CAROL, "x", image=wanted).field == "image"
        refused(Code.INVALID, ask, tenants, ROOT, "x", image=wanted)
    images.publish(tenants.store, LAB_IMAGE, ROOT)
    assert ask(tenants, CAROL, "x", image=LAB_IMAGE).operation


def test_a_projects_own_import(tenants: Tenants) -> None:
    client, data = tenants.client("carol"), b"disk" * 100
    made = client.post(f"{API}/images?name=own&format=raw", data=data)
    assert made.status_code == 202 and made.get_json()["image"]["project"] == "rival"
    assert client.get(f"{API}/operations/{made.get_json()['operation']['id']}").status_code == 200
    assert tenants.client("bob").get(f"{API}/images/own").status_code == 404
    same = tenants.client("bob").post(f"{API}/images?name=mine&format=raw&project=lab", data=data)
    assert same.status_code == 409 and "available to all" in same.get_json(force=True)["hint"]
    again = client.post(f"{API}/images?name=own&format=raw", data=data)
    assert again.status_code == 202 and again.get_json()["operation"]["id"] == made.get_json()["operation"]["id"]


# projects


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "x", "quota": 7}, "quota"),
        ({"name": "x", "quota": {"slices": -1}}, "quota.slices"),
        ({"name": "x", "quota": {"slices": True}}, "quota.slices"),
        ({"name": "x", "quota": {"vcpus": "many"}}, "quota.vcpus"),
        ({"name": "x", "quota": {"memory": "much"}}, "quota.memory"),
        ({"name": "x", "quota": {"lease": 7}}, "quota.lease"),
        ({"name": "x", "quota": {"gpus": 7}}, "quota.gpus"),
        ({"name": "x", "quota": {"slices": 5}, "ceiling": {"slices": 4}}, "ceiling.slices"),
        ({"name": "x", "pi": "nobody"}, "pi"),
        ({"name": "x", "color": "red"}, "color"),
        ({"name": "x", "description": 7}, "description"),
    ],
)
def test_projects_that_cannot_be(tenants: Tenants, raw: dict[str, Any], field: str) -> None:
    before = tenants.content()
    assert refused(Code.INVALID, projects.create, tenants.store, tenants.config, raw, ROOT).field == field
    assert tenants.content() == before


def test_a_project_with_things_in_it_stays(tenants: Tenants) -> None:
    for name in ("lab", "default"):
        refused(Code.CONFLICT, projects.delete, tenants.store, name, ROOT)
    projects.delete(tenants.store, "hollow", ROOT)
    refused(Code.NOT_FOUND, projects.delete, tenants.store, "hollow", ROOT)
    assert refused(Code.CONFLICT, projects.create, tenants.store, tenants.config, {"name": "lab"}, ROOT).field == "name"


def test_a_project_does_not_inherit_the_log_of_a_deleted_one(tenants: Tenants) -> None:
    """Its members see neither events nor operations of the tenant that had the name before; admins see all."""
    with tenants.store.write() as c:
        former = str(c.scalar(sa.select(t.operations.c.id)))
        c.execute(t.operations.update().values(project="hollow").where(t.operations.c.id == former))
    projects.delete(tenants.store, "hollow", ROOT)
    projects.create(tenants.store, tenants.config, {"name": "hollow"}, ROOT)
    members.set_member(tenants.store, tenants.config, "hollow", "carol", "pi", ROOT)
    carol = Principal("carol", False, {"hollow": Role.PI})
    with tenants.store.read() as c:
        seen = [one["action"] for one in event_views.events(c, carol, project="hollow")]
        assert seen == ["member set", "project create"]
        assert {one["action"] for one in event_views.events(c, ROOT, project="hollow")} > set(seen)
        log, _ = pages.log(c, carol, pages.LogFilter(project="hollow"), 100)
        assert [one["action"] for one in log] == seen
        assert operation_views.operations(c, ["hollow"]) == []
        assert operation_views.operation(c, former, ROOT)["project"] == "hollow"
        refused(Code.NOT_FOUND, operation_views.operation, c, former, carol)


def test_who_was_put_out_sees_nothing_any_more(tenants: Tenants) -> None:
    client = tenants.client("dave")
    assert client.get(f"{API}/slices/exp?project=lab").status_code == 200
    members.remove_member(tenants.store, tenants.config, "lab", "dave", ALICE)
    assert client.get(f"{API}/slices/exp?project=lab").status_code == 404
    refused(Code.NOT_FOUND, members.remove_member, tenants.store, tenants.config, "lab", "dave", ALICE)
    refused(
        Code.DENIED, members.remove_member, tenants.store, tenants.config, "lab", "alice", replace(ALICE, user="bob")
    )
    assert DAVE.user in tenants.client("root").get(f"{API}/users/dave").text


def test_lists_take_the_same_number_of_queries_however_many_there_are(tenants: Tenants) -> None:
    import sqlalchemy as sa

    def queries() -> int:
        seen: list[str] = []
        listener = lambda *args: seen.append(args[2])  # noqa: E731
        sa.event.listen(tenants.store.engine, "before_cursor_execute", listener)
        with tenants.store.read() as c:
            people.users(c, ROOT)
            people.project_list(c, ROOT)
            people.requests(c, ROOT)
            slice_views.slices(c, ["lab"])
        sa.event.remove(tenants.store.engine, "before_cursor_execute", listener)
        return len(seen)

    few = queries()
    for number in range(10):
        users.invite(tenants.store, tenants.config, {"name": f"user-{number}"}, ROOT)
        projects.create(tenants.store, tenants.config, {"name": f"p-{number}", "pi": f"user-{number}"}, ROOT)
        ask(tenants, BOB, f"big-{number}", "please", count=20, ports=2)
    assert queries() == few


def test_a_spec_takes_its_project_from_the_request(tenants: Tenants) -> None:
    assert specs.slice_spec(tenants.request(), tenants.config).project == "default"
    assert specs.slice_spec(tenants.request(project="lab"), tenants.config, DAY).lease == DAY
