"""Published experiments in a browser: reports are shown, and their scripts do not run, in the frame or outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import published
import pytest
from playwright.sync_api import Page, Route, expect
from testbed import Node

from browser.chromium import Chromium
from browser.conftest import Open
from browser.test_accessible import look
from browser.test_admin import chief

__all__ = ["chief"]  # a fixture
MARK = "/healthz?ran"  # the request of the report's script
See = Callable[..., tuple[Page, list[str]]]


@pytest.fixture
def place(node: Node, tmp_path: Path) -> Iterator[str]:
    """The page of a published experiment whose report has a script."""
    yield from put_up(node, published.write(tmp_path / "scale"))


@pytest.fixture
def still(node: Node, tmp_path: Path) -> Iterator[str]:
    """Of a report without one: the browser logs what a policy blocks in the console, which `window` reads."""
    yield from put_up(node, published.write(tmp_path / "still", published.content("<!doctype html><h1>Scale</h1>")))


def put_up(node: Node, folder: Path) -> Iterator[str]:
    id_ = node.ok("bench", "publish", str(folder), "-f", "csv", "-c", "id", "--no-header").strip()
    yield f"/experiments/{id_}"
    node.slicectl("bench", "unpublish", "--delete", id_)


@pytest.fixture
def see(chromium: Chromium, node: Node, chief: Page, place: str) -> Iterator[See]:
    """Opens a page, and returns what it requested. weak: its report comes without its policy."""
    contexts = []

    def see(path: str, *, weak: bool = False) -> tuple[Page, list[str]]:
        context = chromium.context(node, storage_state=chief.context.storage_state())
        contexts.append(context)
        page, asked = context.new_page(), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        if weak:
            page.route("**/files/report.html", without_policy)
        with page.expect_response("**/files/report.html") as answer:
            page.goto(path)
        answer.value.finished()
        page.wait_for_timeout(1000)  # a script would have run by now
        return page, asked

    yield see
    for context in contexts:
        context.close()


def without_policy(route: Route) -> None:
    answer = route.fetch()
    kept = {name: text for name, text in answer.headers.items() if name != "content-security-policy"}
    route.fulfill(response=answer, headers=kept)


def ran(asked: list[str]) -> bool:
    return any(one.endswith(MARK) for one in asked)


def test_a_report_is_seen_and_runs_nothing(see: See, place: str) -> None:
    page, asked = see(place)
    assert [one.url.endswith("/files/report.html") for one in page.frames] == [False, True], "the frame is not blocked"
    assert not ran(asked)
    alone = f"{place}/files/report.html"
    page, asked = see(alone)
    assert page.url.endswith("report.html") and not ran(asked)
    assert not ran(see(place, weak=True)[1]), "the frame alone keeps it from that"
    assert ran(see(alone, weak=True)[1]), "the control: without the policy it would run"


def test_an_admin_hides_it_without_javascript(chief: Page, window: Open, still: str) -> None:
    plain = window(javascript=False, cookies=chief)
    plain.goto("/experiments")
    plain.get_by_role("link", name="still", exact=True).first.click()
    plain.get_by_role("link", name="Hide").click()
    plain.get_by_role("button", name="Hide report").click()
    expect(plain.get_by_text("is now visible to admins only")).to_be_visible()
    plain.get_by_role("link", name="Show to all users").click()
    plain.get_by_role("button", name="Show to all users").click()
    expect(plain.get_by_text("is now visible to all users")).to_be_visible()


def test_axe_finds_nothing(chief: Page, window: Open, still: str, shape: tuple[int, str]) -> None:
    page = window(*shape, cookies=chief)
    for path in ("/experiments", still, f"{still}/delete"):
        look(page, path)
