"""Changes that are hard to undo: the pages and the commands ask first, and the only PI stays with the slices."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import Browser
from canned_service import Canned
from tenants import ALICE, BOB, ROOT, Tenants
from terminal import Terminal

from slicemgr import cli
from slicemgr.errors import Code, Refused
from slicemgr.service.projects import members
from slicemgr.service.slices import slices
from slicemgr.service.views import people

SLICECTL = [sys.executable, "-c", "import sys; from slicemgr.cli import main; sys.exit(main())"]


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of the form of a page, which its button sends."""
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page)
    return {name: html.unescape(value) for name, value in found}


def confirm(browser: Asked, path: str, fields: dict[str, Any] | None = None) -> str:
    """Send a form, check that only a question came of it, and confirm; the text of the question."""
    before = browser.events()
    asked = browser.post(path, fields or {})
    assert asked.status_code == 200 and browser.events() == before, "the question changes nothing"
    done = browser.client.post(path, data=hidden(asked.text))
    assert done.status_code == 303, done.text
    return html.unescape(asked.text)


class Asked(Browser):
    """A browser of a testbed whose events show what was changed."""

    def __init__(self, tenants: Tenants, who: str) -> None:
        super().__init__(tenants, who)
        self._tenants = tenants

    def events(self) -> list[tuple[str, str, str]]:
        return self._tenants.events()


def roles(tenants: Tenants, user: str) -> dict[str, str]:
    with tenants.store.read() as c:
        return dict(people.users(c, ROOT, user)[0]["projects"])


# pages


def test_leaving_a_project(tenants: Tenants) -> None:
    text = confirm(Asked(tenants, "bob"), "/projects/lab/members/bob/remove")
    assert "Leave lab?" in text and "You lose access" in text
    assert set(roles(tenants, "bob")) == {"hollow"}


def test_removing_another_member_needs_no_question(tenants: Tenants) -> None:
    assert Browser(tenants, "alice").post("/projects/lab/members/bob/remove").status_code == 303
    assert set(roles(tenants, "bob")) == {"hollow"}


def test_removing_a_key_that_a_running_slice_accepts(tenants: Tenants) -> None:
    path = f"/account/keys/{tenants.found['key']}/remove"
    text = confirm(Asked(tenants, "bob"), path)
    assert "A running slice accepts this key" in text
    with tenants.store.read() as c:
        assert people.keys(c, "bob") == []


def test_an_admin_is_asked_about_the_key_of_another_user(tenants: Tenants) -> None:
    assert "accepts this key" in confirm(Asked(tenants, "root"), f"/people/bob/keys/{tenants.found['key']}/remove")


def test_a_key_that_no_running_slice_accepts_needs_no_question(tenants: Tenants) -> None:
    slices.act(tenants.store, tenants.config, "exp", "stop", BOB, project="lab")
    with tenants.store.read() as c:
        assert [one["running_slices"] for one in people.keys(c, "bob")] == [0]
    path = f"/account/keys/{tenants.found['key']}/remove"
    assert Browser(tenants, "bob").post(path).status_code == 303


def test_making_an_admin(tenants: Tenants) -> None:
    root = Asked(tenants, "root")
    assert "Make bob an admin?" in confirm(root, "/people/bob/account/make-admin")
    with tenants.store.read() as c:
        assert people.users(c, ROOT, "bob")[0]["admin"]
    assert root.post("/people/bob/account/unmake-admin").status_code == 303


def test_inviting_an_admin_keeps_the_typed_fields(tenants: Tenants) -> None:
    fields = {"name": "zoe", "full_name": 'Zoe "<b>"', "email": "zoe@example.org", "admin": "yes"}
    assert "Invite zoe as an admin?" in confirm(Asked(tenants, "root"), "/people", fields)
    with tenants.store.read() as c:
        made = people.users(c, ROOT, "zoe")[0]
    assert (made["admin"], made["full_name"], made["email"]) == (True, 'Zoe "<b>"', "zoe@example.org")


def test_a_question_gives_no_rights(tenants: Tenants) -> None:
    for fields in ({}, {"confirmed": "yes"}):
        assert Browser(tenants, "bob").post("/people/bob/account/make-admin", fields).status_code == 403


# the only PI


def test_the_only_pi_cannot_leave_a_project_with_slices(tenants: Tenants) -> None:
    before = tenants.content()
    with pytest.raises(Refused) as error:
        members.remove_member(tenants.store, tenants.config, "lab", "alice", ALICE)
    assert error.value.code is Code.CONFLICT and tenants.content() == before
    assert error.value.message == "alice is the only PI of project lab, which has 1 slice"
    members.remove_member(tenants.store, tenants.config, "hollow", "alice", ALICE)  # has no slices


def test_with_another_pi_or_by_an_admin_the_pi_may_go(tenants: Tenants) -> None:
    members.set_member(tenants.store, tenants.config, "lab", "dave", "pi", ROOT)
    members.remove_member(tenants.store, tenants.config, "lab", "alice", ALICE)
    members.remove_member(tenants.store, tenants.config, "lab", "dave", ROOT)
    assert "lab" not in {*roles(tenants, "alice"), *roles(tenants, "dave")}


# commands


@pytest.fixture
def canned() -> Iterator[Canned]:
    key = {"id": "k1", "user": "bob", "type": "ssh-ed25519", "running_slices": 2}
    user = {"name": "bob", "full_name": "", "email": "", "admin": True, "enabled": True, "projects": {}}
    with Canned() as service:
        service.on("GET /me", user)
        service.on("GET /keys", {"keys": [key]})
        service.on("DELETE /keys/k1", {"deleted": "k1"})
        service.on("DELETE /projects/lab/members/bob", {"deleted": "bob"})
        service.on("PATCH /users/eve", user)
        yield service


COMMANDS = [
    (("key", "remove", "k1"), "DELETE /keys/k1", "accepted by running slices"),
    (("project", "remove", "lab", "bob"), "DELETE /projects/lab/members/bob", "Leave project lab?"),
    (("user", "set", "eve", "--admin"), "PATCH /users/eve", "Make eve an admin?"),
]


@pytest.mark.parametrize(("words", "request_", "question"), COMMANDS, ids=lambda one: str(one[0])[:3])
@pytest.mark.parametrize(("answer", "asked"), [("y\n", 1), ("n\n", 0)])
def test_a_command_on_a_terminal_asks(
    canned: Canned, tmp_path: Path, words: tuple[str, ...], request_: str, question: str, answer: str, asked: int
) -> None:
    environment = {**os.environ, "SLICEMGR_URL": canned.url, "SLICEMGR_TOKEN": "t", "HOME": str(tmp_path)}
    with Terminal([*SLICECTL, *words], environment) as terminal:
        terminal.type(answer)
        status, errors = terminal.end(60)
    assert question in errors
    assert len(canned.asked(request_)) == asked and (status == 0) is bool(asked)


@pytest.mark.parametrize(("words", "request_", "question"), COMMANDS, ids=lambda one: str(one[0])[:3])
def test_with_yes_and_in_a_script_nothing_is_asked(
    canned: Canned,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    request_: str,
    question: str,
) -> None:
    environment = {**os.environ, "SLICEMGR_URL": canned.url, "SLICEMGR_TOKEN": "t", "HOME": str(tmp_path)}
    with Terminal([*SLICECTL, *words, "--yes"], environment) as terminal:
        status, errors = terminal.end(60)
    assert (status, errors) == (0, "")
    for name in ("SLICEMGR_URL", "SLICEMGR_TOKEN", "HOME"):
        monkeypatch.setenv(name, environment[name])
    assert cli.main(words) == 0  # stdin of a test is no terminal
    assert len(canned.asked(request_)) == 2
