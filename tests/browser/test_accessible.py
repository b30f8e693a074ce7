"""axe on each page, in two shapes of the window; and that it would find something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from testbed import Node

from browser.conftest import Open, request_slice

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()


def troubles(page: Page, but: str = "") -> list[tuple[str, str, list[str]]]:
    """The serious and critical violations that axe finds on the page. but: CSS selector of elements to ignore."""
    page.evaluate(AXE)
    run = "but => axe.run(but ? {exclude: [[but]]} : document, {resultTypes: ['violations']})"
    found: list[dict[str, Any]] = page.evaluate(run, but)["violations"]
    return [
        (one["impact"], one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def look(page: Page, path: str) -> None:
    """The page has nothing serious, and nothing that must be scrolled sideways."""
    page.goto(path)
    assert troubles(page) == [], path
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than the window"


def test_each_page(node: Node, window: Open, rosa: Page, shape: tuple[int, str]) -> None:
    request_slice(rosa, node, "seen")
    expect(rosa.get_by_text("Ready", exact=True)).to_be_visible(timeout=60_000)
    operation = node.rows("select id from operations order by created_at desc limit 1")[0][0]
    slice_ = "/slices/seen?project=lab"
    node.ok("project", "invite", "default", "rosa")
    width, theme = shape
    stranger = window(width, theme)
    for path in ("/sign-in", "/invitation/nobodys"):
        look(stranger, path)
    page = window(width, theme, cookies=rosa)
    for path in ("/slices", "/slices?q=nothing", "/new", slice_, "/slices/seen/delete?project=lab", "/nowhere"):
        look(page, path)
    look(page, "/projects")
    look(page, f"/operations/{operation}")
    for path in ("/slices?sort=-lease", "/nodes", "/api/v1/"):
        look(page, path)
    page.goto("/new")
    page.locator("form#new").evaluate("form => { form.noValidate = true }")
    page.get_by_role("button", name="Request slice").click()
    expect(page.get_by_role("alert").first).to_be_visible()
    assert troubles(page) == [], "the form with errors"
    if width < 500:
        page.get_by_text("Menu").click()
        assert troubles(page) == [], "the open menu"
    without = window(javascript=False, cookies=rosa)
    without.goto("/slices")
    without.get_by_role("button", name="Decline the invitation to default").click()
    expect(without.get_by_text("The invitation was declined")).to_be_visible()
    node.ok("project", "remove", "default", "rosa")


@pytest.mark.parametrize(("width", "theme"), [(1280, "dark"), (390, "light")])
def test_the_frame_that_all_pages_have(window: Open, rosa: Page, width: int, theme: str) -> None:
    look(window(width, theme, cookies=rosa), "/slices")


def test_it_would_find_something(rosa: Page) -> None:
    """The control: a field without a label, and words that cannot be read."""
    rosa.goto("/new")
    rosa.evaluate("""() => {
        document.querySelector('label[for=f-name]').remove();
        document.querySelector('h1').setAttribute('aria-labelledby', 'nothing');
        document.querySelector('.quiet').style.color = '#f3f3f3';
    }""")
    assert {"label", "color-contrast"} <= {id_ for _, id_, _ in troubles(rosa)}


def test_keys_alone(node: Node, rosa: Page) -> None:
    """The first stop leads past the navigation; a form can be filled in and sent without a mouse."""
    rosa.goto("/slices")
    rosa.keyboard.press("Tab")
    expect(rosa.get_by_role("link", name="Skip to the content")).to_be_focused()
    rosa.keyboard.press("Enter")
    expect(rosa.locator("main")).to_be_focused()
    rosa.goto("/new")
    expect(rosa.get_by_label("Name", exact=True)).to_be_focused()
    rosa.keyboard.type("typed")
    rosa.get_by_label("Public key").focus()
    rosa.keyboard.insert_text((node.key.with_suffix(".pub")).read_text())
    rosa.get_by_role("button", name="Request slice").focus()
    rosa.keyboard.press("Enter")
    rosa.wait_for_url("**/slices/typed**")
