"""An OpenID Connect issuer in a real browser: the content policy allows the redirects to it and back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openid_provider import CLIENT, SECRET, Provider
from playwright.sync_api import Browser, Playwright, expect
from tenants import PASSWORD, Tenants
from werkzeug.serving import make_server

from browser.chromium import launch
from slicemgr.config import WebConfig
from slicemgr.config_oidc import OidcConfig


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The pages behind a socket, and an issuer behind another."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "secret").write_text(SECRET)
    server = make_server("127.0.0.1", 0, lambda *_: [], threaded=True)
    url = f"http://127.0.0.1:{server.server_port}"
    with Provider() as provider:
        oidc = OidcConfig(provider.issuer, CLIENT, str(tmp_path / "secret"), "Campus Login", domains=("example.org",))
        with Tenants(tmp_path, oidc=oidc, web=WebConfig(url=url, cookie="plain")) as tenants:
            server.app = tenants.app
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield url
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def here(playwright: Playwright) -> Iterator[Browser]:
    """A browser that reaches the loopback of the tests."""
    browser = launch(playwright)
    yield browser
    browser.close()


@pytest.mark.parametrize("javascript", [True, False])
def test_there_and_back(site: str, here: Browser, javascript: bool) -> None:
    """A new account by the button; an old one is linked by its user first."""
    wrong: list[str] = []
    context = here.new_context(base_url=site, java_script_enabled=javascript)
    page = context.new_page()
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    page.goto("/images")
    page.get_by_label("User").fill("bob")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/images")
    page.goto("/account")
    page.get_by_role("button", name="Link Campus Login").click()
    page.get_by_role("link", name="Continue to Campus Login").click()
    expect(page.get_by_text("Your account is now linked")).to_be_visible()
    expect(page.get_by_text("jane.doe@example.org").last).to_be_visible()
    page.get_by_role("button", name="Sign out").last.click()
    page.goto("/images")
    page.get_by_role("link", name="Sign in with Campus Login").click()
    page.wait_for_url("**/images")
    page.goto("/slices")
    expect(page.get_by_role("link", name="exp").first).to_be_visible()
    context.close()
    assert wrong == []
