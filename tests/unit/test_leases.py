"""Leases through the service: rules of projects, reminders, the end with its reason, a wrong clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN
from tenants import ALICE, BOB, CAROL, ROOT, Tenants

from slicemgr.errors import Code, Refused
from slicemgr.model import Desired
from slicemgr.service.leases import clock, leases
from slicemgr.service.leases import rules as lease_rules
from slicemgr.service.leases.clock import Uptime
from slicemgr.service.slices import slices
from slicemgr.service.views import slices as slice_views
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
API = "/api/v1"


class Lab(Tenants):
    """Time passes by `later`; `off`: how far the clock is wrong."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.began = utcnow()
        self.passed = self.off = timedelta(0)

    def later(self, span: timedelta = timedelta(0)) -> int:
        self.passed += span
        return leases.expire(
            self.store, self.config, self.began + self.passed + self.off, Uptime("boot", self.passed.total_seconds())
        )

    def exp(self) -> dict[str, Any]:
        with self.store.read() as c:
            return slice_views.slice(c, "exp", "lab")

    def rules(self, **raw: Any) -> None:
        lease_rules.change(self.store, self.config, "lab", raw, ROOT)

    def desired(self) -> set[str]:
        with self.store.read() as c:
            return set(c.scalars(sa.select(t.slivers.c.desired)))

    def actions(self) -> list[str]:
        return [action for _, action, _ in self.events()]

    def settle(self) -> None:
        with self.store.write() as c:
            c.execute(t.operations.update().values(state="done"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as made:
        made.later()
        yield made


def refused(code: Code, call: Any, *args: Any, **more: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args, **more)
    assert caught.value.code is code
    return caught.value


def test_reminders_then_stop_then_delete_each_with_its_reason(lab: Lab) -> None:
    """A lease of 7 days, reminders 3 days, 1 day and 2 hours before its end."""
    notices = []
    for span in (4 * DAY, HOUR, 2 * DAY, 21 * HOUR, HOUR):
        lab.later(span)
        notices.append(lab.exp()["notice"])
    assert all("the lease ends at" in one and "slicectl renew exp" in one for one in notices)
    assert lab.actions().count("lease reminder") == 3, "once each"
    assert lab.later(HOUR) == 1
    assert lab.desired() == {Desired.STOPPED}
    shown = lab.exp()
    assert shown["lease_ended_at"] and shown["notice"].startswith("stopped: the lease ended at")
    assert "deleted at" in shown["notice"]
    user, action, detail = lab.events()[-1]
    assert (user, action) == ("lease", "stop") and "deleted at" in detail and "renewed" in detail
    lab.settle()
    assert lab.later(lab.config.lease.grace) == 1
    assert lab.desired() == {Desired.ABSENT}
    assert "was not renewed" in lab.exp()["notice"]


def test_who_comes_after_the_deletion_learns_why_and_a_stranger_does_not(lab: Lab) -> None:
    lab.later(8 * DAY)
    lab.later(4 * DAY)
    lab.record(*(pending.SliverGone(row.sliver.id) for row in lab.rows()))
    for who, told in (("bob", True), ("carol", False)):
        answer = lab.client(who).get(f"{API}/slices/exp?project=lab")
        assert answer.status_code == 404
        assert ("by lease: the lease ended at" in answer.get_json().get("hint", "")) is told


def test_only_slices_near_the_end_are_read(lab: Lab) -> None:
    """Reminders of a project may be earlier than those of others."""

    def read(now: timedelta) -> int:
        with lab.store.read() as c:
            return len(leases._near_the_end(c, lab.began + now + lease_rules.earliest_reminder(c, lab.config)))

    end = datetime.fromisoformat(lab.exp()["expires_at"]) - lab.began
    usual = max(lab.config.lease.reminders)
    assert read(end - usual - HOUR) == 0
    assert read(end - usual + HOUR) == 1
    lab.rules(reminders=["90d"])
    assert read(end - usual - HOUR) == 1


def test_a_renewal_begins_again(lab: Lab) -> None:
    lab.later(6 * DAY + HOUR)
    assert lab.exp()["notice"]
    answer = lab.client("bob").post(f"{API}/slices/exp/renew?project=lab", json={"lease": "20d"})
    assert answer.get_json()["trimmed"] is None
    assert lab.exp()["notice"] is None
    count = lab.actions().count("lease reminder")
    lab.later(11 * DAY)
    assert lab.actions().count("lease reminder") == count + 1, "of the new lease"


def test_what_is_granted_is_told_with_the_reason(lab: Lab) -> None:
    lab.client("root").patch(f"{API}/projects/lab", json={"quota": {"lease": "10d"}})
    shown = lab.client("bob").post(f"{API}/slices/exp/renew?project=lab", json={"lease": "80d"}).get_json()
    assert "10d is the longest" in shown["trimmed"]
    assert datetime.fromisoformat(shown["expires_at"]) < utcnow() + 10 * DAY + HOUR
    again = lab.client("bob").post(f"{API}/slices/exp/renew?project=lab", json={"lease": "1d"}).get_json()
    assert (again["expires_at"], "already ends later" in again["trimmed"]) == (shown["expires_at"], True)


def test_a_window_binds_members_and_not_admins(lab: Lab) -> None:
    lab.rules(window="1d")
    error = refused(Code.CONFLICT, slices.renew, lab.store, lab.config, "exp", 9 * DAY, BOB, project="lab")
    assert "too early" in error.message and "from 20" in error.hint
    slices.renew(lab.store, lab.config, "exp", 9 * DAY, ROOT, project="lab")
    lab.rules(window="0s")
    slices.renew(lab.store, lab.config, "exp", 10 * DAY, BOB, project="lab")


def test_an_exempt_projects_slices_do_not_end_and_begin_again_with_a_whole_lease(lab: Lab) -> None:
    lab.later(8 * DAY)
    lab.settle()
    lab.rules(exempt=True)
    lab.later(HOUR)
    shown = lab.exp()
    assert (shown["expires_at"], shown["lease_ended_at"]) == (None, None)
    assert "continues" in shown["notice"] and lab.actions()[-1] == "lease resumed"
    slices.act(lab.store, lab.config, "exp", "start", BOB, project="lab")
    refused(Code.CONFLICT, slices.renew, lab.store, lab.config, "exp", DAY, BOB, project="lab")
    assert lab.later(400 * DAY) == 0
    lab.rules(exempt=False)
    with lab.store.read() as c:
        end = c.scalar(sa.select(t.slices.c.expires_at))
    assert end is not None and end > utcnow() + 6 * DAY


def test_a_projects_own_default_and_reminders(lab: Lab) -> None:
    lease_rules.change(lab.store, lab.config, "lab", {"default": "2d", "reminders": ["6h", "1h", "6h"]}, ALICE)
    shown = lab.client("bob").get(f"{API}/projects/lab/leases").get_json()
    assert (shown["default"], shown["reminders"], shown["own"]) == (2 * 86400, [21600, 3600], ["default", "reminders"])
    made = lab.client("bob").post(f"{API}/slices", json={**lab.request("short"), "project": "lab"})
    ends, began = (datetime.fromisoformat(made.get_json()["slice"][one]) for one in ("expires_at", "created_at"))
    assert ends - began == 2 * DAY
    lease_rules.change(lab.store, lab.config, "lab", {"default": None, "reminders": None}, ALICE)
    assert lab.client("bob").get(f"{API}/projects/lab/leases").get_json()["own"] == []
    assert lab.actions().count("project leases") == 2


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"default": "200d"}, "default"),
        ({"default": 7}, "default"),
        ({"default": "1s"}, "default"),
        ({"window": "-1d"}, "window"),
        ({"reminders": "1d"}, "reminders"),
        ({"reminders": ["1d"] * 9}, "reminders"),
        ({"reminders": ["soon"]}, "reminders"),
        ({"exempt": None}, "exempt"),
        ({"exempt": "yes"}, "exempt"),
        ({"longest": "1d"}, "longest"),
    ],
)
def test_wrong_rules_are_refused_by_field(lab: Lab, raw: dict[str, Any], field: str) -> None:
    before = lab.content()
    assert refused(Code.INVALID, lab.rules, **raw).field == field
    assert lab.content() == before


def test_rules_of_another_project_are_as_if_there_was_none(lab: Lab) -> None:
    refused(Code.NOT_FOUND, lease_rules.change, lab.store, lab.config, "lab", {"default": "1d"}, CAROL)
    refused(Code.NOT_FOUND, lease_rules.change, lab.store, lab.config, "none", {"default": "1d"}, ROOT)


# the clock


def test_a_clock_that_is_set_ends_nothing_until_an_admin_confirms(lab: Lab) -> None:
    lab.off = 400 * DAY
    assert lab.later(timedelta(minutes=1)) == 0
    assert lab.later(timedelta(minutes=1)) == 0
    doubts = [detail for _, action, detail in lab.events() if action == "clock doubted"]
    assert len(doubts) == 1 and "clock confirm" in doubts[0], "said once"
    assert lab.desired() == {Desired.RUNNING} and lab.exp()["notice"] is None


def test_the_clock_comes_back_by_itself(lab: Lab) -> None:
    lab.off = 400 * DAY
    lab.later(HOUR)
    lab.off = timedelta(0)
    lab.later(HOUR)
    assert lab.actions()[-1] == "clock agrees"
    assert lab.later(7 * DAY) == 1, "and leases end when their time has passed"


def test_after_a_week_off_an_admin_says_that_the_clock_is_right(lab: Lab) -> None:
    """The clock of the node is right; the last recorded time is made a week older."""
    with lab.store.write() as c:
        ago = utcnow() - 8 * DAY
        c.execute(t.clock.update().values(seen_at=ago, boot="before"))
        c.execute(t.slices.update().values(expires_at=utcnow() - DAY, created_at=ago))
    expire = (lab.store, lab.config)
    assert leases.expire(*expire) == 0
    shown = lab.client("bob").get(f"{API}/clock").get_json()
    assert shown["held"] == 1 and "ahead" in shown["doubt"]
    refused(Code.DENIED, clock.confirm, lab.store, ALICE)
    clock.confirm(lab.store, ADMIN)
    assert lab.client("bob").get(f"{API}/clock").get_json()["doubt"] is None
    assert leases.expire(*expire) == 1


def test_without_the_comparison_a_wrong_clock_would_end_all(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr("slicemgr.policy.leases.JUMP", timedelta(days=9999))
    lab.off = 400 * DAY
    assert lab.later(timedelta(minutes=1)) == 1


def test_the_uptime_is_the_machines() -> None:
    first, second = clock.uptime(), clock.uptime()
    assert first.boot == second.boot and 0 < first.seconds <= second.seconds
