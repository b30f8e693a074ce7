"""Leases and usage on the page of a project, and the rights to change its lease rules."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from browsers import Browser
from tenants import Tenants
from test_pages import errors

from slicemgr.service.leases import rules as lease_rules
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

LEASES = "/projects/lab/leases"


def rules(tenants: Tenants) -> dict[str, Any]:
    with tenants.store.read() as c:
        return lease_rules.view(c, tenants.config, "lab", tenants.principal("root"))


def test_a_pi_says_default_and_reminders(tenants: Tenants) -> None:
    """Fields for admins only are neither shown nor accepted."""
    alice = Browser(tenants, "alice")
    page = alice.get(LEASES).text
    assert 'name="default"' in page and 'name="window"' not in page and 'name="exempt"' not in page
    fields = {"default": "3d", "reminders": "1d, 2h", "window": "1h", "exempt": "yes"}
    assert alice.post(LEASES, fields).headers["Location"] == "/projects/lab"
    now = rules(tenants)
    assert (now["default"], now["reminders"], now["own"]) == (259200, [86400, 7200], ["default", "reminders"])
    assert not now["exempt"] and now["window"] == 0
    page = alice.get(LEASES).text
    assert 'value="3d"' in page and 'value="1d, 2h"' in page
    shown = alice.get("/projects/lab").text
    assert "3 days" in shown and "1 day, 2 hours" in shown and "at any time" in shown


def test_an_admin_says_the_rest_and_only_what_changed_is_noted(tenants: Tenants) -> None:
    root = Browser(tenants, "root")
    assert root.post(LEASES, {"window": "2d", "exempt": "yes", "reminders": "None"}).status_code == 303
    now = rules(tenants)
    assert (now["window"], now["exempt"], now["reminders"]) == (172800, True, [])
    assert "default" not in now["own"], "what was left empty stays the node's"
    assert "Leases of this project do not expire" in root.get("/projects/lab").text
    before = len(tenants.events())
    same = dict(re.findall(r'name="(default|reminders|window)" type="text" value="([^"]*)"', root.get(LEASES).text))
    root.post(LEASES, {**same, "exempt": "yes"})
    assert len(tenants.events()) == before, "the same again is no change"
    root.post(LEASES, {**same, "window": "0"})
    now = rules(tenants)
    assert (now["window"], now["exempt"]) == (0, False)
    assert tenants.events()[-1] == ("root", "project leases", "exempt False, window 0s")
    root.post(LEASES, {})
    assert rules(tenants)["own"] == []


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"default": "soon"}, "default"),
        ({"default": "9999d"}, "default"),
        ({"default": "-1d"}, "default"),
        ({"reminders": "1d, soon"}, "reminders"),
        ({"reminders": ",".join(["1d"] * 9)}, "reminders"),
        ({"window": "<b>2d"}, "window"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(tenants: Tenants, wrong: dict[str, str], field: str) -> None:
    before = rules(tenants)
    answer = Browser(tenants, "root").post(LEASES, {"default": "2d", **wrong})
    assert answer.status_code == 422 and field in errors(answer.text) and "<b>2d" not in answer.text
    assert field == "default" or 'value="2d"' in answer.text, "what was typed is kept"
    assert rules(tenants) == before


def test_members_see_the_rules_and_change_nothing(tenants: Tenants) -> None:
    page = Browser(tenants, "bob").get("/projects/lab").text
    assert "Reminders before the end" in page and LEASES not in page
    assert LEASES in Browser(tenants, "alice").get("/projects/lab").text


def test_what_a_project_used(tenants: Tenants) -> None:
    """This month and the previous one, only of the project, with zeros without usage."""
    now = utcnow()
    months = [f"{one:%Y-%m}" for one in (now.replace(day=1) - timedelta(days=1), now)]
    amounts = {"sliver_hours": 12.34, "cpu_hours": 5.0, "net_in": 3 << 30}
    with tenants.store.write() as c:
        c.execute(t.accounts.insert().values(project="lab", month=months[1], **amounts))
        c.execute(t.accounts.insert().values(project="lab", month="2020-01", sliver_hours=777.0))
        c.execute(t.accounts.insert().values(project="rival", month=months[1], sliver_hours=888.0))
    page = Browser(tenants, "bob").get("/projects/lab").text
    row = re.search(r'Sliver hours</th><td class="number">([\d.]+)</td><td class="number">([\d.]+)', page)
    assert row and row.groups() == ("0.0", "12.3")
    assert "3 GiB" in page and "777" not in page and "888" not in page
    with tenants.store.write() as c:
        c.execute(sa.delete(t.accounts))
    assert "12.3" not in Browser(tenants, "bob").get("/projects/lab").text


def test_a_node_s_page_says_how_far_limits_may_go(tenants: Tenants) -> None:
    """8 GiB of memory and 64 GiB of disk, times the overcommit of the settings."""
    page, limits = Browser(tenants, "root").get("/nodes/node1").text, tenants.config.limits
    assert f"<dd>{8 * limits.memory_overcommit:g} GiB</dd>" in page
    assert f"<dd>{64 * limits.disk_overcommit / 1024:g} TiB</dd>" in page


def test_the_navigation_leads_to_the_api(tenants: Tenants) -> None:
    bob = Browser(tenants, "bob")
    assert 'href="/api/v1/"' in bob.get("/slices").text and bob.get("/api/v1/").status_code == 200
    assert 'href="/api/v1/"' not in Browser(tenants).get("/sign-in").text


def test_the_rest_page_has_the_navigation_of_the_user(tenants: Tenants) -> None:
    bob = Browser(tenants, "bob")
    assert 'aria-label="Pages"' in bob.get("/api/v1/").text
    assert 'aria-label="Pages"' not in Browser(tenants).get("/api/v1/").text
    assert bob.get("/api/v1/slices").status_code == 401, "REST ignores the cookie"


def test_the_navigation_marks_the_page_s_entry(tenants: Tenants) -> None:
    """Also on pages that are reached from another one; the navigation is there twice, once for small screens."""
    root = Browser(tenants, "root")
    for path, entry in (
        ("/slices", "Slices"),
        ("/slices/exp?project=lab", "Slices"),
        ("/new", "Request a slice"),
        ("/projects/lab/settings", "Projects"),
        ("/projects/lab/leases", "Projects"),
        ("/new-project", "Projects"),
        ("/quotas", "Quotas"),
        ("/nodes/node1", "Nodes"),
        ("/api/v1/", "API"),
    ):
        marked = re.findall(r'aria-current="page"><svg.*?</svg>([^<]+)', root.get(path).text, re.DOTALL)
        assert marked == [entry, entry], path


def test_the_facts_of_a_node_have_labels_and_units(tenants: Tenants) -> None:
    facts = {
        "cpus": 2,
        "swap_total": 0,
        "disk_used": 1 << 30,
        "io_weight": True,
        "pids_max": 4194304,
        "later_fact": None,
    }
    with tenants.store.write() as c:
        c.execute(t.nodes.update().values(facts=facts))
    page = Browser(tenants, "root").get("/nodes/node1").text
    shown = re.findall("<dt>([^<]+)</dt><dd>([^<]+)</dd>", page[page.index('id="facts"') :])
    assert shown == [
        ("CPU cores", "2"),
        ("Swap total", "0 B"),
        ("Pool used", "1 GiB"),
        ("Disk I/O weight", "yes"),
        ("Maximum processes", "4194304"),
        ("Later fact", "-"),
    ]


def test_an_admin_without_a_password_finds_how_to_set_one(tenants: Tenants) -> None:
    """The account of the built-in admin signs in by a link; the token of the node cannot be revoked here by mistake."""
    with tenants.store.write() as c:
        c.execute(t.users.update().values(password="").where(t.users.c.name == "root"))
        c.execute(t.tokens.update().values(label="local admin").where(t.tokens.c.user == "root"))
    page = Browser(tenants, "root").get("/account").text
    assert "Your account has no password" in page and "used by the node" in page and "Current password" not in page
    assert "Current password" in Browser(tenants, "bob").get("/account").text
