"""Debian's Chromium in network namespaces of its own.

Chromium cancels its requests (`ERR_NETWORK_CHANGED`) when an interface or address of its namespace comes or goes: those
of the host do whenever a box starts. So each box that is looked at has a browser that is started after its only link.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Self

import nodebox_network as network
from playwright.sync_api import Browser, BrowserContext, Playwright
from testbed import Node, eventually

PROGRAM = "/usr/bin/chromium"
BLOCK = IPv4Network("198.18.0.0/30")  # RFC 2544: networks of tests
DEVICE = "browser"  # both ends


def launch(playwright: Playwright, program: Path | str = PROGRAM) -> Browser:
    # The sandbox of Chromium needs namespaces that root in a container may lack; the pages are trusted.
    return playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


class Chromium:
    """folder: for start scripts."""

    def __init__(self, playwright: Playwright, folder: Path) -> None:
        self._playwright = playwright
        self._folder = folder
        self._browsers: dict[int, Browser] = {}  # by the keeper of the box
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.close()

    def context(self, node: Node, **more: Any) -> BrowserContext:
        """A separate browser that reaches the node. more: for `new_context`."""
        keeper = node.box.facts().keeper
        assert keeper is not None, f"box {node.box.name} does not run"
        if keeper not in self._browsers:
            self._browsers[keeper] = self._start(keeper, node.box.address)
        return self._browsers[keeper].new_context(base_url=node.url, **more)

    def _start(self, keeper: int, address: str) -> Browser:
        namespace = self._namespace()
        near, far = network.ends(BLOCK)
        network.batch(namespace, [f"link add {DEVICE} type veth peer name {DEVICE} netns {keeper}"])
        for pid, own in ((keeper, far), (namespace, near)):  # without IPv6 addresses, which appear seconds later
            lines = [f"link set {DEVICE} addrgenmode none", f"addr add {own}/30 dev {DEVICE}", f"link set {DEVICE} up"]
            network.batch(pid, lines)
        network.batch(namespace, [f"route add {address} via {far}"])
        script = self._folder / f"chromium-{keeper}"
        script.write_text(f'#!/bin/sh\nexec nsenter --net=/proc/{namespace}/ns/net -- {PROGRAM} "$@"\n')
        script.chmod(0o755)
        browser = launch(self._playwright, script)
        self._ends.callback(browser.close)
        return browser

    def _namespace(self) -> int:
        """The process that holds a new network namespace."""
        words = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep infinity"]
        holder = self._ends.enter_context(subprocess.Popen(words))
        self._ends.callback(holder.kill)
        comm = Path(f"/proc/{holder.pid}/comm")
        eventually(lambda: comm.read_text() == "sleep\n", "the namespace is there")
        return holder.pid
