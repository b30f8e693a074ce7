"""The researcher's way through the pages, before a real node: both types, without JavaScript, two tabs."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Page, expect
from testbed import IMAGES, Node

from browser.conftest import PASSWORD, Open, accept, request_slice, section, ssh

_READY = 180_000  # ms; a machine boots in emulation


def test_from_the_invitation_to_the_end(node: Node, window: Open, link: str, each_type: str) -> None:
    """Every button of a slice, and a login by the command that the page shows. Of a machine: without a second boot."""
    page = window()
    accept(page, link)
    expect(page.get_by_text("Your password is set")).to_be_visible()
    expect(page.get_by_role("heading", name="No slices yet")).to_be_visible()
    request_slice(page, node, "exp", each_type, IMAGES[each_type])
    page.wait_for_url("**/slices/exp**")
    if each_type == "kvm":  # while it boots
        for what in ("Console", "Screen"):
            expect(page.get_by_role("link", name=f"{what} of exp/0")).to_be_visible()
        expect(page.get_by_text("Ready", exact=True)).to_be_hidden()
    expect(page.get_by_text("Ready", exact=True)).to_be_visible(timeout=_READY)
    command = page.get_by_label("ssh command of exp").first.inner_text()
    assert ssh(node, command, "id -un").strip() == "root"
    actions = (("Pause", "paused"), ("Resume", "running"), ("Stop", "stopped"), ("Start", "running"))
    for action, state in actions[: 4 if each_type == "lxc" else 3]:
        page.get_by_role("button", name=action, exact=True).click()
        expect(page.locator("[role=status] .badge", has_text=state)).to_be_visible(timeout=_READY)
    section(page, "settings")
    page.get_by_label("Renew for").select_option("90d")
    page.get_by_role("button", name="Renew").click()
    expect(page.get_by_text(re.compile("was renewed .* longest lease that the project allows"))).to_be_visible()
    granted = json.loads(node.ok("show", "--project", "lab", "exp", "-f", "json"))["expires_at"]
    assert page.locator(f"time[datetime='{granted}']").count() > 0, "the page shows the date that was granted"
    page.get_by_role("link", name="Delete exp").click()
    expect(page.get_by_role("button", name="Delete slice")).to_be_disabled()
    page.get_by_label("Type the name of the slice").fill("exp")
    page.get_by_role("button", name="Delete slice").click()
    expect(page.get_by_text("Deleted", exact=True)).to_be_visible(timeout=_READY)
    page.get_by_role("link", name="My slices").click()
    expect(page.get_by_role("heading", name="No slices yet")).to_be_visible()


def test_the_cost_is_told_before_one_asks(node: Node, rosa: Page) -> None:
    """The bars follow the typed values; beyond the quota, the form requires a reason, and the request is pending."""
    rosa.goto("/new")
    expect(rosa.locator("#cost")).to_contain_text("0 + 1 of 4")
    expect(rosa.get_by_label("Why you need more")).to_be_hidden()
    rosa.get_by_label("Number of slivers").fill("9")
    expect(rosa.locator("#cost")).to_contain_text("0 + 9 of 4")
    expect(rosa.get_by_label("Why you need more")).to_be_visible()
    rosa.get_by_label("Name").fill("large")
    rosa.get_by_label("Public key").fill("ssh-ed25519 nonsense")
    rosa.get_by_role("button", name="Request slice").click()
    expect(rosa.locator("#error-more_keys")).to_be_visible()
    expect(rosa.get_by_label("Public key")).to_be_focused()
    assert rosa.get_by_label("Name").input_value() == "large", "what was typed is kept"
    rosa.get_by_label("Public key").fill((node.key.with_suffix(".pub")).read_text())
    rosa.get_by_label("Why you need more").fill("A large experiment")
    rosa.get_by_role("button", name="Request slice").click()
    rosa.wait_for_url("**/requests/*")
    expect(rosa.get_by_text("A large experiment")).to_be_visible()
    rosa.goto("/slices")
    expect(rosa.get_by_role("heading", name="Waiting requests")).to_be_visible()
    assert json.loads(node.ok("request", "list", "-f", "json"))[0]["reason"] == "A large experiment"
    rosa.get_by_role("button", name="Withdraw").click()
    expect(rosa.get_by_text("The request was withdrawn")).to_be_visible()


def test_without_javascript(node: Node, window: Open, link: str) -> None:
    """Signing out and in, a request, its page, its end: forms alone."""
    page = window(javascript=False)
    accept(page, link)
    page.get_by_role("button", name="Sign out").last.click()
    page.get_by_label("User").fill("rosa")
    page.get_by_label("Password").fill("not this one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("is wrong")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    request_slice(page, node, "plain")
    expect(page.get_by_text("Ready", exact=True)).to_be_visible(timeout=_READY)
    page.get_by_role("link", name="Delete plain").click()
    page.get_by_label("Type the name of the slice").fill("plain")
    page.get_by_role("button", name="Delete slice").click()
    expect(page.get_by_text("Deleted", exact=True)).to_be_visible(timeout=_READY)


def test_two_tabs_and_two_clicks(node: Node, window: Open, rosa: Page) -> None:
    """A second click creates no second slice; the other tab shows the deletion, and its stale form is refused."""
    rosa.goto("/new")
    rosa.get_by_label("Name").fill("twice")
    rosa.get_by_label("Public key").fill((node.key.with_suffix(".pub")).read_text())
    rosa.get_by_role("button", name="Request slice").dblclick()
    rosa.wait_for_url("**/slices/twice**")
    expect(rosa.get_by_text("Ready", exact=True)).to_be_visible(timeout=_READY)
    other = window(cookies=rosa, javascript=False)
    other.goto("/slices/twice?project=lab")
    node.ok("delete", "--project", "lab", "twice")
    expect(rosa.get_by_text("twice no longer exists")).to_be_visible()
    other.get_by_role("button", name="Stop").click()
    expect(other.get_by_role("heading", name="Not found")).to_be_visible()


def test_a_revoked_session_ends_at_once(node: Node, rosa: Page) -> None:
    """The page that updates itself redirects to the sign-in page, which leads back to it."""
    request_slice(rosa, node, "mine")
    expect(rosa.get_by_text("Ready", exact=True)).to_be_visible(timeout=_READY)
    node.ok("user", "disable", "rosa")
    node.ok("user", "enable", "rosa")
    rosa.wait_for_url("**/sign-in**")
    rosa.goto("/slices/mine?project=lab")
    rosa.get_by_label("User").fill("rosa")
    rosa.get_by_label("Password").fill(PASSWORD)
    rosa.get_by_role("button", name="Sign in").click()
    rosa.wait_for_url("**/slices/mine?project=lab")


def test_the_panel_marks_invalid_fields(rosa: Page) -> None:
    """Where they are typed, until they are valid."""
    rosa.goto("/new")
    count = rosa.get_by_label("Number of slivers")
    count.fill("0")
    expect(rosa.locator("#cost")).to_contain_text("Number of slivers:")
    expect(count).to_have_attribute("aria-invalid", "true")
    expect(count).to_have_attribute("aria-describedby", "invalid-count")
    count.fill("2")
    expect(rosa.locator("#cost")).to_contain_text("0 + 2 of 4")
    expect(count).not_to_have_attribute("aria-invalid", "true")  # the marks are set after the panel's text
    expect(count).not_to_have_attribute("aria-describedby", "invalid-count")


def test_a_lost_session_keeps_the_form(node: Node, window: Open, rosa: Page) -> None:
    """With and without JavaScript: the form is shown after the sign-in with what was typed, and is sent by its user."""
    for name in ("kept", "plain"):
        page = rosa if name == "kept" else window(javascript=False, cookies=rosa)
        page.goto("/new")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Public key").fill((node.key.with_suffix(".pub")).read_text())
        node.ok("user", "disable", "rosa")
        node.ok("user", "enable", "rosa")
        if page is rosa:
            page.get_by_label("Number of slivers").fill("2")
            expect(page.locator("#cost")).to_contain_text("Your session has ended")
        page.get_by_role("button", name="Request slice").click()
        page.wait_for_url("**/sign-in**")
        page.get_by_label("User").fill("rosa")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/new?**")
        expect(page.get_by_text("the form was not sent")).to_be_visible()
        expect(page.get_by_label("Name")).to_have_value(name)
        page.get_by_role("button", name="Request slice").click()
        expect(page.get_by_text("Ready", exact=True)).to_be_visible(timeout=_READY)
