"""Every page and form for every role; and the pages that need a session or a CSRF token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsers import Browser
from page_cases import ACTORS, PAGES
from tenants import Tenants
from test_rights import watched

from slicemgr.policy.access import Principal
from slicemgr.service.accounts import sessions
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

STRANGERS = (None, "revoked", "ended", "disabled")
OPEN_TO_STRANGERS = {"GET /sign-in": 200}  # if it differs from signed-in users


def browser(tenants: Tenants, who: str | None) -> Browser:
    """A browser that is signed in, or was."""
    if who is None or who in ACTORS:
        return Browser(tenants, who)
    made = sessions.start(tenants.store, tenants.config, Principal("frank" if who == "disabled" else "bob", False), "")
    s = t.sessions
    with tenants.store.write() as c:
        if who == "revoked":
            c.execute(s.delete().where(s.c.id == made.id))
        elif who == "ended":
            c.execute(s.update().where(s.c.id == made.id).values(expires_at=utcnow()))
    return Browser(tenants).show(made.secret)


def ask(tenants: Tenants, who: str | None, route: str) -> tuple[int, str]:
    case, verb = PAGES[route], route.split()[0]
    path = re.sub("[A-Z]{3,}", lambda word: tenants.found[word[0].lower()], case.path)
    person = browser(tenants, who)
    answer = person.get(path) if verb == "GET" else person.post(path, case.form)
    if answer.status_code >= 400:
        assert answer.mimetype == "text/html" and "Traceback" not in answer.text
        assert who != "carol" or not re.search(r"(?<!&#39;)\blab\b", answer.text.split("<main", 1)[-1]), (
            "it is told of no project"
        )
    return answer.status_code, answer.headers.get("Location", "")


def besides_sessions(tenants: Tenants) -> dict[str, Any]:
    """All rows except those of sessions."""
    return {name: rows for name, rows in watched(tenants).items() if name != "sessions"}


@pytest.mark.parametrize("route", PAGES)
def test_who_may(route: str, tenants: Tenants) -> None:
    """The status for every role; refused requests change nothing, others are redirected to the sign-in page."""
    case = PAGES[route]
    seen: dict[str | None, int] = {}
    for who in (*STRANGERS, *ACTORS):
        before = besides_sessions(tenants)
        seen[who], target = ask(tenants, who, route)
        if who in STRANGERS and len(case.expected) > 1 and route not in OPEN_TO_STRANGERS:
            assert target.startswith("/sign-in"), "they sign in first"
        if seen[who] >= 400 or route.startswith("GET") or who in STRANGERS:
            assert besides_sessions(tenants) == before, f"{who} changed something"
        else:
            tenants.restore()
    strangers = case.expected[0] if len(case.expected) == 1 else OPEN_TO_STRANGERS.get(route, 303)
    expected = case.expected * 5 if len(case.expected) == 1 else case.expected
    assert [seen[who] for who in ACTORS] == list(expected)
    assert {seen[who] for who in STRANGERS} == {strangers}


@pytest.mark.parametrize("route", [route for route in PAGES if route.startswith("POST")])
def test_a_form_of_another_site_does_nothing(route: str, tenants: Tenants) -> None:
    """Without the proof, and with that of another session."""
    path = re.sub("[A-Z]{3,}", lambda word: tenants.found[word[0].lower()], PAGES[route].path)
    bob = Browser(tenants, "bob")
    foreign = {"csrf_token": Browser(tenants, "alice").proof()}
    before = watched(tenants)
    for fields in ({}, {"csrf_token": "x"}, foreign):
        answer = bob.post(path, {**(PAGES[route].form or {}), **fields}, proof=False)
        assert answer.status_code == 400 and answer.mimetype == "text/html"
    assert watched(tenants) == before


def test_without_the_protection_it_would(tmp_path: Path) -> None:
    """The control."""
    with Tenants(tmp_path) as tenants:
        tenants.app.config["WTF_CSRF_METHODS"] = set()
        bob = Browser(tenants, "bob")
        assert bob.post("/sign-out", proof=False).status_code == 303
        assert bob.get("/slices").status_code == 303


def test_a_cookie_opens_nothing_of_rest_and_a_token_no_page(tenants: Tenants) -> None:
    assert Browser(tenants, "bob").get("/api/v1/slices").status_code == 401
    assert tenants.client("bob").get("/slices").status_code == 303
