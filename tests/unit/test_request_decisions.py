"""What the user of a request reads of the decision: the granted values, mail, and a count until it is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from browsers import Browser
from tenants import ALICE, BOB, ROOT, Tenants, ask, with_mail
from test_projects import limit, request_of

from slicemgr.config import MailConfig
from slicemgr.errors import Code
from slicemgr.policy.quota import OverQuota
from slicemgr.service.slices import requests
from slicemgr.service.slices.decisions import granted_text
from slicemgr.service.views import pages as page_views
from slicemgr.store import tables as t


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    """A testbed that sends mail; bob has an address."""
    with with_mail(tmp_path) as made:
        yield made


@pytest.fixture
def waiting(tenants: Tenants) -> str:
    """The id of bob's request for five slivers, beyond the quota and within the ceiling."""
    limit(tenants, slivers=2, ceiling={"slivers": 9})
    return ask(tenants, BOB, "big", "please", count=5, ports=2).request


def letters(tenants: Tenants) -> list[tuple[str, str, str]]:
    m = t.mails.c
    with tenants.store.read() as c:
        return [tuple(row) for row in c.execute(sa.select(m.user, m.subject, m.body))]


def unread(tenants: Tenants) -> int:
    with tenants.store.read() as c:
        return page_views.decided(c, BOB)


def test_a_trimmed_grant_shows_what_was_granted(tenants: Tenants, waiting: str) -> None:
    changes = {"count": 3, "lease": "2d", "ports": 2}  # as many ports as requested
    requests.grant(tenants.store, tenants.config, waiting, changes, "less is enough", ALICE)
    found = request_of(tenants, waiting)
    assert (found["state"], found["granted"], found["wanted"]["count"]) == ("granted", {"count": 3, "lease": "2d"}, 5)
    detail = next(detail for _, action, detail in tenants.events() if action == "request grant")
    assert detail.endswith("of bob: count 3 instead of 5, lease 2d instead of the default")
    ((user, subject, body),) = letters(tenants)
    assert (user, subject) == ("bob", "request for slice big of project lab: granted with less than requested")
    assert "count 3 instead of 5, lease 2d instead of the default" in body and "less is enough" in body
    page = Browser(tenants, "bob").get(f"/requests/{waiting}").text
    assert "Granted with less than requested by alice" in page and "granted: 3" in page and "granted: 2d" in page


def test_a_grant_as_requested_has_nothing_to_show(tenants: Tenants, waiting: str) -> None:
    requests.grant(tenants.store, tenants.config, waiting, {"count": 5}, "", ALICE)
    assert request_of(tenants, waiting)["granted"] is None
    ((_, subject, body),) = letters(tenants)
    assert subject.endswith("big of project lab: granted") and "instead of" not in body


def test_a_declined_request_is_mailed_with_its_reason(tenants: Tenants, waiting: str) -> None:
    answer = tenants.client("alice").post(f"/api/v1/requests/{waiting}/decline", json={"reason": "not this month"})
    assert answer.status_code == 200
    ((user, subject, body),) = letters(tenants)
    assert user == "bob" and subject.endswith(": declined") and "not this month" in body


def test_the_count_ends_when_the_requester_opens_the_request(tenants: Tenants, waiting: str) -> None:
    bob, alice = Browser(tenants, "bob"), Browser(tenants, "alice")
    assert unread(tenants) == 0
    requests.decline(tenants.store, waiting, "no", ALICE, tenants.config)
    assert unread(tenants) == 1 and request_of(tenants, waiting)["unread"]
    assert "1 decision to read" in bob.get("/requests").text
    assert "decision to read" not in alice.get(f"/requests/{waiting}").text
    assert unread(tenants) == 1, "only the requester reads it"
    bob.get(f"/requests/{waiting}")
    assert unread(tenants) == 0 and not request_of(tenants, waiting)["unread"]
    assert "decision to read" not in bob.get("/requests").text


def test_who_decides_about_the_own_request_is_not_notified(tenants: Tenants) -> None:
    limit(tenants, slivers=2, ceiling={"slivers": 9})
    own = ask(tenants, ALICE, "big", "please", count=5, ports=2).request
    requests.grant(tenants.store, tenants.config, own, {}, "", ALICE)
    assert letters(tenants) == [] and not request_of(tenants, own, ALICE)["unread"]


def test_without_a_server_nothing_is_queued(tenants: Tenants, waiting: str) -> None:
    config = replace(tenants.config, mail=MailConfig())
    requests.decline(tenants.store, waiting, "no", ALICE, config)
    assert letters(tenants) == [] and unread(tenants) == 1


def test_beyond_the_ceiling_a_pi_reads_who_decides(tenants: Tenants) -> None:
    limit(tenants, slivers=2)
    waiting = ask(tenants, BOB, "big", "please", count=5, ports=2, lease="7d").request
    limit(tenants, slivers=2, lease="1d", ceiling={"slivers": 4, "lease": "2d"})
    with pytest.raises(OverQuota) as error:
        requests.grant(tenants.store, tenants.config, waiting, {}, "", ALICE)
    by_field = {one.field: one for one in error.value.errors}
    assert set(by_field) == {"count", "lease"} and error.value.code is Code.QUOTA
    assert by_field["count"].message == "5 slivers requested, 3 of 4 left in the project ceiling"
    assert by_field["lease"].message == "7d exceeds the longest lease in the project ceiling, 2d"
    assert all("an admin of the testbed" in one.hint for one in error.value.errors)
    requests.grant(tenants.store, tenants.config, waiting, {}, "", ROOT)


def test_a_lease_beyond_the_quota_has_its_own_row(tenants: Tenants) -> None:
    limit(tenants, lease="3d")
    form: dict[str, Any] = {"project": "lab", "type": "lxc", "count": "1"}
    bob = Browser(tenants, "bob")
    rows = {
        lease: re.findall(r"<b>(\w[\w ]*)</b> <span>", bob.post("/new/cost", {**form, "lease": lease}).text)
        for lease in ("2d", "7d")
    }
    assert "Lease" not in rows["2d"] and "Lease" in rows["7d"]


def test_the_text_of_the_granted_values() -> None:
    assert (
        granted_text({"memory": "64M", "count": 2}, {"count": 40})
        == "count 2 instead of 40, memory 64M instead of the default"
    )
    assert granted_text(None, {}) == granted_text({}, {"count": 1}) == ""
