"""The documents in a browser, as the service shows them: their scripts run under the service's policy."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from browser.conftest import Open


def test_a_page_leads_to_the_paragraph_that_explains_it(rosa: Page) -> None:
    rosa.goto("/new")
    rosa.get_by_role("link", name="How to make slices").click()
    expect(rosa).to_have_url(re.compile(r"/docs/how-to/slices/#create-list-and-delete$"))
    expect(rosa.get_by_role("heading", name="Create, list and delete")).to_be_in_viewport()


def test_search_finds_a_page(window: Open) -> None:
    """Without an account. The search runs in a worker, which the policy must allow."""
    page = window()
    page.goto("/docs/")
    page.get_by_role("textbox", name="Search").press_sequentially("capture rings")
    found = page.locator(".md-search-result__link").first
    expect(found).to_be_visible()
    found.click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert "/docs/" in page.url and page.url.rstrip("/") != page.url.partition("/docs/")[0] + "/docs"
