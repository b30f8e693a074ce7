"""Sign-in by a real OpenID Connect issuer, and invalid answers. Each refusal has its control."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from browsers import Browser
from joserfc.jwk import OctKey, RSAKey
from openid_provider import CLIENT, FORGED, SECRET, Provider
from tenants import Tenants
from werkzeug.test import TestResponse

from slicemgr.config import WebConfig
from slicemgr.config_oidc import OidcConfig
from slicemgr.service.outbound import openid_issuer
from slicemgr.store import tables as t
from slicemgr.web.pages import openid as pages

SHARED = OctKey.import_key(SECRET.ljust(32), {"kid": "1"})


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Provider() as made:
        yield made


def settings(folder: Path, provider: Provider, **more: Any) -> dict[str, Any]:
    secret = folder / "client-secret"
    secret.write_text(SECRET + "\n")
    known: dict[str, Any] = {"issuer": provider.issuer, "client_id": CLIENT, "client_secret_file": str(secret)}
    oidc = OidcConfig(**{**known, "name": "Campus Login", "domains": ("example.org",), **more})
    return {"oidc": oidc, "web": WebConfig(url="http://localhost")}


@pytest.fixture
def tenants(tmp_path: Path, provider: Provider) -> Iterator[Tenants]:
    with Tenants(tmp_path, **settings(tmp_path, provider)) as made:
        yield made


def come(browser: Browser, provider: Provider, start: str = "/sign-in/openid") -> TestResponse:
    """There and back."""
    answer = browser.get(start)
    assert answer.status_code == 303, answer.text
    return browser.get(provider.visit(answer.headers["Location"]))


def people(tenants: Tenants) -> set[str]:
    with tenants.store.read() as c:
        return set(c.scalars(sa.select(t.users.c.name)))


def sessions_of(tenants: Tenants, user: str) -> int:
    with tenants.store.read() as c:
        return len(c.scalars(sa.select(t.sessions.c.id).where(t.sessions.c.user == user)).all())


def test_there_and_back(tenants: Tenants, provider: Provider) -> None:
    stranger = Browser(tenants)
    assert "Sign in with Campus Login" in stranger.get("/sign-in?next=/images").text
    answer = come(stranger, provider, "/sign-in/openid?next=/images")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/images")
    assert stranger.get("/images").status_code == 200
    assert "jane-doe" in people(tenants) and sessions_of(tenants, "jane-doe") == 1
    assert ("jane-doe", "sign in", "Campus Login") in tenants.events()
    with tenants.store.read() as c:
        addresses = set(c.scalars(sa.select(t.events.c.address).where(t.events.c.user == "jane-doe")))
    assert addresses == {"127.0.0.1"}
    before = people(tenants)
    assert stranger.post("/sign-out").status_code == 303
    assert stranger.get("/slices").status_code == 303 and sessions_of(tenants, "jane-doe") == 0
    assert come(stranger, provider).status_code == 303
    assert people(tenants) == before, "the second time it is the same account"


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example/", "/\\evil.example", "/x" * 400 + "\r\n"])
def test_where_one_lands_is_here(tenants: Tenants, provider: Provider, target: str) -> None:
    stranger = Browser(tenants)
    answer = stranger.client.get("/sign-in/openid", query_string={"next": target})
    landed = stranger.get(provider.visit(answer.headers["Location"]))
    assert landed.status_code == 303 and landed.headers["Location"].lstrip("/x") == ""
    assert not landed.headers["Location"].startswith("//")


# what the issuer must prove


def without(claim: str) -> Callable[[pytest.MonkeyPatch, Provider], None]:
    """A service that does not check a claim."""

    def weaken(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
        whole = openid_issuer.expected
        monkeypatch.setattr(
            openid_issuer, "expected", lambda *args: {key: one for key, one in whole(*args).items() if key != claim}
        )

    return weaken


def patient(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    monkeypatch.setattr(openid_issuer, "_LEEWAY", 10**9)


def believing_the_forger(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    provider.published = FORGED


def without_signatures(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    monkeypatch.setattr(openid_issuer, "ALGORITHMS", (*openid_issuer.ALGORITHMS, "none"))


def with_shared_keys(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    monkeypatch.setattr(openid_issuer, "ALGORITHMS", (*openid_issuer.ALGORITHMS, "HS256"))
    provider.published = SHARED


def forgiving(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    monkeypatch.setattr(openid_issuer.Issuer, "_check_answer", lambda *_: None)


LIES: dict[str, tuple[dict[str, Any], Callable[[pytest.MonkeyPatch, Provider], None]]] = {
    "a forged signature": ({"key": FORGED}, believing_the_forger),
    "no signature": ({"unsigned": True}, without_signatures),
    "a key that both sides know": ({"key": SHARED, "algorithm": "HS256"}, with_shared_keys),
    "another audience": ({"claims": {"aud": "another", "azp": CLIENT}}, without("aud")),
    "another issuer": ({"claims": {"iss": "https://login.example"}}, without("iss")),
    "another nonce": ({"claims": {"nonce": "another"}}, without("nonce")),
    "no nonce": ({"claims": {"nonce": None}}, without("nonce")),
    "an end that is past": ({"claims": {"exp": int(time.time()) - 300, "iat": int(time.time()) - 600}}, patient),
    "an answer of another issuer": ({"answer": {"iss": "https://login.example"}}, forgiving),
    "an answer of nobody": ({"metadata": {"authorization_response_iss_parameter_supported": True}}, forgiving),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_brings_nobody_in(lie: str, tenants: Tenants, provider: Provider) -> None:
    bent, _ = LIES[lie]
    for name, value in bent.items():
        setattr(provider, name, value)
    stranger, before = Browser(tenants), people(tenants)
    answer = come(stranger, provider)
    assert answer.status_code == 401 and "did not prove your identity" in answer.text
    assert stranger.get("/slices").status_code == 303 and people(tenants) == before


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
@pytest.mark.parametrize("lie", LIES)
def test_without_the_check_it_would(
    lie: str, tenants: Tenants, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controls."""
    bent, weaken = LIES[lie]
    for name, value in bent.items():
        setattr(provider, name, value)
    weaken(monkeypatch, provider)
    stranger = Browser(tenants)
    assert come(stranger, provider).status_code == 303
    assert stranger.get("/slices").status_code == 200


@pytest.mark.parametrize("claim", ["sub", "exp", "iat", "iss", "aud"])
def test_a_token_that_leaves_something_out(claim: str, tenants: Tenants, provider: Provider) -> None:
    provider.claims = {claim: None}
    assert come(Browser(tenants), provider).status_code == 401


def test_new_keys_are_looked_up(tenants: Tenants, provider: Provider) -> None:
    assert come(Browser(tenants), provider).status_code == 303
    provider.key = provider.published = RSAKey.generate_key(2048, {"kid": "2"})
    assert come(Browser(tenants), provider).status_code == 303
    assert provider.asked.count("/jwks") == 2


# there and back once


def test_an_answer_counts_once(tenants: Tenants, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with a copy of the cookie and an issuer that takes a code twice; the control has a desk that forgets."""
    provider.forgetful = True

    def twice() -> list[int]:
        stranger, thief = Browser(tenants), Browser(tenants)
        path = provider.visit(stranger.get("/sign-in/openid").headers["Location"])
        cookie = stranger.client.get_cookie("__Host-slicemgr")
        assert cookie is not None
        thief.client.set_cookie("__Host-slicemgr", cookie.value)
        return [stranger.get(path).status_code, thief.get(path).status_code]

    assert twice() == [303, 401]
    monkeypatch.setattr(pages.Desk, "use", lambda *_: True)
    assert twice() == [303, 303]


def test_an_answer_is_of_the_browser_that_asked(tenants: Tenants, provider: Provider) -> None:
    """Otherwise a link could sign in a user as another user."""
    attacker, victim = Browser(tenants), Browser(tenants)
    path = provider.visit(attacker.get("/sign-in/openid").headers["Location"])
    victim.get("/sign-in/openid")
    assert victim.get(path).status_code == 401 and victim.get("/slices").status_code == 303
    assert "/token" not in provider.asked
    assert victim.get("/sign-in/openid/back").status_code == 401
    assert attacker.get(path).status_code == 303, "the control"


def test_a_code_needs_what_it_was_asked_with(tenants: Tenants, provider: Provider) -> None:
    stranger = Browser(tenants)
    path = provider.visit(stranger.get("/sign-in/openid").headers["Location"])
    with stranger.client.session_transaction() as cookie:
        state, nonce, _, *rest = cookie["openid"][0]
        cookie["openid"] = [[state, nonce, "another verifier that is long enough for one", *rest]]
    assert stranger.get(path).status_code == 401 and provider.asked[-1] == "/token"


def test_who_takes_too_long(tenants: Tenants, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    for patience, status in ((-1, 401), (600, 303)):
        monkeypatch.setattr(pages, "_PATIENCE", patience)
        assert come(Browser(tenants), provider).status_code == status


def test_two_tabs(tenants: Tenants, provider: Provider) -> None:
    stranger = Browser(tenants)
    first, second = (provider.visit(stranger.get("/sign-in/openid").headers["Location"]) for _ in range(2))
    assert stranger.get(first).status_code == 303
    assert stranger.get(second).status_code == 401, "it is signed in already, and the cookie is another"


def test_who_went_back(tenants: Tenants, provider: Provider) -> None:
    provider.answer = {"error": "access_denied"}
    answer = come(Browser(tenants), provider)
    assert answer.status_code == 403 and "Campus Login refused the sign-in" in answer.text


def test_failures_are_limited(tenants: Tenants, provider: Provider) -> None:
    provider.key = FORGED
    stranger = Browser(tenants)
    most = tenants.config.people.failures * 3
    assert {come(stranger, provider).status_code for _ in range(most)} == {401}
    asked = provider.asked.count("/token")
    answer = come(stranger, provider)
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0
    assert provider.asked.count("/token") == asked


# an issuer that is not as it should be


def test_an_issuer_that_is_away(tenants: Tenants, provider: Provider) -> None:
    """Before and after; passwords still sign in."""
    stranger = Browser(tenants)
    path = provider.visit(stranger.get("/sign-in/openid").headers["Location"])
    provider.stop()
    answers = [stranger.get(path), Browser(tenants).get("/sign-in/openid")]
    assert answers[0].status_code == 503 and "Campus Login cannot be reached" in answers[0].text
    assert 'name="password"' in answers[0].text, "one can sign in another way from there"
    assert answers[1].status_code == 303, "where to go is known"


def test_an_issuer_that_never_was(tmp_path: Path, provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    provider.stop()
    with Tenants(tmp_path, **settings(tmp_path, provider)) as tenants:
        answer = Browser(tenants).get("/sign-in/openid")
    assert answer.status_code == 503 and "Campus Login cannot be reached" in answer.text
    assert "127.0.0.1" not in answer.text and "127.0.0.1" in caplog.text


def test_an_issuer_that_does_not_end(tmp_path: Path, provider: Provider) -> None:
    """The control is `test_there_and_back`, with a time that also a loaded host keeps."""
    provider.slow = True
    with Tenants(tmp_path, **settings(tmp_path, provider, timeout=timedelta(seconds=1))) as tenants:
        assert come(Browser(tenants), provider).status_code == 503


def test_only_so_many_wait_for_it(tenants: Tenants, provider: Provider) -> None:
    desk = tenants.app.extensions["slicemgr.openid"]
    for _ in range(openid_issuer._AT_ONCE):
        desk.issuer._room.acquire()
    assert Browser(tenants).get("/sign-in/openid").status_code == 503
    desk.issuer._room.release()
    assert Browser(tenants).get("/sign-in/openid").status_code == 303


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://login.example"},
        {"authorization_endpoint": None},
        {"authorization_endpoint": "http://login.example/authorize"},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
def test_an_issuer_that_says_what_cannot_be(metadata: dict[str, Any], tenants: Tenants, provider: Provider) -> None:
    provider.metadata = metadata
    assert Browser(tenants).get("/sign-in/openid").status_code == 503


@pytest.mark.parametrize("endpoint", ["token_endpoint", "jwks_uri"])
def test_nothing_is_sent_unencrypted(endpoint: str, tenants: Tenants, provider: Provider) -> None:
    provider.metadata = {endpoint: "http://login.example/x"}
    assert come(Browser(tenants), provider).status_code == 503


def test_a_secret_that_is_wrong(tenants: Tenants, provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    Path(tenants.config.oidc.client_secret_file).write_text("another")
    assert come(Browser(tenants), provider).status_code == 401
    assert "invalid_client" in caplog.text and "another" not in caplog.text


def test_what_only_userinfo_says(tenants: Tenants, provider: Provider) -> None:
    provider.claims = {"email": None, "email_verified": None}
    stranger = Browser(tenants)
    assert come(stranger, provider).status_code == 303 and "/userinfo" in provider.asked
    provider.userinfo = {"sub": "another"}
    assert come(Browser(tenants), provider).status_code == 401
