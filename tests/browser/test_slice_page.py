"""A slice's page in a browser before a real node: curves, snapshots, a clone, the console, a larger disk."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect
from testbed import IMAGES, Node, eventually

from browser.conftest import Open, request_slice, section, ssh
from browser.test_accessible import look, troubles
from browser.test_admin import chief

__all__ = ["chief"]
_READY = 240_000  # ms; a machine boots in emulation
EXP = "/slices/exp?project=lab"
LOADED = """() => performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
    .reduce((sum, one) => sum + one.encodedBodySize, 0)"""
KINDS = """() => performance.getEntriesByType("resource").filter((one) => one.name.includes("/static/"))
    .map((one) => [one.encodedBodySize, one.decodedBodySize])"""


def ready(page: Page, name: str) -> str:
    """Wait until the page of a new slice shows that it is ready. Returns its ssh command."""
    page.wait_for_url(f"**/slices/{name}?**")
    expect(page.get_by_text("Ready", exact=True)).to_be_visible(timeout=_READY)
    return page.get_by_label(f"ssh command of {name}").first.inner_text()


def keep(page: Page, name: str) -> None:
    """Make a snapshot, and wait until the page has it."""
    section(page, "snapshots")
    page.get_by_label("Name of the new snapshot").fill(name)
    page.get_by_role("button", name="Create snapshot").click()
    expect(page.get_by_role("link", name=f"Restore {name}")).to_be_visible(timeout=60_000)


def test_snapshots_from_the_first_to_a_clone(node: Node, rosa: Page) -> None:
    """Data written after a snapshot are neither in the restored sliver nor in a clone."""
    request_slice(rosa, node, "exp", "lxc", IMAGES["lxc"])
    command = ready(rosa, "exp")
    ssh(node, command, "echo kept > /root/kept; sync")
    section(rosa, "snapshots")
    rosa.get_by_label("Name of the new snapshot").fill("Not this")
    rosa.locator("form[aria-label='Create a snapshot']").evaluate("form => { form.noValidate = true }")
    rosa.get_by_role("button", name="Create snapshot").click()
    expect(rosa.locator("#error-snapshot")).to_be_visible()
    expect(rosa.get_by_label("Name of the new snapshot")).to_be_focused()
    expect(rosa.get_by_label("Name of the new snapshot")).to_have_value("Not this")
    keep(rosa, "before")
    ssh(node, command, "echo lost > /root/lost; rm /root/kept; sync")
    rosa.get_by_role("link", name="Restore before").click()
    expect(rosa.get_by_text("All changes since then are lost")).to_be_visible()
    rosa.get_by_role("button", name="Restore snapshot").click()
    expect(rosa.get_by_text("Restored", exact=True)).to_be_visible(timeout=_READY)
    assert ssh(node, command, "ls /root").split() == ["kept"]
    rosa.get_by_role("link", name="Clone before").click()
    rosa.get_by_label("Name of the new slice").fill("exp")
    rosa.get_by_role("button", name="Create slice").click()
    expect(rosa.locator("#error-name")).to_contain_text("already")
    rosa.get_by_label("Name of the new slice").fill("twin")
    rosa.get_by_role("button", name="Create slice").click()
    assert ssh(node, ready(rosa, "twin"), "hostname; cat /root/kept").split() == ["twin-0", "kept"]
    rosa.goto(EXP)
    rosa.get_by_role("link", name="Delete exp").click()
    expect(rosa.get_by_text("1 snapshot")).to_be_visible()
    rosa.get_by_role("link", name="Cancel").click()
    section(rosa, "snapshots")
    rosa.get_by_role("link", name="Delete before").click()
    rosa.get_by_role("button", name="Delete snapshot").click()
    expect(rosa.get_by_text("Snapshot deleted", exact=True)).to_be_visible(timeout=60_000)
    expect(rosa.get_by_text("No snapshots. You can restore")).to_be_visible()


# Of the newest sliver: what those left that are gone stays a while.
MEASURED = """select at from samples where working is not null and resolution = 0
    and sliver = (select max(serial) from slivers)"""


def test_curves_disk_and_console(node: Node, rosa: Page) -> None:
    """Curves show the measurements of the agent; the console links back; the disk grows while the sliver runs."""
    request_slice(rosa, node, "exp")
    command = ready(rosa, "exp")
    section(rosa, "usage")
    for curve in ("memory", "cpu", "disk", "network", "reclaim", "pressure"):
        eventually(lambda: len(node.rows(MEASURED)) > 2, "it is measured")
        rosa.reload()
        expect(rosa.locator(f"figure[data-curve={curve}] canvas")).to_be_visible()
    said = rosa.locator("figure[data-curve=memory] [data-curve-at]")
    rosa.locator("figure[data-curve=memory] [data-curve-plot]").hover()
    rosa.locator("figure[data-curve=memory] [data-curve-plot]").focus()
    rosa.keyboard.press("End")
    expect(said).to_contain_text("MiB")
    rosa.get_by_text("Show as table").click()
    expect(rosa.locator(".curves-table").get_by_role("row", name=re.compile("^Memory [0-9]"))).to_contain_text("MiB")
    rosa.get_by_label("Period").select_option("24h")
    expect(rosa.locator(".curves-state")).to_be_empty()
    weights = rosa.evaluate(KINDS)
    assert rosa.evaluate(LOADED) < 300 << 10
    assert any(0 < packed < whole / 2 for packed, whole in weights), f"nothing came packed: {weights}"
    section(rosa, "overview")
    rosa.get_by_role("link", name="Console of exp/0").click()
    rosa.locator("#state[data-state=open]").wait_for()
    assert rosa.evaluate(LOADED) < 300 << 10, "the console's page is light"
    rosa.get_by_role("link", name="exp", exact=True).click()
    rosa.wait_for_url(f"**{EXP}")
    section(rosa, "settings")
    rosa.get_by_text("Change disk and memory").click()
    rosa.get_by_label("Disk per sliver").fill("1G")
    rosa.get_by_role("button", name="Change", exact=True).click()
    expect(rosa.locator("#error-disk")).to_contain_text("a disk cannot shrink")
    rosa.get_by_label("Disk per sliver").fill("3G")
    rosa.get_by_label("Memory per sliver").fill("300M")
    rosa.get_by_label("Memory guarantee").fill("64M")
    rosa.get_by_role("button", name="Change", exact=True).click()
    expect(rosa.get_by_text("Resized", exact=True)).to_be_visible(timeout=60_000)
    shown = json.loads(node.ok("show", "--project", "lab", "exp", "-f", "json"))
    limits = shown["slivers"][0]["limits"]
    assert (limits["disk"], limits["memory"], limits["memory_guarantee"]) == (3 << 30, 300 << 20, 64 << 20)
    rosa.get_by_role("button", name="Stop", exact=True).click()
    expect(rosa.locator("[role=status] .badge", has_text="stopped")).to_be_visible(timeout=60_000)
    expect(rosa.get_by_role("link", name="Console of exp/0")).to_have_count(0)
    assert "root@" in command


@pytest.mark.long
def test_without_javascript(node: Node, window: Open, rosa: Page) -> None:
    """A snapshot is created, cloned and deleted by forms without JavaScript."""
    request_slice(rosa, node, "exp")
    ready(rosa, "exp")
    page = window(javascript=False, cookies=rosa)
    page.goto(f"{EXP}#snapshots")
    expect(page.locator("#overview")).to_be_hidden()
    page.get_by_label("Name of the new snapshot").fill("plain")
    page.get_by_role("button", name="Create snapshot").click()
    expect(page.get_by_role("link", name="Clone plain")).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Clone plain").click()
    page.get_by_label("Name of the new slice").fill("twin")
    page.get_by_role("button", name="Create slice").click()
    ready(page, "twin")
    page.goto(f"{EXP}#snapshots")
    page.get_by_role("link", name="Delete plain").click()
    page.get_by_role("button", name="Delete snapshot").click()
    expect(page.get_by_text("No snapshots. You can restore")).to_be_visible(timeout=60_000)
    told = page.request.get("/slices/exp/samples?project=lab&since=24h&format=csv").text()
    assert told.startswith("at,sliver,"), "what there is instead of curves"


def test_what_holds_for_leases(node: Node, chief: Page, link: str) -> None:
    """An admin sets it, and the page of the project shows it."""
    chief.goto("/projects/lab")
    chief.get_by_role("link", name="Change lease policy").click()
    chief.get_by_label("Reminders before the end").fill("1d, soon")
    chief.get_by_role("button", name="Save").click()
    expect(chief.locator("#error-reminders")).to_contain_text("soon")
    chief.get_by_label("Reminders before the end").fill("2d")
    chief.get_by_label("Renewal window").fill("4d")
    chief.get_by_role("button", name="Save").click()
    expect(chief.get_by_text("in the last 4 days")).to_be_visible()
    rules = json.loads(node.ok("project", "lease", "lab", "-f", "json"))
    assert (rules["reminders"], rules["window"]) == ([172800], 345600)
    chief.get_by_role("link", name="Change lease policy").click()
    for label in ("Reminders before the end", "Renewal window"):
        chief.get_by_label(label).fill("")
    chief.get_by_role("button", name="Save").click()
    expect(chief.get_by_text("at any time")).to_be_visible()


@pytest.mark.long
def test_axe_finds_nothing(node: Node, window: Open, rosa: Page, chief: Page, shape: tuple[int, str]) -> None:
    """On the pages in their present state: with a snapshot, and with curves."""
    request_slice(rosa, node, "exp")
    ready(rosa, "exp")
    keep(rosa, "before")
    one = "/slices/exp/snapshots/before"
    page = window(*shape, cookies=rosa)
    for path in (f"{one}/restore", f"{one}/delete", f"{one}/clone", "/slices/exp/delete"):
        look(page, f"{path}?project=lab")
    look(page, EXP)
    for name in ("snapshots", "usage", "settings"):
        section(page, name)
        if name == "usage":
            expect(page.locator("figure[data-curve=memory] canvas")).to_be_visible()
            page.get_by_text("Show as table").click()
        elif name == "settings":
            page.get_by_text("Change disk and memory").click()
        assert troubles(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page = window(*shape, cookies=chief)
    look(page, "/nodes/test")
    expect(page.locator("figure[data-curve=slivers] canvas")).to_be_visible()
    for path in ("/projects/lab", "/projects/lab/leases", "/projects/default"):
        look(page, path)


def test_sections(node: Node, rosa: Page) -> None:
    """One is shown at a time, also while the page updates itself; anchors of earlier links open the right one."""
    request_slice(rosa, node, "exp")
    ready(rosa, "exp")
    names = ("overview", "usage", "snapshots", "settings")
    for name in names:
        section(rosa, name)
        expect(rosa.locator(f"#tab-{name}")).to_have_attribute("aria-current", "true")
        assert [rosa.locator(f"#{one}").is_visible() for one in names] == [one == name for one in names]
    node.ok("stop", "--project", "lab", "exp")
    expect(rosa.locator("[role=status] .badge", has_text="stopped")).to_be_visible(timeout=60_000)
    expect(rosa.locator("#settings")).to_be_visible()
    expect(rosa.locator("#overview")).to_be_hidden()
    for anchor, name in (("lease", "settings"), ("events", "overview"), ("snapshots", "snapshots")):
        rosa.goto("/slices")
        rosa.goto(f"{EXP}#{anchor}")
        expect(rosa.locator(f"#{name}")).to_be_visible()
        assert [rosa.locator(f"#{one}").is_visible() for one in names] == [one == name for one in names]
