"""The log of the web process: machine-readable lines with user and request, and without secrets."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import web_fork
from bare_service import Service
from web_process import USER, free_port

from slicemgr import config as settings
from slicemgr import logs
from slicemgr.ipc import websocket
from slicemgr.web import server

PASSWORD = "correct Horse battery-9"


@dataclass
class Visit:
    """The actions of a user at a web process, the secrets in use, and the log."""

    port: int
    admin: str
    secrets: dict[str, str] = field(default_factory=dict)
    cookie: str = ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with closing(connection):
            if isinstance(body, dict) and "csrf_token" in body:
                body, headers["Content-Type"] = urlencode(body), "application/x-www-form-urlencoded"
            elif body is not None:
                body = json.dumps(body)
            if self.cookie:
                headers["Cookie"] = self.cookie
            connection.request(method, path, body, {key.replace("_", "-"): one for key, one in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers

    def session_in(self, headers: http.client.HTTPMessage) -> str:
        given = (one.partition(";")[0] for one in headers.get_all("Set-Cookie", ()))
        return next(one for one in given if one.partition("=")[0] in ("slicemgr", "__Host-slicemgr"))

    def rest(self, method: str, path: str, token: str, body: Any = None) -> Any:
        status, text, _ = self.ask(method, f"/api/v1{path}", body, Authorization=f"Bearer {token}")
        return {**json.loads(text), "status": status}

    def make(self) -> None:
        """An account, a sign-in with each kind of credential, a console, and mistakes with all of them."""
        told = self.secrets
        told["password"], told["admin's token"] = PASSWORD, self.admin
        told["invitation"] = self.rest("POST", "/users", self.admin, {"name": "bob"})["invitation"]["token"]
        assert self.ask("GET", f"/invitation/{told['invitation']}")[0] == 200
        accepted = {"token": told["invitation"], "password": PASSWORD}
        assert self.rest("POST", "/invitation", "", accepted)["user"] == "bob"
        assert self.rest("POST", "/login", "", {"user": "bob", "password": PASSWORD + "x"})["status"] == 401
        self.rest("PUT", "/projects/default/members/bob", self.admin, {"role": "pi"})
        told["token"] = self.rest("POST", "/login", "", {"user": "bob", "password": PASSWORD})["token"]
        assert (
            self.rest("GET", f"/slices?token={told['token']}&password={PASSWORD[:7]}", told["token"])["status"] == 422
        )
        for path in (f"/api/v1/slices/{told['token']}", f"/{told['token']}/x", f"/invitation/{told['invitation']}/"):
            assert self.ask("GET", path, Authorization=f"Bearer {told['token']}")[0] in (404, 405)
        self._pages()
        self._console()
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as raw:
            raw.sendall(f"GET / HTTP/1.1\r\nAuthorization Bearer {told['token']}\r\n\r\n".encode())
            assert b"400" in raw.recv(4096)

    def _pages(self) -> None:
        _, page, headers = self.ask("GET", "/sign-in")
        self.cookie = self.session_in(headers)
        proof = re.search(r'name="csrf_token" value="([^"]+)"', page)
        assert proof
        fields = {"csrf_token": proof[1], "user": "bob", "password": PASSWORD}
        status, _, headers = self.ask("POST", "/sign-in", fields)
        assert status == 303
        self.cookie = self.session_in(headers)
        payload = self.cookie.partition("=")[2].split(".")
        assert self.ask("GET", "/slices")[0] == 200
        self.secrets["cookie"] = self.cookie.partition("=")[2]
        inside = payload[0] or payload[1]
        with suppress(ValueError):
            held = json.loads(base64.urlsafe_b64decode(inside + "=" * (-len(inside) % 4)))
            self.secrets["session"] = held["session"]

    def _console(self) -> None:
        asked = self.rest("POST", "/slices/exp/console", self.secrets["token"], {"sliver": 0})
        self.secrets["console"] = asked["token"]
        status, *_ = self.ask(
            "GET",
            asked["path"],
            Connection="Upgrade",
            Upgrade="websocket",
            Sec_WebSocket_Version="13",
            Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
            Sec_WebSocket_Protocol=f"{websocket.PROTOCOL}, token.{asked['token']}",
        )
        assert status == 503  # there is no agent


@contextmanager
def visited(kind: str, clean: bool = True) -> Iterator[tuple[Visit, str]]:
    """A visit, and the log of the process after its end."""
    folder = Path(tempfile.mkdtemp(prefix="slicemgr-logs-"))
    folder.chmod(0o755)
    port, file, log = free_port(), folder / "slicemgr.toml", folder / "log"
    file.write_text(
        f'[node]\nstate_dir = "{folder}/state"\nrun_dir = "{folder}/run"\n[log]\nformat = "{kind}"\n'
        f'[web]\nport = {port}\nuser = "{USER}:{USER}"\nthreads = 8\ncookie = "plain"\n'
    )
    try:
        with Service(folder) as service:
            service.create("exp")
            visit = Visit(port, service.token())
            server.make_directories(settings.load(file))
            process = web_fork.start(file, clean=clean, log=log)
            try:
                for _ in range(1200):
                    assert process.is_alive(), log.read_text()
                    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                        break
                    time.sleep(0.05)
                visit.make()
            finally:
                web_fork.end(process)
            yield visit, log.read_text()
    finally:
        shutil.rmtree(folder)


def leaked(visit: Visit, log: str) -> set[str]:
    return {name for name, secret in visit.secrets.items() if secret in log}


def test_each_line_is_json_and_tells_who_asked_what_and_nothing_that_opens_a_door() -> None:
    with visited("json") as (visit, log):
        assert leaked(visit, log) == set()
    assert set(visit.secrets) >= {"password", "invitation", "token", "admin's token", "cookie", "session", "console"}
    lines = [json.loads(line) for line in log.splitlines()]
    assert all({"at", "level", "logger", "message"} <= set(line) for line in lines)
    asked = [line for line in lines if line["logger"] == "slicemgr.access"]
    users = {(line["method"], line["path"]): line.get("user", "") for line in asked}
    assert users["POST", "/api/v1/users"] == "admin" and users["GET", "/slices"] == "bob"
    assert users["GET", f"/invitation/{logs.HIDDEN}"] == ""
    (one,) = [line for line in asked if line["path"] == "/sign-in" and line["method"] == "POST"]
    assert one["status"] == 303 and one["address"] == "127.0.0.1" and one["seconds"] > 0
    assert len({line["request"] for line in asked if line["status"] != 400}) >= len(asked) - 1


@pytest.mark.long
def test_text_holds_no_secret_either() -> None:
    with visited("text") as (visit, log):
        assert leaked(visit, log) == set()
    assert re.search(r"INFO slicemgr\.access: GET /slices 200 .*user=bob", log)


def test_without_the_cleaning_secrets_would_be_found() -> None:
    """The control: without the filter, the visit leaves secrets in the log."""
    with visited("json", clean=False) as (visit, log):
        assert leaked(visit, log) >= {"invitation", "token"}


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer SECRET",
        "/invitation/SECRET",
        "/sign-in-link/SECRET",
        "slicemgr.console.v1, token.SECRET",
        "Cookie: __Host-slicemgr=SECRET; other=1",
        "{'password': 'SECRET'}",
        'password="SECRET"',
        "/slices/smgr_SECRET",
        "SECRET",
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str) -> None:
    for secret in (secrets.token_urlsafe(32) for _ in range(50)):
        assert secret not in logs.clean(text.replace("SECRET", secret))


@pytest.mark.parametrize(
    "text", ["/api/v1/slices/exp", "ab" * 32, "a-name-of-63-characters-that-is-as-long-as-a-name-may-be-0123456", ""]
)
def test_what_is_none_stays(text: str) -> None:
    assert logs.clean(text) == text


def test_an_error_keeps_its_trace_on_one_line() -> None:
    try:
        raise ValueError("bearer abc\nsecond")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "it %s", ("broke",), sys.exc_info())
    line = logs.JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == "it broke" and told["level"] == "error" and "ValueError" in told["trace"]
    assert "abc" not in line
