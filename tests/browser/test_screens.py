"""The pages of a sliver's console and a machine's screen, in Debian's Chromium before a real node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from guest import Guest
from playwright.sync_api import ConsoleMessage, Page, Route, TimeoutError
from testbed import Node, eventually

from browser.chromium import Chromium
from browser.test_accessible import troubles

OVER_HTTP = ("Cross-Origin-Opener-Policy", "secure context")  # messages that occur over plain http only
PASSWORD = "correct horse battery"
PAINTED = ".xterm-rows"  # the colours in a terminal are its programs'
COLOUR = """() => {
    const red = [...document.querySelectorAll(".xterm-rows span")].findLast((one) => one.textContent === "red");
    return red && getComputedStyle(red).color;
}"""
BUSY = ("database is locked", "does not respond")
RED = r"printf '\033[38;2;255;0;0mred\033[0m\n'"


@pytest.fixture
def eve(node: Node) -> str:
    return pi(node)


def pi(node: Node) -> str:
    """A PI of the project in which the admin makes slices."""
    with node.client() as admin:
        call: Any = admin.connection.call
        if "eve" not in {one["name"] for one in call("GET", "/users")["users"]}:
            call("POST", "/users", {"name": "eve"})
        call("PATCH", "/users/eve", {"enabled": True})
        link = call("POST", "/users/eve/invitation")["invitation"]["token"]
        call("POST", "/invitation", {"token": link, "password": PASSWORD})
        call("PUT", "/projects/default/members/eve", {"role": "pi"})
    return "eve"


@contextmanager
def at(node: Node, chromium: Chromium, path: str, wrong: list[str], **more: Any) -> Iterator[Page]:
    """The page of eve; errors of the browser are added to `wrong`."""
    context = chromium.context(node, **{"viewport": {"width": 1280, "height": 800}, **more})
    page = context.new_page()
    page.set_default_timeout(150_000)
    page.on("pageerror", lambda error: wrong.append(str(error)))

    def note(said: ConsoleMessage) -> None:
        if said.type == "error" and not any(one in said.text for one in OVER_HTTP):
            wrong.append(said.text)

    page.on("console", note)
    page.goto(f"/sign-in?next={path}")
    page.get_by_label("User").fill("eve")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"**{path}")
    yield page
    context.close()


def connected(page: Page, node: Node) -> None:
    """Wait for the open console or screen.

    Under load the service can answer that it is busy: then connect again. Connect again once, too, if connecting lasts.
    A failure says what the page and the agent said.
    """
    state, ended = page.locator("#state"), page.locator("#state:not([data-state=connecting])")

    def said() -> str:
        return f"the page: {state.inner_text()}\nthe agent: {node.logs().get('agent.log')}"

    patient = True
    for _ in range(6):
        try:
            ended.wait_for()
        except TimeoutError:
            assert patient, said()
            patient = False
            print(said())
            page.reload()
            continue
        if state.get_attribute("data-state") == "open":
            return
        assert any(one in state.inner_text() for one in BUSY), said()
        page.get_by_role("button", name="Reconnect").click()
    raise AssertionError(said())


def shown(page: Page) -> str:
    """The text of the terminal."""
    return page.locator(".xterm-rows").inner_text().replace("\xa0", " ")


def run(page: Page, line: str, answer: str) -> None:
    """Type a line at the shell, and wait until the answer is shown."""
    page.keyboard.type(line)
    page.keyboard.press("Enter")
    eventually(lambda: answer in shown(page), f"{answer!r} is shown: {shown(page)}")


def test_a_shell_in_the_browser(node: Node, chromium: Chromium, eve: str) -> None:
    node.create("exp")
    wrong: list[str] = []
    with at(node, chromium, "/slices/exp/0/console", wrong) as page:
        connected(page, node)
        run(page, "", "#")
        run(page, "echo $((6 * 7)) $(hostname)", "42 exp-0")
        rows = page.locator(".xterm-rows > div").count()
        run(page, "echo rows $(stty size)", f"rows {rows} ")
        page.set_viewport_size({"width": 800, "height": 500})
        eventually(lambda: page.locator(".xterm-rows > div").count() < rows, "the terminal is smaller")
        run(page, "clear; echo now $(stty size)", f"now {page.locator('.xterm-rows > div').count()} ")
        run(page, f"{RED}; echo painted-$((1 + 1))", "painted-2")
        eventually(lambda: page.evaluate(COLOUR) == "rgb(255, 0, 0)", "a program's own colour is shown")
        assert troubles(page, PAINTED) == []
        page.keyboard.press("Shift+F6")
        assert page.evaluate("document.activeElement.id") == "full", "the keyboard gets out of the terminal"
        with node.client() as admin, admin.slices.console("exp"):
            page.locator("#state[data-state=closed]").wait_for()
            assert "closed this session" in page.locator("#state").inner_text()
        page.get_by_role("button", name="Reconnect").click()
        connected(page, node)
        run(page, "echo again-$((1 + 1))", "again-2")
    assert wrong == []


def test_the_end_of_the_session_is_the_console_s(node: Node, chromium: Chromium, eve: str) -> None:
    node.create("exp")
    with at(node, chromium, "/slices/exp/0/console", []) as page, node.client() as admin:
        connected(page, node)
        call: Any = admin.connection.call
        for session in call("GET", "/sessions?user=eve")["sessions"]:
            call("DELETE", f"/sessions/{session['id']}")
        page.locator("#state[data-state=closed]").wait_for()
        assert "was revoked" in page.locator("#state").inner_text()
        page.get_by_role("button", name="Reconnect").click()
        page.wait_for_url("**/sign-in?**")


def test_without_its_permission_the_terminal_breaks_the_policy(node: Node, chromium: Chromium, eve: str) -> None:
    """The control: the policy is at work, and complaints of it are noticed."""
    node.create("exp")
    wrong: list[str] = []

    def weaken(route: Route) -> None:
        route.fulfill(body="export function permit() {}", content_type="text/javascript")

    with at(node, chromium, "/slices", wrong) as page:
        page.route("**/screens/policy.js", weaken)
        page.goto("/slices/exp/0/console")
        connected(page, node)
    assert any("Content Security Policy" in one for one in wrong)


def test_the_screen_of_a_machine(guest: Guest, chromium: Chromium) -> None:
    wrong: list[str] = []
    pi(guest.node)
    with at(guest.node, chromium, f"/slices/{guest.name}/0/screen", wrong) as page:
        connected(page, guest.node)
        canvas = page.locator("#stage canvas")
        assert eventually(lambda: len(set(canvas.screenshot())) > 50, "something is on the screen")
        assert troubles(page, PAINTED) == []
        page.get_by_role("button", name="Paste").click()
        page.get_by_role("textbox", name="Text").fill("größe")
        page.get_by_role("button", name="Send text").click()
        assert "cannot be typed" in page.locator("#untyped").inner_text()
        page.get_by_role("textbox", name="Text").fill("Root")
        page.get_by_role("button", name="Send text").click()
        canvas.focus()
        page.keyboard.press("Shift+F6")
        assert page.evaluate("document.activeElement.id") == "full"
        page.get_by_role("link", name="Console").click()
        connected(page, guest.node)
        assert page.locator(".xterm-rows > div").count() == 24
    assert wrong == []


@pytest.mark.long
def test_a_machine_that_is_deleted_ends_its_console(node: Node, chromium: Chromium, eve: str) -> None:
    node.ensure_machines()
    node.type = "kvm"
    node.create("vm", "--no-wait")
    node.type = "lxc"
    node.ok("wait", "vm", "--for", "running")
    wrong: list[str] = []
    with at(node, chromium, "/slices/vm/0/console", wrong) as page:
        connected(page, node)
        node.ok("delete", "vm")
        page.locator("#state[data-state=closed]").wait_for()
        assert "has stopped" in page.locator("#state").inner_text()
    assert wrong == []
