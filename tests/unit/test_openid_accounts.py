"""Accounts of OpenID Connect sign-ins: existing ones, new ones, and refusals."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from browsers import Browser
from openid_provider import Provider
from tenants import PASSWORD, ROOT, Tenants
from test_openid import come, people, sessions_of, settings
from werkzeug.serving import make_server
from werkzeug.test import TestResponse

from slicemgr import cli
from slicemgr.config import Config
from slicemgr.config_oidc import OidcConfig
from slicemgr.config_oidc import check as check_settings
from slicemgr.errors import Refused
from slicemgr.service.accounts import users
from slicemgr.service.views import people as people_views
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

ADDRESS = "jane.doe@example.org"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Provider() as made:
        yield made


@contextmanager
def having(folder: Path, provider: Provider, **more: Any) -> Iterator[Tenants]:
    with Tenants(folder, **settings(folder, provider, **more)) as made:
        yield made


def invite(tenants: Tenants, name: str = "jane", email: str = ADDRESS, **more: Any) -> str:
    raw = {"name": name, "email": email, **more}
    return users.invite(tenants.store, tenants.config, raw, ROOT).secret


def account(tenants: Tenants, name: str) -> dict[str, Any]:
    with tenants.store.read() as c:
        return people_views.users(c, ROOT, name)[0]


def change(tenants: Tenants, name: str, **values: Any) -> None:
    with tenants.store.write() as c:
        c.execute(t.users.update().where(t.users.c.name == name).values(**values))


def link(browser: Browser, provider: Provider, path: str = "/account/openid") -> TestResponse:
    """By a form of this browser's, and back."""
    page = browser.post(path)
    found = re.search(r'class="button primary" href="([^"]+)"', page.text)
    assert page.status_code == 200 and found, page.text
    return browser.get(provider.visit(found[1].replace("&amp;", "&")))


def failures(tenants: Tenants) -> list[str]:
    return [detail for _, action, detail in tenants.events() if action == "sign-in failed"]


# new accounts


def test_who_was_invited_by_address(tmp_path: Path, provider: Provider) -> None:
    with having(tmp_path, provider, domains=()) as tenants:
        secret = invite(tenants, email="Jane.Doe@Example.org", admin=True)
        stranger = Browser(tenants)
        assert come(stranger, provider).status_code == 303
        assert sessions_of(tenants, "jane") == 1
        known = account(tenants, "jane")
        assert (known["origin"], known["openid"], known["admin"]) == ("local", ADDRESS, True)
        assert Browser(tenants).get(f"/invitation/{secret}").status_code == 404, "the link is used up"


@pytest.mark.parametrize("how", ["nobody", "another", "ended", "unverified"])
def test_who_was_not(how: str, tmp_path: Path, provider: Provider) -> None:
    with having(tmp_path, provider, domains=()) as tenants:
        if how != "nobody":
            invite(tenants, email="joe@example.org" if how == "another" else ADDRESS)
        if how == "ended":
            with tenants.store.write() as c:
                c.execute(t.invitations.update().values(expires_at=utcnow()))
        provider.person["email_verified"] = how != "unverified"
        before, stranger = people(tenants), Browser(tenants)
        answer = come(stranger, provider)
        assert answer.status_code in (403, 409) and people(tenants) == before
        assert stranger.get("/slices").status_code == 303
        assert len(failures(tenants)) == 1
        with tenants.store.read() as c:
            e = t.events.c
            assert c.scalar(sa.select(e.address).where(e.action == "sign-in failed")) == "127.0.0.1"


@pytest.mark.parametrize("verified", [False, None, "false", 1, "yes"])
def test_an_address_that_is_not_verified(verified: Any, tmp_path: Path, provider: Provider) -> None:
    provider.person["email_verified"] = verified
    with having(tmp_path, provider) as tenants:
        answer = come(Browser(tenants), provider)
        assert answer.status_code == 403
        assert "provide a verified email address" in answer.text
        provider.person["email_verified"] = True
        assert come(Browser(tenants), provider).status_code == 303, "the control"


@pytest.mark.parametrize("address", ["jane@example.org.evil.example", "jane@evil.example", "jane@sub.example.org"])
def test_an_address_elsewhere(address: str, tmp_path: Path, provider: Provider) -> None:
    provider.person["email"] = address
    with having(tmp_path, provider) as tenants:
        answer = come(Browser(tenants), provider)
        assert answer.status_code == 403 and f"no account for {address}" in answer.text


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        ("Jane.Döe", "jane-doe"),
        ("bob", "bob-2"),
        ("admin", "admin-2"),
        ("agent", "agent-2"),
        ("42", "u-42"),
        ("李", "u"),
        ("x" * 80, "x" * 27),
        ("<script>", "script"),
        (None, "jane-doe"),
        (7, "jane-doe"),
    ],
)
def test_what_it_is_called(claim: Any, name: str, tmp_path: Path, provider: Provider) -> None:
    """The name of the issuer, but never the name of another user."""
    provider.person["preferred_username"] = claim
    with having(tmp_path, provider) as tenants:
        before = people(tenants)
        assert come(Browser(tenants), provider).status_code == 303
        assert people(tenants) - before == {name}
        made = account(tenants, name)
        assert (made["origin"], made["email"], made["admin"], made["projects"]) == ("openid", ADDRESS, False, {})


# existing accounts


def test_an_address_opens_nobodys_account(tmp_path: Path, provider: Provider) -> None:
    """Only the user of the account can link it; after that, the sign-in works."""
    with having(tmp_path, provider) as tenants:
        change(tenants, "bob", email=ADDRESS)
        before, stranger = people(tenants), Browser(tenants)
        answer = come(stranger, provider)
        assert answer.status_code == 409 and "link it under Keys and tokens" in answer.text
        assert people(tenants) == before and stranger.get("/slices").status_code == 303
        bob = Browser(tenants, "bob")
        assert link(bob, provider).headers["Location"] == "/account"
        assert f"linked to <b>{ADDRESS}</b>" in bob.get("/account").text
        assert come(stranger, provider).status_code == 303
        assert "exp" in stranger.get("/slices").text
        assert account(tenants, "bob")["origin"] == "local"


def test_linking_is_for_who_began_it(tmp_path: Path, provider: Provider) -> None:
    """Not for another signed-in user, nor without a session, nor for two accounts; it needs session and CSRF token."""
    with having(tmp_path, provider) as tenants:
        bob = Browser(tenants, "bob")
        page = bob.post("/account/openid").text
        target = re.search(r'class="button primary" href="([^"]+)"', page)
        assert target
        path = provider.visit(target[1].replace("&amp;", "&"))
        with (
            bob.client.session_transaction() as cookie,
            Browser(tenants, "carol").client.session_transaction() as other,
        ):
            cookie["session"] = other["session"]
        assert bob.get(path).status_code == 401
        assert not tenants.count("identities")
        assert link(Browser(tenants, "bob"), provider).status_code == 303
        refused = link(Browser(tenants, "carol"), provider)
        assert refused.status_code == 409 and "is linked to the account bob" in refused.text
        provider.person["sub"] = "another"
        assert link(Browser(tenants, "bob"), provider).status_code == 409, "one at a time"


def test_unlinking(tmp_path: Path, provider: Provider) -> None:
    """A user with a password can; a user who would be locked out gets an error."""
    with having(tmp_path, provider) as tenants:
        bob = Browser(tenants, "bob")
        link(bob, provider)
        bob.post("/account/openid/unlink")
        assert "no longer linked" in bob.get("/account").text and not tenants.count("identities")
        jane = Browser(tenants)
        come(jane, provider)
        jane.post("/account/openid/unlink")
        assert "it has no password" in jane.get("/account").text and tenants.count("identities") == 1


def test_by_the_link_of_an_invitation(tmp_path: Path, provider: Provider) -> None:
    """With any address; the link is used up, and a link for a lost identity replaces it."""
    with having(tmp_path, provider, domains=()) as tenants:
        secret = invite(tenants, email="")
        page = Browser(tenants).get(f"/invitation/{secret}").text
        assert "Sign in with Campus Login" in page
        stranger = Browser(tenants)
        assert link(stranger, provider, f"/invitation/{secret}/openid").status_code == 303
        assert stranger.get("/slices").status_code == 200
        assert Browser(tenants).post(f"/invitation/{secret}/openid").status_code == 404
        again = users.invite_again(tenants.store, tenants.config, "jane", ROOT).secret
        provider.person["sub"] = "another"
        assert link(Browser(tenants), provider, f"/invitation/{again}/openid").status_code == 303
        assert stranger.get("/slices").status_code == 303, "who it was before is out"
        assert tenants.count("identities") == 1


def test_who_is_disabled_stays_out(tmp_path: Path, provider: Provider) -> None:
    with having(tmp_path, provider) as tenants:
        jane = Browser(tenants)
        come(jane, provider)
        users.change(tenants.store, "jane-doe", {"enabled": False}, ROOT)
        assert jane.get("/slices").status_code == 303
        answer = come(jane, provider)
        assert answer.status_code == 403 and "jane-doe is disabled" in answer.text
        assert sessions_of(tenants, "jane-doe") == 0 and len(failures(tenants)) == 1
        users.change(tenants.store, "jane-doe", {"enabled": True}, ROOT)
        assert come(jane, provider).status_code == 303, "the control"


def test_a_disabled_account_is_not_left_behind(tmp_path: Path, provider: Provider) -> None:
    """Its address gets no second one."""
    with having(tmp_path, provider) as tenants:
        change(tenants, "frank", email=ADDRESS)
        before = people(tenants)
        assert come(Browser(tenants), provider).status_code == 403 and people(tenants) == before


# admins, and passwords


def test_an_admin_by_claim(tmp_path: Path, provider: Provider) -> None:
    """As long as the issuer sends the claim; a user who was made admin by an admin stays one."""
    with having(tmp_path, provider, admin_claim="groups", admin_values=("testbed-admins",)) as tenants:
        for groups, admin in (
            (["staff"], False),
            (["staff", "testbed-admins"], True),
            ("testbed-admins", True),
            (None, False),
            (["testbed-admins-not"], False),
        ):
            provider.claims = {"groups": groups}
            come(Browser(tenants), provider)
            assert account(tenants, "jane-doe")["admin"] is admin
        users.change(tenants.store, "jane-doe", {"admin": True}, ROOT)
        for groups in (["testbed-admins"], None):
            provider.claims = {"groups": groups}
            come(Browser(tenants), provider)
            assert account(tenants, "jane-doe")["admin"]


def test_nobody_is_an_admin_by_claim_otherwise(tmp_path: Path, provider: Provider) -> None:
    provider.claims = {"groups": ["testbed-admins"], "admin": True, "role": "admin"}
    with having(tmp_path, provider) as tenants:
        come(Browser(tenants), provider)
        assert account(tenants, "jane-doe")["admin"] is False


def test_without_passwords(tmp_path: Path, provider: Provider) -> None:
    """Admins keep theirs until one of them signs in by the issuer, on pages and over REST."""

    def entered(tenants: Tenants, user: str) -> set[int]:
        fields, browser = {"user": user, "password": PASSWORD}, Browser(tenants)
        proof = re.search(r'name="csrf_token" value="([^"]+)"', browser.get(f"/invitation/{secret}").text)
        assert proof
        return {
            browser.post("/sign-in", {**fields, "csrf_token": proof[1]}, proof=False).status_code,
            tenants.client().post("/api/v1/login", json=fields).status_code,
        }

    with having(tmp_path, provider, passwords=False) as tenants:
        secret = invite(tenants, name="grace", email="")
        page = Browser(tenants).get("/sign-in").text
        assert "Admins sign in with a password" in page and 'name="password"' in page
        assert entered(tenants, "bob") == {403} and entered(tenants, "root") == {303, 201}
        link(Browser(tenants, "bob"), provider)
        assert entered(tenants, "root") == {303, 201}, "bob is no admin"
        provider.person["sub"] = "another"
        link(Browser(tenants, "root"), provider)
        assert entered(tenants, "root") == {403}
        page = Browser(tenants).get("/sign-in").text
        assert 'name="password"' not in page and "Campus Login" in page
        answer = tenants.client().post("/api/v1/invitation", json={"token": secret, "password": PASSWORD})
        assert answer.status_code == 403 and "Campus Login" in answer.text
        users.change(tenants.store, "alice", {"admin": True}, ROOT)
        users.change(tenants.store, "root", {"enabled": False}, tenants.principal("alice"))
        assert entered(tenants, "alice") == {303, 201}, "no admin who comes by the issuer is left"
    with Tenants(tmp_path / "more", oidc=OidcConfig(passwords=False)) as tenants:
        secret = invite(tenants)
        assert entered(tenants, "bob") == {303, 201}, "without an issuer passwords are all there is"


def test_slicectl_tells_where_accounts_come_from(
    tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It also works for a user without a password, with a token from the page."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with having(tmp_path, provider) as tenants, served(tenants) as url:
        monkeypatch.setenv("SLICEMGR_URL", url)
        monkeypatch.setenv("SLICEMGR_TOKEN", tenants.found["root"])
        jane = Browser(tenants)
        come(jane, provider)
        assert cli.main(["user", "list", "--no-header", "-c", "name,origin,openid,has_password"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["jane-doe", "openid", ADDRESS, "no"] in rows and ["bob", "local", "-", "yes"] in rows
        monkeypatch.delenv("SLICEMGR_URL")
        monkeypatch.delenv("SLICEMGR_TOKEN")
        shown = jane.post("/account/tokens", {"label": "laptop", "scope": "read", "expires": "1d"}).headers["Location"]
        token = re.search(r'aria-label="the token">([^<]+)<', jane.get(shown).text)
        assert token
        for given, status in (("not one", 5), (token[1], 0)):
            monkeypatch.setattr(sys, "stdin", io.StringIO(given + "\n"))
            assert cli.main(["login", url, "--token-stdin"]) == status
        assert cli.main(["user", "show", "--no-header", "-c", "name,origin"]) == 0
        assert capsys.readouterr().out.split() == ["jane-doe", "openid"]


@contextmanager
def served(tenants: Tenants) -> Iterator[str]:
    """The service behind a real socket."""
    server = make_server("127.0.0.1", 0, tenants.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_settings(tmp_path: Path) -> None:
    good: dict[str, Any] = {"issuer": "https://login.example.org", "client_id": "testbed"}
    check_settings(OidcConfig(**good), "https://testbed.example")
    check_settings(Config().oidc, "")
    for field, wrong in (
        ("oidc.issuer", {"issuer": "http://login.example.org"}),
        ("oidc.issuer", {"issuer": "login.example.org"}),
        ("oidc.issuer", {"issuer": "https://login.example.org?x"}),
        ("oidc.issuer", {"issuer": ""}),
        ("oidc.client_id", {"client_id": ""}),
        ("oidc.domains", {"domains": ("@example.org",)}),
        ("oidc.scopes", {"scopes": ("email",)}),
        ("oidc.admin_values", {"admin_claim": "groups"}),
        ("oidc.admin_claim", {"admin_values": ("x",)}),
    ):
        with pytest.raises(Refused) as caught:
            check_settings(OidcConfig(**{**good, **wrong}), "https://testbed.example")
        assert caught.value.field == field
    with pytest.raises(Refused, match=r"web\.url"):
        check_settings(OidcConfig(**good), "")
