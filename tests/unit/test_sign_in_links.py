"""Links that sign in once: for one account, within their time, and whatever happens to the account meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from bare_service import ADMIN, Service
from browsers import Browser
from tenants import PASSWORD, Tenants

from slicemgr.errors import Code, Refused
from slicemgr.model import Scope
from slicemgr.service.accounts import sessions, sign_in_links, users
from slicemgr.store import schema
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


def refused(tenants: Tenants, secret: str) -> bool:
    """Whether both the page and the sign-in refuse the secret."""
    path, browser = f"{sign_in_links.PATH}{secret}", Browser(tenants)
    statuses = {browser.get(path).status_code, browser.post(path).status_code}
    assert statuses in ({200, 303}, {404})
    return statuses == {404}


def end(tenants: Tenants, **values: object) -> None:
    with tenants.store.write() as c:
        c.execute(t.sign_in_links.update().values(**values))


def test_a_link_signs_in_its_user_once(tenants: Tenants) -> None:
    made = sign_in_links.create(tenants.store, schema.ADMIN)
    assert made.secret not in str(tenants.dump()), "only its hash is stored"
    path, browser = f"{sign_in_links.PATH}{made.secret}", Browser(tenants)
    assert "Sign in as admin" in browser.get(path).text
    assert browser.get(path).status_code == 200, "opening the page does not invalidate the link"
    assert browser.post(path, proof=False).status_code == 400, "the form needs its CSRF token"
    answer = browser.post(path)
    assert answer.status_code == 303 and answer.headers["Location"] == "/slices"
    assert "You are signed in as admin" in browser.get("/slices").text
    assert browser.get("/people").status_code == 200, "the session has the rights of an admin"
    assert ("admin", "sign in", "a sign-in link") in tenants.events()
    assert refused(tenants, made.secret)


def test_a_link_is_of_one_account(tenants: Tenants) -> None:
    """A link of bob's signs bob in, whoever is signed in; a new link replaces that of the same account only."""
    first, other = (sign_in_links.create(tenants.store, name) for name in ("bob", "alice"))
    second = sign_in_links.create(tenants.store, "bob")
    assert refused(tenants, first.secret)
    browser = Browser(tenants, "alice")
    page = browser.get(f"{sign_in_links.PATH}{second.secret}").text
    assert "Sign in as bob" in page and "signed in as alice" in page
    assert browser.post(f"{sign_in_links.PATH}{second.secret}").status_code == 303
    assert "You are signed in as bob" in browser.get("/slices").text
    assert browser.get("/people").status_code in (403, 404), "bob is no admin"
    assert sign_in_links.use(tenants.store, other.secret, "").user == "alice"


def test_a_link_ends(tenants: Tenants) -> None:
    made = sign_in_links.create(tenants.store, "bob")
    assert made.expires_at - utcnow() <= timedelta(hours=1)
    end(tenants, expires_at=utcnow())
    assert refused(tenants, made.secret)
    end(tenants, expires_at=utcnow() + timedelta(minutes=1))
    assert not refused(tenants, made.secret), "the control: it was the time that ended it"


@pytest.mark.parametrize("how", ["disabled", "password"])
def test_a_link_ends_with_what_ends_sessions(tenants: Tenants, how: str) -> None:
    store, root = tenants.store, tenants.principal("root")
    made = sign_in_links.create(store, "bob")
    if how == "disabled":
        users.change(store, "bob", {"enabled": False}, root)
        with pytest.raises(Refused, match="disabled"):
            sign_in_links.create(store, "bob")
        users.change(store, "bob", {"enabled": True}, root)
    else:
        entry = tenants.app.extensions["slicemgr"].authenticator
        secret = users.invite_again(store, tenants.config, "bob", root).secret
        users.accept(store, entry, secret, f"another {PASSWORD}", "192.0.2.1")
    assert refused(tenants, made.secret)


def test_a_disabled_account_is_not_signed_in(tenants: Tenants) -> None:
    made = sign_in_links.create(tenants.store, "bob")
    with tenants.store.write() as c:
        c.execute(t.users.update().where(t.users.c.name == "bob").values(enabled=False))
    assert refused(tenants, made.secret)


@pytest.mark.parametrize("secret", ["x", "a" * 43, "%2e%2e", "' OR 1=1 --"])
def test_a_wrong_secret(tenants: Tenants, secret: str) -> None:
    sign_in_links.create(tenants.store, "bob")
    assert refused(tenants, secret)


def test_no_account(tenants: Tenants) -> None:
    with pytest.raises(Refused) as caught:
        sign_in_links.create(tenants.store, "nobody")
    assert caught.value.code is Code.NOT_FOUND and tenants.count("sign_in_links") == 0


@pytest.mark.usefixtures("each_store")
def test_of_concurrent_requests_one_signs_in(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        service.token()
        secret = sign_in_links.create(service.store, ADMIN.user).secret

        def use(_: int) -> str:
            try:
                by = sign_in_links.use(service.store, secret, "192.0.2.1")
            except Refused as error:
                return error.code.wire
            assert by.admin and by.scope is Scope.WRITE
            return sessions.start(service.store, service.config, by, "a browser").user

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(use, range(4))) == ["admin", *[Code.NOT_FOUND.wire] * 3]


def test_the_command_prints_the_link(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        service.token()
        file = tmp_path / "slicemgr.toml"
        url = json.dumps(service.config.store_url)
        file.write_text(f'store.url = {url}\nweb.url = "https://testbed.example"\n')
        words = [sys.executable, "-c", "from slicemgr.main import main; main()", "--config", str(file), "sign-in-link"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
        head, path, secret = done.stdout.strip().partition(sign_in_links.PATH)
        assert (head, path) == ("https://testbed.example", sign_in_links.PATH)
        assert sign_in_links.holder(service.store, secret) == schema.ADMIN
        failed = subprocess.run([*words, "nobody"], capture_output=True, text=True, timeout=120, check=False)
        assert failed.returncode == Code.NOT_FOUND.exit_status and "there is no user 'nobody'" in failed.stderr
