"""Measure the time from the click on *Request slice* until ssh answers, compared with slicectl.

    make demo && .venv/bin/python tools/bench_click.py [--count 10]

Both request a container of the same image from the demo's node, in turns. The time of the page ends when it shows that
the slice is ready and the port of its ssh command has sent the banner; that of slicectl, when `slicectl create` has
returned and the port has sent the banner. At the end, the slices are deleted and the account is disabled.
"""

from __future__ import annotations

import argparse
import json
import secrets
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import demo
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
USER = "bench-click"
PROJECT = "bench-click"
WAIT = 120_000  # ms


def slicectl_json(*words: str) -> Any:
    return json.loads(demo.slicectl(*words, "-f", "json").stdout)


def banner(host: str, port: int) -> None:
    """Wait for the ssh banner of a port. Raises OSError if there is none."""
    with socket.create_connection((host, port), timeout=30) as connection:
        if not connection.recv(256).startswith(b"SSH-"):
            raise OSError(f"{host}:{port} is no ssh server")


def invite(user: str = USER, project: str = PROJECT) -> str:
    """Create an account with its own project. Returns the link for setting the password."""
    if not any(one["name"] == project for one in slicectl_json("project", "list")):
        demo.slicectl("project", "create", project, "--slices", "2", "--slivers", "2")
    if any(one["name"] == user for one in slicectl_json("user", "list")):
        demo.slicectl("user", "enable", user)
    else:
        demo.slicectl("user", "invite", user)
        demo.slicectl("project", "add", project, user)
    return str(slicectl_json("user", "link", user)["invitation"]["link"])


def sign_in(page: Page, link: str) -> None:
    password = secrets.token_urlsafe(16)
    page.goto(link)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_label("Repeat the password").fill(password)
    page.get_by_role("button", name="Set password").click()
    page.wait_for_url("**/slices")


def by_page(page: Page, name: str, key: Path) -> float:
    """Seconds from the click until the banner."""
    page.goto("/new")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Image").select_option(demo.RECIPE)
    page.get_by_label("Public key").fill(key.read_text())
    button = page.get_by_role("button", name="Request slice")
    started = time.monotonic()
    button.click()
    page.wait_for_url(f"**/slices/{name}**")
    expect(page.get_by_text("Ready", exact=True)).to_be_visible(timeout=WAIT)
    words = page.get_by_label(f"ssh command of {name}").first.inner_text().split()
    banner(words[-1].rpartition("@")[2], int(words[words.index("-p") + 1]))
    return time.monotonic() - started


def by_slicectl(name: str, key: Path) -> float:
    """Seconds from the start of the command until the banner."""
    started = time.monotonic()
    words = ("--type", "lxc", "--image", demo.RECIPE, "--ssh-key", str(key), "--project", PROJECT)
    sliver = slicectl_json("create", name, *words)["slivers"][0]
    banner(sliver["ssh"]["host"], sliver["ssh"]["port"])
    return time.monotonic() - started


def measure(page: Page, count: int, key: Path) -> tuple[list[float], list[float]]:
    pages, commands = [], []
    for number in range(count):
        pages.append(by_page(page, f"click-{number}", key))
        demo.slicectl("delete", "--project", PROJECT, f"click-{number}")
        commands.append(by_slicectl(f"typed-{number}", key))
        demo.slicectl("delete", "--project", PROJECT, f"typed-{number}")
    return pages, commands


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10, help="slices by each way")
    given = parser.parse_args()
    key = demo.ensure_key().with_suffix(".pub")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_context(base_url=demo.web_page()).new_page()
            sign_in(page, invite())
            pages, commands = measure(page, given.count, key)
            browser.close()
    finally:
        left = [one["name"] for one in slicectl_json("list") if one["project"] == PROJECT]
        if left:
            demo.slicectl("delete", "--project", PROJECT, *left)
        demo.slicectl("user", "disable", USER, check=False)
    for name, times in (("page", pages), ("slicectl", commands)):
        print(f"{name:<9} p50 {statistics.median(times):.2f} s, most {max(times):.2f} s, n {len(times)}")
    print(f"page / slicectl: {statistics.median(pages) / statistics.median(commands):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
