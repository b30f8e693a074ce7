"""Members of a project see only user name, name and role of each other's accounts over REST.

A fellow member and the PI request every route of the OpenAPI description, as in the table of rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tenants import Tenants
from test_rights import API, CASES

from slicemgr.model import OperationState
from slicemgr.service.views import people
from slicemgr.store import pending
from slicemgr.store import tables as t

MARK = "zq4xj7.example"  # the domain of all mail addresses, and of nothing else
PRIVATE = ("email", "admin", "enabled", "origin", "openid", "has_password", "invited_until", "default_project")
ELSEWHERE = "198.51.100.23"  # part of all source addresses, after the user name


class Addressed(Tenants):
    """Every user has a mail address, set by an admin, and has sent all requests from a separate address."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._add_addresses()

    def restore(self) -> None:
        super().restore()
        self._add_addresses()

    def _add_addresses(self) -> None:
        self.record(pending.OperationEnded(self.found["operation"], OperationState.DONE))  # ends its events
        with self.store.write() as c:
            c.execute(t.users.update().values(email=t.users.c.name + f"@{MARK}", email_confirmed=True))
            for table, column in ((t.events, "address"), (t.sessions, "address"), (t.tokens, "used_from")):
                c.execute(table.update().values({column: table.c.user + f"@{ELSEWHERE}"}))


def described(tenants: Tenants) -> set[str]:
    """The routes of the OpenAPI description, as Flask writes them."""
    paths = tenants.client().get(f"{API}/openapi.json").get_json()["paths"]
    verbs = ("get", "put", "post", "delete", "patch")
    found = {f"{verb.upper()} {path}" for path, item in paths.items() for verb in item if verb in verbs}
    return {re.sub(r"{(\w+)}", r"<\1>", one) for one in found}


def leaks(value: Any, who: str) -> Iterator[str]:
    """The places where an answer reveals more than the identity of another user, the `user` or `name` of a dict."""
    if isinstance(value, list):
        for one in value:
            yield from leaks(one, who)
    if isinstance(value, dict):
        if who not in (value.get("user"), value.get("name")) or isinstance(value.get("user"), dict):
            yield from (f"{name} of {value.get('name')}" for name in PRIVATE if value.get(name) is not None)
        for one in value.values():
            yield from leaks(one, who)


def found_by(tenants: Tenants, who: str, route: str) -> tuple[int, list[str]]:
    case = CASES[route]
    path = re.sub("[A-Z]{3,}", lambda word: tenants.found[word[0].lower()], case.path)
    answer = tenants.client(who).open(path, method=route.split()[0], json=case.json, data=case.data, buffered=True)
    text = re.sub(rf"\b{who}@({re.escape(MARK)}|{re.escape(ELSEWHERE)})", "", answer.text)
    found = [mark for mark in (MARK, ELSEWHERE) if mark in text]
    return answer.status_code, [*found, *(leaks(answer.get_json(), who) if answer.is_json else ())]


@pytest.mark.parametrize("who", ["dave", pytest.param("alice", marks=pytest.mark.long)])
def test_a_fellow_member_sees_name_and_role(who: str, tmp_path: Path) -> None:
    number = 0
    with Addressed(tmp_path) as tenants:
        routes = described(tenants)
        assert routes <= set(CASES), "a route of the description has no case"
        for route in sorted(routes):
            status, found = found_by(tenants, who, route)
            assert not found, f"{route} answers {who} {status} with {found}"
            if status < 300 and not route.startswith("GET"):
                tenants.restore()
                number += 1
    assert number > 5, "most of what changes something was refused"


def test_who_sees_more_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: accounts as formerly shown to fellow members. An admin may see all of it."""
    routes = (f"GET {API}/users", f"GET {API}/users/<name>")
    with Addressed(tmp_path) as tenants:
        assert not any(found_by(tenants, "dave", route)[1] for route in routes)
        assert found_by(tenants, "root", f"GET {API}/events")[1] == [ELSEWHERE]
        monkeypatch.setattr(people, "_FOR_MATES", (*people._FOR_MATES, "email", "admin"))
        for route in routes:
            assert {MARK, "admin of alice"} & set(found_by(tenants, "dave", route)[1])


def test_the_members_of_a_project_are_name_and_role(tmp_path: Path) -> None:
    with Addressed(tmp_path) as tenants:
        shown = tenants.client("dave").get(f"{API}/projects/lab").get_json()
        assert shown["invitations"] is None
        assert {one["user"]: (one["role"], one["enabled"]) for one in shown["members"]} == {
            "alice": ("pi", None),
            "bob": ("member", None),
            "dave": ("member", True),
        }
        bob = tenants.client("dave").get(f"{API}/users/bob").get_json()
        assert {name: value for name, value in bob.items() if value is not None} == {
            "name": "bob",
            "projects": {"hollow": "member", "lab": "member"},
        }
