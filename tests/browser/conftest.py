"""A real browser before the real service: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Playwright, expect, sync_playwright
from testbed import Node, eventually

from browser.chromium import Chromium

PASSWORD = "correct horse battery"
Open = Callable[..., Page]
expect.set_options(timeout=40_000)  # ms; the default of 5 s is the interval in which an idle page polls


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="package")
def chromium(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(playwright, tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def window(chromium: Chromium, node: Node) -> Iterator[Open]:
    """Opens a separate browser; at the end, no page may have violated the policy or raised an error."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def open_(width: int = 1280, theme: str = "light", javascript: bool = True, cookies: Page | None = None) -> Page:
        context = chromium.context(
            node,
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            java_script_enabled=javascript,
        )
        contexts.append(context)
        if cookies is not None:
            context.add_cookies([{**one} for one in cookies.context.cookies()])  # type: ignore[typeddict-item]
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(params=[(390, "dark"), pytest.param((1280, "light"), marks=pytest.mark.long)], ids=["narrow", "wide"])
def shape(request: pytest.FixtureRequest) -> tuple[int, str]:
    """Width and theme of the window for axe."""
    width, theme = request.param
    return width, theme


@pytest.fixture
def link(node: Node) -> Iterator[str]:
    """The invitation of a researcher in the project `lab`, whose objects are deleted at the end."""
    if not any(one["name"] == "lab" for one in json.loads(node.ok("project", "list", "-f", "json"))):
        node.ok("project", "create", "lab", "--slices", "3", "--slivers", "4")
        node.ok("user", "invite", "rosa")
        node.ok("project", "add", "lab", "rosa")
    invited = json.loads(node.ok("user", "link", "rosa", "-f", "json"))
    yield str(invited["invitation"]["link"])
    mine = [one["name"] for one in json.loads(node.ok("list", "-f", "json")) if one["project"] == "lab"]
    if mine:
        node.slicectl("delete", "--project", "lab", *mine)
    eventually(lambda: json.loads(node.ok("list", "-f", "json")) == [], "the researcher's slices are gone")


@pytest.fixture
def rosa(window: Open, link: str) -> Page:
    """A page of the researcher, signed in."""
    page = window()
    accept(page, link)
    return page


def accept(page: Page, link: str) -> None:
    """Take an invitation up."""
    page.goto(link)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Repeat the password").fill(PASSWORD)
    page.get_by_role("button", name="Set password").click()
    page.wait_for_url("**/slices")


def request_slice(page: Page, node: Node, name: str, sliver_type: str = "lxc", image: str = "debian-12") -> None:
    """Fill the form in and send it."""
    page.goto("/new")
    page.get_by_label("Name").fill(name)
    page.locator(f"input[name=type][value={sliver_type}]").check(force=True)
    page.get_by_label("Image").select_option(image)
    page.locator("input[name=size][value=small]" if sliver_type == "lxc" else "input[name=size][value=medium]").check(
        force=True
    )
    page.get_by_label("Public key").fill(Path(node.key.with_suffix(".pub")).read_text())
    page.get_by_role("button", name="Request slice").click()


def section(page: Page, name: str) -> None:
    """Open a section of a slice's page: overview, usage, snapshots or settings."""
    page.locator(f"#tab-{name}").click()
    expect(page.locator(f"#{name}")).to_be_visible()


def ssh(node: Node, command: str, inside: str) -> str:
    """The output of `inside`, run over ssh by the command that the page shows."""
    words = command.split()
    assert words[0] == "ssh"
    options = ["-i", str(node.key), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
    options += ["-o", "UserKnownHostsFile=/dev/null"]
    done = subprocess.run(
        [words[0], *options, *words[1:], inside], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
