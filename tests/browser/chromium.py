"""Debian's Chromium in a network namespace of its own.

Chromium cancels its requests (`ERR_NETWORK_CHANGED`) when an interface of its namespace comes or goes, as those of the
host do whenever a box starts.
"""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nodebox_network as network
from nodebox_box import Box
from playwright.sync_api import Browser, BrowserContext, Playwright
from testbed import Node, eventually

PROGRAM = "/usr/bin/chromium"
BLOCKS = ipaddress.IPv4Network("198.18.0.0/24")  # for benchmarks of networks (RFC 2544), so nobody's
DEVICE = "browser"  # the box's end


@dataclass(slots=True)
class Chromium:
    """pid: of the process that holds the namespace. reached: the keepers of the boxes that have a link to it."""

    browser: Browser
    pid: int
    reached: set[int] = field(default_factory=set)

    def context(self, node: Node, **more: Any) -> BrowserContext:
        """A separate browser that reaches the node. more: for `new_context`."""
        self._reach(node.box)
        return self.browser.new_context(base_url=node.url, **more)

    def _reach(self, box: Box) -> None:
        keeper = box.facts().keeper
        assert keeper is not None, f"box {box.name} does not run"
        if keeper in self.reached:
            return
        near, device = network.ends(list(BLOCKS.subnets(new_prefix=30))[len(self.reached)]), f"box{len(self.reached)}"
        network.batch(self.pid, [f"link add {device} type veth peer name {DEVICE} netns {keeper}"])
        network.batch(keeper, [f"addr add {near[1]}/30 dev {DEVICE}", f"link set {DEVICE} up"])
        up = [f"addr add {near[0]}/30 dev {device}", f"link set {device} up"]
        network.batch(self.pid, [*up, f"route replace {box.address} via {near[1]}"])
        self.reached.add(keeper)


def launch(playwright: Playwright, program: Path | str = PROGRAM) -> Browser:
    # The sandbox of Chromium needs namespaces that root in a container may lack; the pages are trusted.
    return playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@contextmanager
def apart(playwright: Playwright, folder: Path) -> Iterator[Chromium]:
    """Chromium in a namespace that has no link yet. folder: for its start script."""
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep infinity"])
    try:
        eventually(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n", "the namespace is there")
        script = folder / "chromium"
        script.write_text(f'#!/bin/sh\nexec nsenter --net=/proc/{holder.pid}/ns/net -- {PROGRAM} "$@"\n')
        script.chmod(0o755)
        browser = launch(playwright, script)
        yield Chromium(browser, holder.pid)
        browser.close()
    finally:
        holder.kill()
        holder.wait()
