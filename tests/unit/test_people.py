"""Accounts, signing in, sessions, tokens and keys: their validity and events."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from argon2 import PasswordHasher
from bare_service import KEY, request
from tenants import ALICE, BOB, CAROL, OTHER_KEY, PASSWORD, ROOT, Tenants

from slicemgr.config import PeopleConfig
from slicemgr.errors import Code, Refused
from slicemgr.model import Scope
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, sessions, sign_in, ssh_keys, tokens, users
from slicemgr.service.accounts.passwords import Passwords
from slicemgr.service.accounts.sign_in import Authenticator
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

API = "/api/v1"
NEW = "a quite different sentence"


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with Tenants(tmp_path) as made:
        yield made


@pytest.fixture
def authenticator(tenants: Tenants) -> Authenticator:
    return Authenticator(tenants.config)


def refused(code: Code, call: Any, *args: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args)
    assert caught.value.code is code, caught.value
    return caught.value


# links and passwords


def test_a_link_makes_an_account_usable_once(tenants: Tenants, authenticator: Authenticator) -> None:
    store, config = tenants.store, tenants.config
    made = users.invite(store, config, {"name": "grace", "email": "grace@example.org"}, ROOT)
    refused(Code.UNAUTHENTICATED, sign_in.check, store, authenticator, "grace", "", "192.0.2.1")
    assert made.secret not in tenants.database.read_bytes().decode("latin-1"), "only its hash is kept"
    refused(Code.INVALID, users.accept, store, authenticator, made.secret, "short", "192.0.2.1")
    assert users.accept(store, authenticator, made.secret, NEW, "192.0.2.1") == "grace"
    assert sign_in.check(store, authenticator, "grace", NEW, "192.0.2.1") == Principal("grace", False)
    refused(Code.NOT_FOUND, users.accept, store, authenticator, made.secret, NEW, "192.0.2.1")
    assert [line for line in tenants.events() if line[0] == "grace"][-1][1] == "invitation accept"


def test_two_at_once_use_a_link_only_once(tenants: Tenants, authenticator: Authenticator) -> None:
    made = users.invite(tenants.store, tenants.config, {"name": "grace"}, ROOT)

    def accept(number: int) -> bool:
        try:
            users.accept(tenants.store, authenticator, made.secret, f"{NEW} {number}", "192.0.2.1")
        except Refused as error:
            assert error.code is Code.NOT_FOUND
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(accept, range(4))) == 1


def test_a_link_ends_is_replaced_and_goes_with_a_disabled_account(
    tenants: Tenants, authenticator: Authenticator
) -> None:
    store, config = tenants.store, tenants.config
    first = users.invite(store, config, {"name": "grace"}, ROOT)
    second = users.invite_again(store, config, "grace", ROOT)
    refused(Code.NOT_FOUND, users.invited, store, first.secret)
    assert users.invited(store, second.secret) == "grace"
    with store.write() as c:
        c.execute(t.invitations.update().values(expires_at=utcnow()))
    refused(Code.NOT_FOUND, users.accept, store, authenticator, second.secret, NEW, "")
    third = users.invite_again(store, config, "grace", ROOT)
    users.change(store, "grace", {"enabled": False}, ROOT)
    refused(Code.NOT_FOUND, users.accept, store, authenticator, third.secret, NEW, "")
    refused(Code.CONFLICT, users.invite_again, store, config, "grace", ROOT)


@pytest.mark.parametrize(
    ("raw", "field", "code"),
    [
        ({}, "name", Code.INVALID),
        ({"name": 7}, "name", Code.INVALID),
        ({"name": "Bob"}, "name", Code.INVALID),
        ({"name": "b\u0430b"}, "name", Code.INVALID),  # a Cyrillic letter
        ({"name": "x" * 33}, "name", Code.INVALID),
        ({"name": "lease"}, "name", Code.INVALID),
        ({"name": "bob"}, "name", Code.CONFLICT),
        ({"name": "x", "email": "x"}, "email", Code.INVALID),
        ({"name": "x", "email": "a@b\nBcc: c@d"}, "email", Code.INVALID),
        ({"name": "x", "full_name": "a\u202eb"}, "full_name", Code.INVALID),
        ({"name": "x", "admin": "yes"}, "admin", Code.INVALID),
        ({"name": "x", "enabled": True}, "enabled", Code.INVALID),
    ],
)
def test_accounts_that_cannot_be(tenants: Tenants, raw: dict[str, Any], field: str, code: Code) -> None:
    before = tenants.dump()
    assert refused(code, users.invite, tenants.store, tenants.config, raw, ROOT).field == field
    assert tenants.dump() == before


@pytest.mark.parametrize("password", ["", "x" * 11, "x" * 40, "alicealice12", "y" * 1025])
def test_passwords_that_are_none(password: str) -> None:
    assert refused(Code.INVALID, Passwords(1).hash, password, "alice").field == "password"


def test_a_password_is_the_same_however_it_is_composed() -> None:
    passwords = Passwords(1)
    hashed = passwords.hash("cafe\u0301 au lait noir", "alice")
    assert hashed.startswith("$argon2id$")
    assert passwords.matches(hashed, "caf\u00e9 au lait noir") and not passwords.matches(hashed, "cafe au lait noir")
    assert not passwords.matches("", "") and not passwords.matches("broken", "x")


class Counting(PasswordHasher):
    """Counts how many are at work at once; `together`: each waits until that many are, at most a minute."""

    def __init__(self, together: int) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.most = self._now = 0
        self._lock, self._together = threading.Lock(), threading.Barrier(together)

    def verify(self, *args: Any) -> Literal[True]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._together.wait(60)
        try:
            return super().verify(*args)
        finally:
            with self._lock:
                self._now -= 1


@pytest.mark.parametrize("at_once", [2, 4])
def test_no_more_passwords_at_once_than_allowed(at_once: int) -> None:
    """With eight requests, exactly the allowed number runs at once; another number is the control."""
    passwords = Passwords(at_once)
    counting = passwords._hasher = Counting(at_once)
    hashed = counting.hash(PASSWORD)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: passwords.matches(hashed, PASSWORD), range(8)))
    assert counting.most == at_once


def test_another_password_ends_other_sessions(tenants: Tenants, authenticator: Authenticator) -> None:
    store, config = tenants.store, tenants.config
    one = sessions.sign_in_with(store, config, authenticator, "bob", PASSWORD, "192.0.2.1", "Firefox")
    two = sessions.sign_in_with(store, config, authenticator, "bob", PASSWORD, "192.0.2.2", "curl")
    by = sessions.authenticate(store, one.secret)
    assert refused(Code.INVALID, users.change_password, store, authenticator, "wrong", NEW, by).field == "old"
    users.change_password(store, authenticator, PASSWORD, NEW, by)
    assert sessions.authenticate(store, one.secret).user == "bob"
    refused(Code.UNAUTHENTICATED, sessions.authenticate, store, two.secret)
    refused(Code.UNAUTHENTICATED, sign_in.check, store, authenticator, "bob", PASSWORD, "192.0.2.1")
    assert sign_in.check(store, authenticator, " Bob ", NEW, "192.0.2.1").user == "bob"


# signing in


@pytest.mark.parametrize(("user", "password"), [("bob", "wrong"), ("nobody", PASSWORD), ("frank", PASSWORD), ("", "")])
def test_a_refused_sign_in_says_nothing_and_is_written_down(
    tenants: Tenants, authenticator: Authenticator, user: str, password: str
) -> None:
    error = refused(Code.UNAUTHENTICATED, sign_in.check, tenants.store, authenticator, user, password, "192.0.2.9")
    assert str(error).startswith("the user name or the password is wrong")
    assert tenants.events()[-1] == (user or "?", "sign-in failed", "")
    with tenants.store.read() as c:
        assert c.scalar(sa.select(t.events.c.address).order_by(t.events.c.id.desc())) == "192.0.2.9"


def test_a_flood_is_refused_over_http_and_says_when(tmp_path: Path) -> None:
    """Guesses at once get as many tries as one after the other would; the control has a higher limit."""

    def tries(limit: int, folder: Path) -> list[int]:
        with Tenants(
            folder,
            people=PeopleConfig(failures=limit, delay=timedelta(hours=1), delay_longest=timedelta(hours=1), hashing=4),
        ) as tenants:
            app = tenants.app

            def guess(number: int) -> int:
                answer = app.test_client().post(f"{API}/login", json={"user": "bob", "password": f"guess {number}"})
                if answer.status_code == 429:
                    assert int(answer.headers["Retry-After"]) > 0 and answer.get_json()["code"] == "too_many"
                return answer.status_code

            with ThreadPoolExecutor(20) as pool:
                return list(pool.map(guess, range(20)))

    assert tries(5, tmp_path / "few").count(429) == 15
    assert tries(100, tmp_path / "many").count(429) == 0


# sessions and tokens


def test_a_session_ends(tenants: Tenants, authenticator: Authenticator) -> None:
    store, config = tenants.store, tenants.config
    made = sessions.sign_in_with(store, config, authenticator, "bob", PASSWORD, "192.0.2.1", "Firefox\n" * 99)
    assert sessions.authenticate(store, made.secret).roles == BOB.roles
    assert made.secret not in tenants.database.read_bytes().decode("latin-1")
    with store.write() as c:
        c.execute(t.sessions.update().values(expires_at=utcnow()))
    refused(Code.UNAUTHENTICATED, sessions.authenticate, store, made.secret)


@pytest.mark.parametrize("how", ["revoked", "disabled", "new link used"])
def test_a_session_is_over_at_once(tenants: Tenants, authenticator: Authenticator, how: str) -> None:
    store, config = tenants.store, tenants.config
    made = sessions.sign_in_with(store, config, authenticator, "bob", PASSWORD, "192.0.2.1", "")
    if how == "revoked":
        sessions.revoke(store, made.id, BOB)
    elif how == "disabled":
        users.change(store, "bob", {"enabled": False}, ROOT)
    else:
        users.accept(store, authenticator, users.invite_again(store, config, "bob", ROOT).secret, NEW, "")
    refused(Code.UNAUTHENTICATED, sessions.authenticate, store, made.secret)


def test_a_disabled_users_tokens_open_nothing_until_enabled(tenants: Tenants) -> None:
    client = tenants.client("bob")
    assert client.get(f"{API}/me").status_code == 200
    users.change(tenants.store, "bob", {"enabled": False}, ROOT)
    assert client.get(f"{API}/me").status_code == 401
    users.change(tenants.store, "bob", {"enabled": True}, ROOT)
    assert client.get(f"{API}/me").status_code == 200


@pytest.mark.parametrize(("name", "by"), [("admin", ROOT), ("root", ROOT)])
def test_the_last_door_is_not_locked(tenants: Tenants, name: str, by: Principal) -> None:
    for change in ({"enabled": False}, {"admin": False}):
        refused(Code.CONFLICT, users.change, tenants.store, name, change, by)


def test_a_token_from_the_password_to_its_end(tenants: Tenants) -> None:
    client = tenants.client()
    made = client.post(f"{API}/login", json={"user": "bob", "password": PASSWORD, "expires": "1h"}).get_json()
    assert made["token"].startswith("smgr_") and (made["scope"], made["label"]) == ("write", "login")
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {made['token']}"
    shown = {one["id"]: one for one in client.get(f"{API}/tokens").get_json()["tokens"]}
    assert shown[made["id"]]["current"] and shown[made["id"]]["used_from"] == "127.0.0.1"
    assert "token" not in shown[made["id"]], "shown once"
    assert client.delete(f"{API}/tokens/current").status_code == 200
    assert client.get(f"{API}/tokens").status_code == 401


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({}, "label"),
        ({"label": ""}, "label"),
        ({"label": "a\nb"}, "label"),
        ({"label": "x" * 81}, "label"),
        ({"label": "x", "scope": "root"}, "scope"),
        ({"label": "x", "scope": ["read"]}, "scope"),
        ({"label": "x", "expires": "0s"}, "expires"),
        ({"label": "x", "expires": "366d"}, "expires"),
        ({"label": "x", "expires": 7}, "expires"),
        ({"label": "x", "user": "root"}, "user"),
    ],
)
def test_tokens_that_cannot_be(tenants: Tenants, raw: dict[str, Any], field: str) -> None:
    answer = tenants.client("bob").post(f"{API}/tokens", json=raw)
    assert (answer.status_code, answer.get_json(force=True)["field"]) == (422, field)


def test_a_read_token_gives_itself_up_and_nothing_else(tenants: Tenants) -> None:
    client = tenants.client("reader")
    assert client.delete(f"{API}/tokens/{tenants.found['token']}").status_code == 403
    assert client.delete(f"{API}/tokens/current").status_code == 200
    assert client.get(f"{API}/me").status_code == 401


def test_a_last_use_is_not_written_each_time(tenants: Tenants) -> None:
    authentication.authenticate(tenants.store, tenants.found["bob"], "192.0.2.1")
    authentication.authenticate(tenants.store, tenants.found["bob"], "192.0.2.2")
    k = t.tokens.c
    with tenants.store.read() as c:
        assert (
            c.scalar(sa.select(k.used_from).where(k.hash == authentication.digest(tenants.found["bob"]))) == "192.0.2.1"
        )


def test_scope_and_end_are_kept(tenants: Tenants) -> None:
    wanted = tokens.Wanted("x", Scope.READ, timedelta(hours=1))
    token, id_, ends = tokens.create(tenants.store, wanted, CAROL)
    by = authentication.authenticate(tenants.store, token)
    assert (by.scope, by.credential, by.roles) == (Scope.READ, id_, CAROL.roles)
    assert timedelta(minutes=59) < ends - utcnow() <= timedelta(hours=1)


# keys


def test_keys_are_what_a_slice_gets_that_names_none(tenants: Tenants) -> None:
    client = tenants.client("bob")
    shown = client.get(f"{API}/keys").get_json()["keys"]
    assert [one["fingerprint"][:7] for one in shown] == ["SHA256:"] and shown[0]["comment"] == "me@host"
    body = {key: value for key, value in request("mine", project="lab").items() if key != "ssh_keys"}
    assert client.post(f"{API}/slices", json=body).status_code == 202
    assert {row.sliver.ssh_keys for row in tenants.rows() if row.sliver.slice_name == "mine"} == {(KEY,)}
    assert client.delete(f"{API}/keys/{shown[0]['id']}").status_code == 200
    answer = client.post(f"{API}/slices", json={**body, "name": "again"})
    assert (answer.status_code, answer.get_json()["field"]) == (422, "ssh_keys")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (KEY, Code.CONFLICT),
        (f"{OTHER_KEY}\n{KEY} again", Code.CONFLICT),
        ("", Code.INVALID),
        (7, Code.INVALID),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r", Code.INVALID),
        ('command="x" ' + KEY, Code.INVALID),
        ("ssh-dss AAAA", Code.INVALID),
    ],
)
def test_keys_that_are_not_added(tenants: Tenants, text: object, code: Code) -> None:
    before = tenants.dump()
    error = refused(code, ssh_keys.add, tenants.store, text, BOB)
    assert error.field == "key" and "b3Blbn" not in str(error)
    assert tenants.dump() == before


# events


def test_every_change_says_who_what_and_where_from(tenants: Tenants) -> None:
    """Each use case that changes something writes an event with the user's address."""
    client = tenants.client("root")
    client.environ_base["REMOTE_ADDR"] = "203.0.113.5"
    asked = (
        ("POST", "/users", {"name": "grace"}, "user invite"),
        ("POST", "/users/grace/invitation", None, "user link"),
        ("PATCH", "/users/grace", {"email": "g@example.org"}, "user change"),
        ("POST", "/projects", {"name": "new"}, "project create"),
        ("PATCH", "/projects/new", {"quota": {"slices": 1}}, "project change"),
        ("PUT", "/projects/new/members/grace", {"role": "pi"}, "member set"),
        ("DELETE", "/projects/new/members/grace", None, "member remove"),
        ("DELETE", "/projects/new", None, "project delete"),
        ("POST", "/keys", {"key": OTHER_KEY}, "key add"),
        ("POST", "/tokens", {"label": "x"}, "token create"),
        ("DELETE", f"/sessions/{tenants.found['session']}", None, "session revoke"),
        ("DELETE", f"/tokens/{tenants.found['token']}", None, "token revoke"),
        ("DELETE", f"/keys/{tenants.found['key']}?user=bob", None, "key remove"),
        ("POST", f"/requests/{tenants.found['request']}/decline", {"reason": "no"}, "request decline"),
        ("POST", "/slices/exp/stop?project=lab", None, "stop"),
        ("POST", "/slices/exp/renew?project=lab", {"lease": "8d"}, "renew"),
        ("POST", "/slices/exp/resize?project=lab", {"disk": "8G"}, "resize"),
        ("POST", "/nodes/node1/doctor", None, "doctor"),
        ("POST", "/images/lab-image/publish", None, "image publish"),
        ("DELETE", "/images/lab-image", None, "image delete"),
    )
    for method, path, json, action in asked:
        assert client.open(API + path, method=method, json=json).status_code < 300, path
        newest = client.get(f"{API}/events?limit=1").get_json()["events"][0]
        assert (newest["user"], newest["action"], newest["address"]) == ("root", action, "203.0.113.5")


def test_no_secret_is_in_an_event(tenants: Tenants) -> None:
    tenants.client().post(f"{API}/login", json={"user": "bob", "password": PASSWORD})
    text = str(tenants.events())
    assert not [name for name in ("bob", "root", "reader") if tenants.found[name] in text]
    assert PASSWORD not in text and "argon2" not in text


def test_a_user_sees_what_was_done_to_and_by_them(tenants: Tenants) -> None:
    sign_in.check(tenants.store, Authenticator(tenants.config), "carol", PASSWORD, "192.0.2.1")
    sessions.start(tenants.store, tenants.config, CAROL, "")
    seen = tenants.client("carol").get(f"{API}/events").get_json()["events"]
    assert {one["project"] for one in seen} == {None, "rival"} and seen[0]["action"] == "sign in"
    assert ALICE.user not in {one["user"] for one in seen}
