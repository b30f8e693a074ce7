"""Take the screenshot for README and the first page of the documents, of the demo in Debian's Chromium.

    make demo && .venv/bin/python tools/picture.py [FILE]

It requests a slice on the web pages, takes the screenshot of the page of the slice, and deletes the slice,
the account and the project.
"""

from __future__ import annotations

import sys
from pathlib import Path

import demo
from bench_click import CHROMIUM, WAIT, invite, sign_in
from playwright.sync_api import Page, expect, sync_playwright

FILE = demo.REPO / "docs" / "images" / "slice.png"
USER, PROJECT, NAME = "ada", "lab", "routing"  # as in the tutorials
SAMPLE = 60_000  # ms until the page has a sample of each sliver's use


def take(page: Page, file: Path) -> None:
    page.goto("/new")
    page.get_by_label("Name").fill(NAME)
    page.get_by_label("Image").select_option(demo.RECIPE)
    page.get_by_label("Number of slivers").fill("2")
    page.get_by_label("Public key").fill(demo.ensure_key().with_suffix(".pub").read_text())
    page.get_by_role("button", name="Request slice").click()
    page.wait_for_url(f"**/slices/{NAME}**")
    expect(page.get_by_text("Ready", exact=True)).to_be_visible(timeout=WAIT)
    page.wait_for_timeout(SAMPLE)
    page.goto(f"/slices/{NAME}")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)


def main() -> int:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            window = browser.new_context(base_url=demo.web_page(), viewport={"width": 1280, "height": 800})
            page = window.new_page()
            sign_in(page, invite(USER, PROJECT))
            take(page, file)
            browser.close()
    finally:
        demo.slicectl("delete", "--project", PROJECT, NAME, check=False)
        demo.slicectl("user", "delete", USER, check=False)
        demo.slicectl("project", "delete", PROJECT, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
