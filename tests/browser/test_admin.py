"""The other pages in a browser with a real node: invitations, granted requests, and uploads of images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from testbed import BIN, Node, eventually

from browser.conftest import Open, accept
from browser.test_accessible import look

LAB = "lasers"


@pytest.fixture
def chief(window: Open, node: Node) -> Iterator[Page]:
    """A page of an admin, signed in."""
    if not any(one["name"] == "chief" for one in json.loads(node.ok("user", "list", "-f", "json"))):
        node.ok("user", "invite", "chief", "--admin")
    link = str(json.loads(node.ok("user", "link", "chief", "-f", "json"))["invitation"]["link"])
    page = window()
    accept(page, link)
    yield page


def test_the_admin_signs_in_with_a_link_of_the_node(window: Open, node: Node) -> None:
    """The link of `make demo`, without JavaScript; the second click on it finds no link."""
    link = node.box.run([BIN / "slicemgr", "sign-in-link"], check=True).stdout.strip()
    page = window(javascript=False)
    page.goto(link)
    expect(page.get_by_role("heading", name="Sign in as admin")).to_be_visible()
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("You are signed in as admin")).to_be_visible()
    page.goto("/nodes")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    answer = window().goto(link)
    assert answer is not None and answer.status == 404


def test_from_an_invitation_to_a_granted_request(chief: Page, window: Open, node: Node) -> None:
    """A project and its PI are made, the PI asks for more than the quota, the admin grants less than was asked."""
    chief.goto("/people")
    chief.get_by_text("Invite a user").click()
    chief.get_by_label("User name").fill("Nina!")
    chief.get_by_role("button", name="Invite").click()
    expect(chief.get_by_label("User name")).to_have_value("Nina!")
    expect(chief.locator("#error-name")).to_contain_text("is not a valid user name")
    chief.get_by_label("User name").fill("nina")
    chief.get_by_role("button", name="Invite").click()
    link = chief.get_by_label("the link").inner_text()
    chief.reload()
    chief.wait_for_timeout(6000)  # after the time in which a double click shows it again
    chief.reload()
    expect(chief.get_by_label("the link")).to_have_count(0)

    chief.goto("/new-project")
    chief.get_by_label("Name", exact=True).fill(LAB)
    chief.get_by_label("PI").select_option("nina")
    chief.get_by_text("Quota and ceiling").click()
    chief.locator("[id='f-quota.slivers']").fill("1")
    chief.get_by_role("button", name="Create project").click()
    expect(chief.get_by_role("heading", name=LAB)).to_be_visible()

    nina = window()
    accept(nina, link)
    nina.goto("/account")
    nina.get_by_label("Add a public key").fill(node.key.read_text())
    nina.get_by_role("button", name="Add key").click()
    expect(nina.locator("#error-key")).to_contain_text("private key")
    nina.get_by_label("Add a public key").fill(node.key.with_suffix(".pub").read_text())
    nina.get_by_role("button", name="Add key").click()
    expect(nina.get_by_text("Your key was added.")).to_be_visible()
    nina.get_by_label("Used for").fill("notebook")
    nina.get_by_role("button", name="Create token").click()
    expect(nina.get_by_label("the token")).to_contain_text("smgr_")

    node.slicectl("project", "add", LAB, "chief")
    body = {"name": "fibre", "type": "lxc", "image": "debian-12", "count": 3, "memory": "64M", "disk": "1G"}
    token = nina.get_by_label("the token").inner_text()
    answer = nina.request.post(
        "/api/v1/slices",
        data=json.dumps({**body, "reason": "three <b>hops</b>"}),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    assert answer.status == 202, answer.text()
    chief.goto("/requests")
    expect(chief.locator(".rail .count")).to_contain_text("1")
    chief.get_by_role("link", name="fibre").click()
    expect(chief.get_by_text("three <b>hops</b>")).to_be_visible()
    chief.get_by_role("textbox", name="Slivers").fill("many")
    chief.get_by_role("button", name="Grant and create slice").click()
    expect(chief.get_by_role("textbox", name="Slivers")).to_have_value("many")
    expect(chief.locator("#error-count")).to_be_visible()
    chief.get_by_role("textbox", name="Slivers").fill("2")
    chief.get_by_role("button", name="Grant and create slice").click()
    expect(chief.get_by_text("Request granted. fibre of nina")).to_be_visible()
    eventually(lambda: json.loads(node.ok("show", "fibre", "--project", LAB, "-f", "json"))["state"] == "running", "up")

    chief.goto("/all-slices")
    chief.get_by_label(f"fibre of {LAB}").check()
    chief.get_by_role("button", name="Delete").click()
    expect(chief.locator("#really")).to_be_disabled()
    chief.get_by_label("Type delete 1").fill("delete 1")
    chief.locator("#really").click()
    chief.wait_for_url("**/operations*")
    eventually(lambda: json.loads(node.ok("list", "-f", "json")) == [], "it is gone")


def test_an_image_is_sent_with_and_without_javascript(chief: Page, window: Open, node: Node, tmp_path: Path) -> None:
    """An error is shown at its field and stores nothing; the file stays selected; an image without Linux is removed."""
    disk = tmp_path / "disk.raw"
    disk.write_bytes(b"\0" * (12 << 20))
    chief.goto("/new-image")
    chief.get_by_label("Name", exact=True).fill("empty-disk")
    chief.get_by_label("Disk image").set_input_files(disk)
    chief.get_by_role("button", name="Import").click()
    expect(chief.locator("#error-file")).to_contain_text("not a qcow2")
    assert chief.evaluate("document.querySelector('#f-file').files.length") == 1
    plain = window(javascript=False, cookies=chief)
    plain.goto("/new-image")
    plain.get_by_label("Name", exact=True).fill("bad/name")
    plain.get_by_label("Disk image").set_input_files(disk)
    plain.get_by_role("button", name="Import").click()
    expect(plain.locator("#error-name")).to_be_visible()
    assert node.rows("select name from images where name like 'empty%'") == []
    assert node.box.run(["ls", "-A", "/var/lib/slicemgr/uploads"]).stdout == ""
    chief.get_by_label("Format").select_option("raw")
    chief.get_by_role("button", name="Import").click()
    chief.wait_for_url("**/operations/*")
    expect(chief.get_by_role("heading", name="Import image empty-disk")).to_be_visible()
    expect(chief.get_by_role("row").filter(has_text="failed")).to_have_count(1, timeout=240_000)


def test_a_node_is_checked_and_swept(chief: Page) -> None:
    chief.goto("/nodes")
    chief.get_by_role("button", name="Run checks").click()
    expect(chief.get_by_text("Passed checks")).to_be_visible()
    chief.get_by_role("button", name="Find leftovers").click()
    expect(chief.get_by_text("The node has no leftovers")).to_be_visible()


PATHS = (
    *("/account", "/projects", "/projects/default", "/new-project", "/quotas", "/requests", "/people", "/people/chief"),
    *("/images", "/images/debian-12", "/new-image", "/nodes/test", "/new-node", "/all-slices", "/log", "/operations"),
)


@pytest.mark.long
def test_axe_finds_nothing(chief: Page, window: Open, shape: tuple[int, str]) -> None:
    """Of each page."""
    page = window(*shape, cookies=chief)
    for path in PATHS:
        look(page, path)
