"""HTTP requests of an attacker: every answer is accepted, and read up to a limit."""

from __future__ import annotations

import html
import http.client
import json
import re
import time
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from slicemgr.errors import Code, Failed, Refused

_MOST = 1 << 20  # bytes of an answer that are read
_LONGEST = 10.0  # seconds within which an answer is read
_PROOF = re.compile(r'name="csrf_token" value="([^"]+)"')


class Answer(NamedTuple):
    """An answer. text: headers and body. status: 0 if there was no answer; then text is the reason."""

    status: int
    text: str


class HttpProbe:
    """Sends requests of one account to a service.

    url: such as https://testbed.example. token: "" for no account. timeout: seconds.
    """

    def __init__(self, url: str, token: str = "", timeout: float = 30.0) -> None:
        parts = urlsplit(url.strip().rstrip("/"))
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._place = (parts.hostname or "", parts.port)
        self._prefix, self._timeout, self._url = parts.path, timeout, url.strip().rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def send(self, method: str, path: str, body: Any = None, data: bytes | None = None) -> Answer:
        """Send a request. path: including the prefix of the API. body: sent as JSON; data: sent unchanged."""
        headers = dict(self._headers)
        if data is not None:
            headers["Content-Type"] = "application/octet-stream"
        elif body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        return self._send(method, path, data, headers)

    def sign_in(self, user: str, password: str, agent: str) -> None:
        """Sign in on the web page. agent: the User-Agent header. Raises Failed if the password is refused."""
        page = self._send("GET", "/sign-in", None, {})
        proof = _PROOF.search(page.text)
        cookies = _cookies(page.text)
        if proof is None or not cookies:
            raise Failed("the page for signing in has no form", hint="is oidc.passwords false?")
        form = {"user": user, "password": password, "csrf_token": html.unescape(proof[1])}
        headers = {"Cookie": cookies, "Referer": f"{self._url}/sign-in", "User-Agent": agent}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        answer = self._send("POST", "/sign-in", urlencode(form).encode(), headers)
        if answer.status != 303:
            raise Failed(f"the page for signing in answered {answer.status} to the audit's own account")

    def _send(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Answer:
        connection = self._kind(*self._place, timeout=self._timeout)
        try:
            connection.request(method, self._prefix + path, data, headers)
            response = connection.getresponse()
            return Answer(response.status, f"{response.headers}\n{_body(connection, response)}")
        except ConnectionRefusedError as error:
            raise Refused(Code.UNAVAILABLE, f"cannot reach {self._url}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, f"{type(error).__name__}: {error}")
        finally:
            connection.close()


def _body(connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> str:
    """The part of the body that arrives within the limits, because an answer that leaks data may never end."""
    chunks, size, end = [], 0, time.monotonic() + _LONGEST
    while size < _MOST and (left := end - time.monotonic()) > 0:
        if connection.sock is not None:
            connection.sock.settimeout(left)
        try:
            chunk = response.read1(_MOST)
        except TimeoutError:
            break
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks).decode(errors="replace")


def _cookies(headers: str) -> str:
    found: SimpleCookie = SimpleCookie()
    for line in headers.splitlines():
        if line.lower().startswith("set-cookie:"):
            found.load(line.partition(":")[2].strip())
    return "; ".join(f"{name}={one.value}" for name, one in found.items())
