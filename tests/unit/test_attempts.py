"""Failed sign-ins delay their author; the owner of the account can still sign in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from argon2 import extract_parameters
from browsers import Browser
from tenants import BOB, PASSWORD, ROOT, Tenants
from werkzeug.test import TestResponse

from slicemgr.config import PeopleConfig
from slicemgr.service.accounts import attempts, sessions, users
from slicemgr.service.accounts.attempts import Attempts, Rule, TooMany
from slicemgr.service.accounts.known_browsers import KnownBrowsers
from slicemgr.service.accounts.passwords import Passwords
from slicemgr.store import tables as t

HERE, THERE = "192.0.2.1", "198.51.100.7"
NEW = "a quite different sentence"
HOUR = timedelta(hours=1)
SLOW = PeopleConfig(failures=3, delay=HOUR, delay_longest=HOUR, delay_account=HOUR)  # no delay ends during a test
STEPS = PeopleConfig(
    failures=2,
    failures_in=timedelta(seconds=60),
    delay=timedelta(seconds=5),
    delay_longest=timedelta(seconds=40),
    delay_account=timedelta(seconds=10),
)


class ByAccountAlone(Attempts):
    """The control: failures count per account, independent of their source."""

    def rules(self, user: str, address: str, browser: str) -> tuple[Rule, ...]:
        return (Rule(("account", user), self._free, self._longest, "to this account"),)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with Tenants(tmp_path, people=SLOW) as made:
        yield made


def wait(counting: Attempts, user: str, address: str, browser: str = "") -> int:
    """The seconds that an attempt must wait; 0: it was made, and failed."""
    try:
        counting.begin(user, address, browser)
    except TooMany as error:
        return error.retry_after
    return 0


# the counters


def test_each_failure_beyond_the_free_ones_doubles_the_wait_up_to_a_bound() -> None:
    clock = Clock()
    counting = Attempts(STEPS, clock)
    waits = []
    assert [wait(counting, "bob", HERE) for _ in range(2)] == [0, 0]
    for _ in range(5):
        waits.append(wait(counting, "bob", HERE))
        assert wait(counting, "bob", HERE) == waits[-1], "who comes too early makes it no worse"
        clock.now += waits[-1]
        assert wait(counting, "bob", HERE) == 0
    assert waits == [5, 10, 20, 40, 40]
    clock.now += 60
    assert [wait(counting, "bob", HERE) for _ in range(3)] == [0, 0, 5], "it is forgotten after `failures_in`"


@pytest.mark.parametrize(("kind", "locked_out"), [(Attempts, False), (ByAccountAlone, True)])
def test_failures_at_one_address_leave_the_account_open_at_others(kind: type[Attempts], locked_out: bool) -> None:
    counting = kind(SLOW)
    for _ in range(20):
        wait(counting, "bob", HERE)
    assert (wait(counting, "bob", THERE) > 0) is locked_out


def test_one_address_cannot_try_many_accounts() -> None:
    counting = Attempts(SLOW)
    assert [wait(counting, f"u{number}", HERE) > 0 for number in range(12)] == [False] * 9 + [True] * 3
    with pytest.raises(TooMany, match="from your address"):
        counting.begin("u99", f"::ffff:{HERE}")
    assert wait(counting, "u99", THERE) == 0


def test_many_addresses_slow_an_account_down_but_never_lock_it() -> None:
    """A thousand failures, each from another address, and each as soon as it may be made."""
    clock = Clock()
    counting = Attempts(STEPS, clock)
    waits = []
    for number in range(1000):
        if left := wait(counting, "bob", f"10.0.{number >> 8}.{number & 255}"):
            waits.append(left)
            clock.now += left
            counting.begin("bob", f"10.1.{number >> 8}.{number & 255}")
    assert len(waits) == 994 and max(waits) == 10
    assert 0 < wait(counting, "bob", THERE) <= 10
    assert wait(counting, "bob", THERE, "known") == 0
    clock.now += 10
    assert wait(counting, "bob", THERE) == 0


def test_a_known_browser_has_a_counter_of_its_own() -> None:
    counting = Attempts(SLOW)
    for number in range(30):
        wait(counting, "bob", f"10.0.0.{number}")
        wait(counting, "bob", HERE)
    assert [wait(counting, "bob", HERE, "known") > 0 for _ in range(4)] == [False] * 3 + [True]
    assert wait(counting, "bob", HERE, "another") == 0
    with pytest.raises(TooMany, match="in this browser"):
        counting.begin("bob", HERE, "known")


def test_who_is_right_starts_anew_but_gives_the_address_no_more_than_that() -> None:
    counting = Attempts(SLOW)
    for _ in range(50):
        counting.begin("carol", HERE)
        counting.forgive("carol", HERE)
    for number in range(9):
        counting.begin(f"u{number}", HERE)
        if number < 2:
            counting.begin("carol", HERE)
            counting.forgive("carol", HERE)
    assert wait(counting, "u9", HERE) > 0


def test_counters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MOST_COUNTERS", 30)
    counting = Attempts(SLOW)
    for number in range(200):
        counting.begin(f"u{number}", f"10.0.0.{number}")
    assert len(counting._counters) == 30


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (attempts.network(one) == attempts.network(other)) is same


@pytest.mark.parametrize(("seconds", "words"), [(7.2, "try again in 8 s"), (200, "try again in 4 minutes")])
def test_the_wait_is_said_in_full(seconds: float, words: str) -> None:
    assert words in str(TooMany("to this account", seconds))


def test_an_account_that_is_not_there_costs_what_one_that_is_costs() -> None:
    """The same work, by the parameters that decide how much it is."""
    passwords = Passwords(1)
    assert not passwords.matches("", PASSWORD)
    there, not_there = (extract_parameters(one) for one in (passwords.hash(PASSWORD, "bob"), passwords._nobodys))
    assert (there.memory_cost, there.time_cost, there.parallelism) == (
        not_there.memory_cost,
        not_there.time_cost,
        not_there.parallelism,
    )


# the pages


def sign_in(browser: Browser, password: str, address: str, user: str = "bob") -> TestResponse:
    fields = {"user": user, "password": password}
    return browser.post("/sign-in", fields, environ_base={"REMOTE_ADDR": address})


def fail_everywhere(tenants: Tenants) -> None:
    """More than enough wrong passwords for bob, at the owner's address and at others."""
    with tenants.app.test_client() as guesser:
        for number in range(16):
            for address in (HERE, f"10.0.0.{number}"):
                body = {"user": "bob", "password": f"guess {number}"}
                guesser.post("/api/v1/login", json=body, environ_base={"REMOTE_ADDR": address})


def known(tenants: Tenants) -> Browser:
    """A browser in which bob signed in and out."""
    browser = Browser(tenants)
    assert sign_in(browser, PASSWORD, HERE).status_code == 303
    assert browser.post("/sign-out").status_code == 303
    return browser


@pytest.mark.parametrize(("kind", "status"), [(Attempts, 303), (ByAccountAlone, 429)])
def test_the_owner_signs_in_where_it_is_known_while_others_guess(
    tenants: Tenants, kind: type[Attempts], status: int
) -> None:
    """The control counts per account only: the owner is locked out."""
    mine = known(tenants)
    tenants.app.extensions["slicemgr"].authenticator.attempts = kind(SLOW)
    fail_everywhere(tenants)
    stranger = sign_in(Browser(tenants), PASSWORD, HERE)
    assert stranger.status_code == 429 and int(stranger.headers["Retry-After"]) > 0
    assert "try again in 60 minutes" in stranger.text
    assert sign_in(mine, PASSWORD, HERE).status_code == status


def test_the_cookie_of_a_known_browser_opens_nothing_and_names_nobody(tenants: Tenants) -> None:
    browser = Browser(tenants)
    (header,) = [one for one in sign_in(browser, PASSWORD, HERE).headers.getlist("Set-Cookie") if "-known=" in one]
    name = f"{tenants.app.config['SESSION_COOKIE_NAME']}-known"
    assert header.startswith(f"{name}=") and "HttpOnly" in header and "SameSite=Lax" in header and "bob" not in header
    assert ("Secure" in header) is (tenants.config.web.cookie == "secure")
    kept = browser.client.get_cookie(name)
    assert kept is not None
    other = Browser(tenants)
    other.client.set_cookie(name, kept.value)
    assert other.get("/slices").status_code == 303


def marks(tenants: Tenants) -> KnownBrowsers:
    return KnownBrowsers(tenants.store, b"secret", timedelta(days=1))


def test_a_browser_is_known_to_whom_it_signed_in_and_to_nobody_else(tenants: Tenants) -> None:
    made = marks(tenants)
    kept = made.remember("", "bob")
    name = made.recognise(kept, "bob")
    assert name and made.recognise(kept, "carol") == made.recognise(kept, "nobody") == ""
    both = made.remember(kept, "carol")
    assert made.recognise(both, "bob") == made.recognise(both, "carol") == name
    for wrong in ("", "x", kept[:-1], kept + "x", "[]", made._signer.dumps({}), made._signer.dumps(7)):
        assert made.recognise(wrong, "bob") == ""
    assert KnownBrowsers(tenants.store, b"other", timedelta(days=1)).recognise(kept, "bob") == ""
    assert KnownBrowsers(tenants.store, b"secret", timedelta(seconds=-1)).recognise(kept, "bob") == ""
    for number in range(20):
        both = made.remember(both, f"u{number}")
    assert len(both) < 600 and made.recognise(both, "bob") == ""


@pytest.mark.parametrize("how", ["password", "link", "session", "others", "disabled"])
def test_what_makes_browsers_unknown(tenants: Tenants, how: str) -> None:
    store, config, made = tenants.store, tenants.config, marks(tenants)
    session = sessions.start(store, config, BOB, "Firefox")
    by = sessions.authenticate(store, session.secret)
    kept, of_carol = made.remember("", "bob"), made.remember("", "carol")
    entry = tenants.app.extensions["slicemgr"].authenticator
    sessions.revoke(store, sessions.start(store, config, by, "x").id, sessions.authenticate(store, session.secret))
    assert not made.recognise(kept, "bob")
    kept = made.remember("", "bob")
    match how:
        case "password":
            users.change_password(store, entry, PASSWORD, NEW, by)
        case "link":
            users.accept(store, entry, users.invite_again(store, config, "bob", ROOT).secret, NEW, HERE)
        case "session":
            sessions.revoke(store, session.id, ROOT)
        case "others":
            sessions.revoke_others(store, by)
        case "disabled":
            users.change(store, "bob", {"enabled": False}, ROOT)
    assert not made.recognise(kept, "bob") and made.recognise(of_carol, "carol")


def test_signing_out_keeps_a_browser_known_and_another_password_forgets_the_others(tenants: Tenants) -> None:
    mine, elsewhere = known(tenants), known(tenants)
    assert sign_in(mine, PASSWORD, HERE).status_code == 303
    assert mine.post("/account/password", {"old": PASSWORD, "new": NEW, "repeated": NEW}).status_code == 303
    mine.post("/sign-out")
    fail_everywhere(tenants)
    assert sign_in(elsewhere, NEW, HERE).status_code == 429
    assert sign_in(mine, NEW, HERE).status_code == 303


@pytest.mark.long
def test_a_link_signs_in_while_others_guess(tenants: Tenants) -> None:
    fail_everywhere(tenants)
    secret = users.invite_again(tenants.store, tenants.config, "bob", tenants.principal("root")).secret
    browser = Browser(tenants)
    answer = browser.post(f"/invitation/{secret}", {"password": NEW, "repeated": NEW})
    assert answer.headers["Location"] == "/slices"
    with tenants.store.read() as c:
        assert c.scalar(sa.select(t.users.c.known_browsers).where(t.users.c.name == "bob")) == 1
    browser.post("/sign-out")
    assert sign_in(browser, NEW, HERE).status_code == 303


def test_who_is_signed_in_changes_the_password_while_others_guess(tenants: Tenants) -> None:
    browser = Browser(tenants, "bob")
    fail_everywhere(tenants)
    fields = {"old": PASSWORD, "new": NEW, "repeated": NEW}
    assert browser.post("/account/password", {**fields, "old": "wrong"}).status_code == 422
    assert browser.post("/account/password", fields).status_code == 303
