"""A PI invites a person without an account by mail address: the link in the mail creates the account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bare_service import PATIENT
from browsers import Browser
from tenants import ALICE, PASSWORD, ROOT, Tenants

from slicemgr.config import Config, MailConfig, WebConfig
from slicemgr.config_oidc import OidcConfig
from slicemgr.errors import Code, Refused
from slicemgr.model import Role
from slicemgr.service.accounts import authentication, users
from slicemgr.service.outbound import mail, smtp
from slicemgr.service.projects import invitations, invited_accounts, members
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

API, URL, NEW = "/api/v1", "http://localhost", "nia@example.org"
OWN = {"name": "nia", "full_name": "Nia Example", "password": PASSWORD}


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    server = MailConfig(server="mail.example.org", sender="testbed@example.org")
    with Tenants(tmp_path, store=PATIENT, mail=server, web=WebConfig(url=URL)) as made:
        yield made


def link(tenants: Tenants, config: Config | None = None, whom: str = NEW) -> str:
    """The secret in the mail to an invited address; "": there is no mail."""
    invitations.create(tenants.store, tenants.config, "lab", whom, "member", ALICE)
    invitations.notify(tenants.store, config or tenants.config)
    letters = [row for row in tenants.dump()["mails"] if row.recipient == whom]
    assert all(row.user == "" for row in letters)
    return re.findall(rf"{URL}/invitation/(\S+)", letters[-1].body)[0] if letters else ""


def create(tenants: Tenants, secret: str, **changes: Any) -> Any:
    """The answer of the REST route, which needs no token."""
    body = {key: value for key, value in {**OWN, "token": secret, **changes}.items() if value is not None}
    return tenants.app.test_client().post(f"{API}/invitation", json=body)


def roles(tenants: Tenants, user: str) -> dict[str, Role]:
    with tenants.store.read() as c:
        return authentication.roles_of(c, user)


def test_the_link_creates_an_account_that_is_a_member(tenants: Tenants) -> None:
    secret = link(tenants)
    assert secret and secret not in str({**tenants.dump(), "mails": []}), "the database has its hash only"
    answer = create(tenants, secret)
    assert (answer.status_code, answer.get_json()) == (200, {"user": "nia"})
    assert roles(tenants, "nia") == {"lab": Role.MEMBER}
    (row,) = (one for one in tenants.dump()["users"] if one.name == "nia")
    assert (row.email, row.email_confirmed, row.full_name, row.admin) == (NEW, True, "Nia Example", False)
    assert row.default_project == "lab" and row.enabled
    login = tenants.app.test_client().post(f"{API}/login", json={"user": "nia", "password": PASSWORD})
    assert login.status_code == 201
    assert create(tenants, secret, name="other").status_code == 404, "the link works once"
    assert NEW not in [one.invitee for one in tenants.dump()["project_invitations"]]
    joined = [(user, detail) for user, action, detail in tenants.events() if action == "account create"]
    assert joined == [("nia", "nia by an invitation of alice to project lab")]


def test_on_the_page(tenants: Tenants) -> None:
    assert "gets a link that creates one" in Browser(tenants, "alice").get("/projects/lab").text
    page, browser = f"/invitation/{link(tenants)}", Browser(tenants)
    text = browser.get(page).text
    assert "alice</b> invited you to project <b>lab" in text and NEW in text and 'name="full_name"' in text
    fields = {**OWN, "repeated": PASSWORD}
    for wrong, words in (
        ({"name": "Nia!"}, "is not a valid user name"),
        ({"name": "bob"}, "already a user"),
        ({"repeated": "x"}, "does not match"),
        ({"password": "short", "repeated": "short"}, "characters"),
    ):
        answer = browser.post(page, {**fields, **wrong})
        assert answer.status_code in (409, 422) and words in answer.text, words
        assert 'value="Nia Example"' in answer.text and PASSWORD not in answer.text
    answer = browser.post(page, fields)
    assert answer.status_code == 303
    assert "Welcome, nia. You are a member of project lab." in browser.get("/slices").text
    assert browser.get(page).status_code == 404


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("name", None, 422),
        ("name", "bob", 409),
        ("name", "admin", 409),
        ("name", "agent", 422),
        ("full_name", "a\nb", 422),
        ("password", "short", 422),
        ("email", "root@example.org", 422),
        ("admin", True, 422),
    ],
)
def test_fields_that_are_refused_change_nothing(tenants: Tenants, field: str, value: Any, status: int) -> None:
    secret, before = link(tenants), tenants.dump()
    assert create(tenants, secret, **{field: value}).status_code == status
    assert tenants.dump() == before
    assert create(tenants, secret).status_code == 200


def test_a_link_ends_with_its_invitation(tenants: Tenants) -> None:
    """Withdrawn, expired, or of a sender who may no longer invite."""
    secret = link(tenants)
    with tenants.store.write() as c:
        i = t.project_invitations
        c.execute(i.update().where(i.c.invitee == NEW).values(expires_at=utcnow()))
    assert create(tenants, secret).status_code == 404
    secret = link(tenants, whom="second@example.org")
    members.remove_member(tenants.store, tenants.config, "lab", "second@example.org", ALICE)
    assert create(tenants, secret).status_code == 404
    secret = link(tenants, whom="third@example.org")
    members.set_member(tenants.store, tenants.config, "lab", "dave", "pi", ROOT)
    members.remove_member(tenants.store, tenants.config, "lab", "alice", ROOT)
    assert create(tenants, secret).status_code == 404


def test_an_address_that_has_an_account_by_now_gets_no_second_one(tenants: Tenants) -> None:
    secret = link(tenants)
    users.invite(tenants.store, tenants.config, {"name": "nia2", "email": NEW}, ROOT)
    answer = create(tenants, secret)
    assert answer.status_code == 409 and "sign in with it" in answer.get_json()["hint"]


@pytest.mark.parametrize("why", ["setting", "url", "passwords"])
def test_without_such_accounts_there_is_no_mail_and_no_link(tenants: Tenants, why: str) -> None:
    """A link that was sent before does not work either."""
    config, secret = tenants.config, link(tenants)
    changed = {
        "setting": replace(config, people=replace(config.people, invited_accounts=False)),
        "url": replace(config, web=replace(config.web, url="")),
        "passwords": replace(config, oidc=OidcConfig(issuer="https://id.example.org", passwords=False)),
    }[why]
    assert link(tenants, changed, "second@example.org") == ""
    assert invited_accounts.find(tenants.store, config, secret), "the control"
    assert invited_accounts.find(tenants.store, changed, secret) is None
    with pytest.raises(Refused) as error:
        invited_accounts.create(tenants.store, changed, _no_authenticator(), secret, {"name": "nia"}, PASSWORD, "")
    assert error.value.code is Code.NOT_FOUND


def _no_authenticator() -> Any:
    """It is not reached."""
    return None


def test_two_uses_at_once_create_one_account(tenants: Tenants) -> None:
    secret = link(tenants)
    with ThreadPoolExecutor(2) as pool:
        both = [*pool.map(lambda name: create(tenants, secret, name=name).status_code, ("nia", "mia"))]
    assert sorted(both) == [200, 404]


def test_the_secret_leaves_the_database_once_the_mail_was_sent(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message a day from a project to an address, however often it is invited."""
    secret = link(tenants)
    sent: list[str] = []
    monkeypatch.setattr(smtp.Server, "send", lambda _, letter, mark: sent.append(letter.body))
    mail.deliver(tenants.store, tenants.config)
    assert len(sent) == 1 and secret in sent[0] and secret not in str(tenants.dump()["mails"])
    members.remove_member(tenants.store, tenants.config, "lab", NEW, ALICE)
    invitations.create(tenants.store, tenants.config, "lab", NEW, "member", ALICE)
    invitations.notify(tenants.store, tenants.config, utcnow() + timedelta(minutes=1))
    mail.deliver(tenants.store, tenants.config)
    assert len(sent) == 1


def test_an_admins_link_takes_no_name(tenants: Tenants) -> None:
    made = users.invite(tenants.store, tenants.config, {"name": "mia"}, ROOT)
    answer = create(tenants, made.secret)
    assert answer.status_code == 422 and "the account of this link is mia" in answer.text
    assert create(tenants, made.secret, name=None, full_name=None).status_code == 200
