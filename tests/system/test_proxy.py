"""The service behind nginx with TLS, by the shipped file: sign-in, an upload, consoles, and untrusted headers."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from terminal import Terminal
from testbed import BIN, IMAGE, eventually
from tls_site import TlsNode

FORGED = "203.0.113.66"
PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def site() -> Iterator[TlsNode]:
    with TlsNode("tls") as made:
        made.settle()
        made.start()
        yield made


def ask(site: TlsNode, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, Any]:
    connection = http.client.HTTPSConnection(site.box.address, timeout=60, context=site.trust())
    with closing(connection):
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        connection.request(method, path, data, {key.replace("_", "-"): one for key, one in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


def failed_from(site: TlsNode, **headers: str) -> str:
    """The address in the event of a failed sign-in."""
    user = f"u{secrets.token_hex(4)}"
    status, _, _ = ask(site, "POST", "/api/v1/login", {"user": user, "password": "is not this"}, **headers)
    assert status == 401
    rows = site.rows(f"select address from events where action = 'sign-in failed' and user = '{user}'")
    return str(rows[0][0])


def own_address(site: TlsNode) -> str:
    with socket.create_connection((site.box.address, 443)) as probe:
        return str(probe.getsockname()[0])


def test_signing_in_an_upload_and_a_slice_with_its_console(site: TlsNode) -> None:
    token = json.loads(ask(site, "POST", "/api/v1/users", {"name": "ann"}, Authorization=f"Bearer {site.token()}")[1])
    link = token["invitation"]["link"]
    assert link.startswith(f"{site.url}/invitation/"), "the proxy says by which scheme"
    accepted = {"token": token["invitation"]["token"], "password": PASSWORD}
    assert ask(site, "POST", "/api/v1/invitation", accepted)[0] == 200
    status, text, headers = ask(site, "POST", "/api/v1/login", {"user": "ann", "password": PASSWORD})
    assert status == 201 and json.loads(text)["token"]
    assert int(headers["Strict-Transport-Security"].partition("=")[2]) >= 31536000
    site.import_recipe(IMAGE)
    site.create("exp")
    with Terminal([str(BIN / "slicectl"), "console", "exp"], site.environment()) as terminal:
        terminal.heard("Ctrl-] to detach")
        terminal.type("\recho $((6 * 7)) $(hostname)\r")
        terminal.see("42 exp-0")
        terminal.type("\x1d")
        assert terminal.end()[0] == 0
    site.ok("delete", "exp")


def test_the_address_is_the_real_one_and_cannot_be_forged(site: TlsNode) -> None:
    mine = own_address(site)
    assert failed_from(site) == mine
    assert failed_from(site, X_Forwarded_For=FORGED, Forwarded=f"for={FORGED}", X_Real_IP=FORGED) == mine
    site.start_nginx(**{"X-Forwarded-For   $remote_addr": "X-Forwarded-For $http_x_forwarded_for"})
    try:
        assert failed_from(site, X_Forwarded_For=FORGED) == FORGED, "the control"
    finally:
        site.start_nginx()


def test_plain_http_is_sent_to_tls(site: TlsNode) -> None:
    connection = http.client.HTTPConnection(site.box.address, timeout=30)
    with closing(connection):
        connection.request("GET", "/slices?x=1")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (301, f"{site.url}/slices?x=1")


def test_only_an_upload_may_be_large(site: TlsNode) -> None:
    large = b"x" * (6 << 20)
    with contextlib.suppress(OSError):  # it may hang up before it was sent
        assert ask(site, "POST", "/api/v1/login", large)[0] == 413
    headers = {"Authorization": f"Bearer {site.token()}", "Content_Type": "application/octet-stream"}
    status, text, _ = ask(site, "POST", "/api/v1/images?name=junk&format=qcow2", large, **headers)
    assert status != 413 and json.loads(text), "the service itself judges it"


def logged(site: TlsNode, request: str, of: str) -> str:
    """The line about a request; it is written after the answer."""

    def line() -> str:
        text = site.nginx_logs() if of == "nginx" else (site.box.directory / "log" / "web.log").read_text()
        return next((one for one in text.splitlines() if request in one), "")

    return str(eventually(line, f"{of} has logged request {request}"))


def test_no_secret_is_in_a_log(site: TlsNode) -> None:
    secret, token = secrets.token_urlsafe(32), site.token()
    for path, headers, shown in (
        (f"/invitation/{secret}", {}, "/invitation/..."),
        (f"/sign-in-link/{secret}", {}, "/sign-in-link/..."),
        (f"/api/v1/slices?token={secret}", {"Authorization": f"Bearer {token}"}, "/api/v1/slices"),
    ):
        request = ask(site, "GET", path, **headers)[2]["X-Request-ID"]
        lines = [json.loads(logged(site, request, of)) for of in ("nginx", "web")]
        assert [line["request"] for line in lines] == [request, request], "both logs call a request by the same id"
        assert lines[0]["path"] == shown
    logs = [path.read_text() for path in (site.box.directory / "log").iterdir()]
    assert all(one not in text for one in (secret, token) for text in (*logs, site.nginx_logs()))
    site.start_nginx(**{'"path":"$slicemgr_path"': '"path":"$request_uri"'})
    try:
        request = ask(site, "GET", f"/invitation/{secret}")[2]["X-Request-ID"]
        assert secret in logged(site, request, "nginx"), "the control"
    finally:
        site.start_nginx()
