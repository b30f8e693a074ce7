"""The first hour of an administrator on a host with the Debian packages: the checks, the tutorial, every page.

The pages are kept in /opt/tests/output, so that a person can look at them (`tools/prodhost.py --output`).
"""

from __future__ import annotations

import http.cookiejar
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tutorial
from host_node import HostNode
from testbed import Node

REPO = Path(__file__).parents[2]
OUTPUT = REPO / "output"
SECONDS = 3000  # of the tutorial, emulated
LINK = re.compile(r'(?:href|src)="(/[^"#?]*(?:\?project=[a-z0-9-]+)?)"')  # not those that sort and filter
MOST = 90  # pages and their files
NOT_PAGES = re.compile(r"/(docs|client|metrics|api/)|/sign-out|\.(csv|json|whl)$")


class Browser:
    """An administrator's browser without JavaScript. It keeps what it shows in OUTPUT."""

    def __init__(self, url: str) -> None:
        self.url = url
        # As browsers do on the loopback interface, it returns cookies that are for secure connections.
        policy = http.cookiejar.DefaultCookiePolicy(secure_protocols=("http", "https"))
        jar = http.cookiejar.CookieJar(policy)
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))

    def get(self, path: str, body: dict[str, str] | None = None) -> str:
        data = None if body is None else urllib.parse.urlencode(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Origin": self.url, "Accept": "text/html"})
        with self._opener.open(request, timeout=300) as answer:
            content = answer.read()
        static = path.startswith("/static/")
        file = OUTPUT / (path[1:] if static else f"{urllib.parse.quote(path[1:] or 'overview', safe='')}.html")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return "" if static else content.decode()

    def sign_in(self, link: str) -> None:
        path = urllib.parse.urlsplit(link).path
        token = re.search(r'name="csrf_token" value="([^"]+)"', self.get(path))
        assert token is not None
        self.get(path, {"csrf_token": token[1]})


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with HostNode() as host:
        host.start()
        yield host


def test_the_checks_pass(node: Node) -> None:
    shown = node.box.run(["slicectl", "doctor"], timeout=300)
    assert shown.returncode == 0, shown.stdout + shown.stderr


def test_the_tutorial(node: Node, tmp_path: Path) -> None:
    """As root, who is an administrator without a sign-in."""
    lines = tutorial.commands((REPO / "docs" / "tutorials" / "administrator.md").read_text())
    environment = {"HOME": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "COLUMNS": "120"}
    done = tutorial.run(lines, tmp_path, {**environment, "TERM": "dumb"}, "", SECONDS)
    OUTPUT.mkdir(exist_ok=True)
    (OUTPUT / "administrator.txt").write_text(done.shown)
    assert done.status == 0, done.shown[-3000:]


def test_every_page(node: Node) -> None:
    """Every page that can be reached by links after the sign-in, while a slice runs."""
    node.create("hour", "--memory", "128M")
    browser = Browser(node.url)
    browser.sign_in(node.box.run(["slicemgr", "sign-in-link"], check=True).stdout.strip())
    waiting, known = ["/"], {"/"}
    while waiting:
        for found in LINK.findall(browser.get(waiting.pop(0))):
            if found not in known and len(known) < MOST and not NOT_PAGES.search(found):
                known.add(found)
                waiting.append(found)
    assert {"/nodes", "/images", "/projects", "/log"} <= known, known
    assert "/slices/hour?project=default" in known, known
    node.ok("delete", "hour")
