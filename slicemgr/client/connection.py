"""The transport of the client: requests over one HTTP connection that stays open between calls."""

from __future__ import annotations

import copy
import http.client
import json
import select
import sys
import time
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slicemgr.client.paths import problem
from slicemgr.client.settings import START_HINT
from slicemgr.errors import Code, Failed, Refused, invalid

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from slicemgr.ipc.websocket import Channel

API = "/api/v1"
_CHUNK = 1 << 20  # bytes of an upload between two reports of its progress
_LONGEST_IDLE = 30.0  # seconds; the service may close a connection that is idle for longer, just when it is used again
_UPLOAD_TIMEOUT = 600.0  # seconds for the answer after the last byte, in which the service writes the file to disk


class Connection:
    """One HTTP connection to one service.

    url: such as http://127.0.0.1:8480. token: of the caller. timeout: seconds for connecting and for each answer.
    source: the origin of the token, for the error that it is invalid. project: the project whose slices are used; None:
    all projects of the caller. identity: private key for ssh into slivers; None: the default of ssh.
    """

    identity: str | None = None

    def __init__(
        self, url: str, token: str, timeout: float = 30.0, *, source: str = "", project: str | None = None
    ) -> None:
        parts = urlsplit(url.strip())
        try:
            port = parts.port
        except ValueError as error:
            raise invalid("SLICEMGR_URL", f"{url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url.strip():
            raise invalid("SLICEMGR_URL", f"{url!r} is not an http or https URL", "such as http://127.0.0.1:8480")
        if not (token.isascii() and token.isprintable()):
            raise invalid("SLICEMGR_TOKEN", "contains invalid characters")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url = url.strip().rstrip("/")
        self.timeout = timeout
        self.source = source
        self.project = project
        self._path = parts.path.rstrip("/")
        self._prefix = self._path + API
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "slicectl"}
        self.port = port or kind.default_port
        self.http = kind(parts.hostname, port, timeout=timeout)
        self._used_at = 0.0

    def of_project(self, project: str) -> Self:
        """A view of this HTTP connection for the slices of one project."""
        other = copy.copy(self)
        other.project = project
        return other

    def close(self) -> None:
        self.http.close()

    def get(self, path: str) -> dict[str, Any]:
        return self.call("GET", path)

    def call(
        self, method: str, path: str, body: object = None, *, timeout: float | None = None, key: str = ""
    ) -> dict[str, Any]:
        """Send one request. A GET on a kept connection that proves to be closed is sent again on a new one.

        key: the idempotency key, with which the request is sent again if the connection breaks.
        """
        return self.answer(*self.exchange(method, path, body, timeout=timeout, key=key))

    def exchange(
        self, method: str, path: str, body: object = None, *, timeout: float | None = None, key: str = ""
    ) -> tuple[int, bytes]:
        """The status and the body of the answer to one request, as `call` sends it."""
        return self._exchange(method, self._prefix + path, body, timeout=timeout or self.timeout, key=key)

    def text(self, path: str) -> str:
        """The text of a page of the service that is not part of the API, such as `/metrics`."""
        status, payload = self._exchange("GET", self._path + path, None, timeout=self.timeout, key="")
        if status != 200:
            self.answer(status, payload)
        return payload.decode(errors="replace")

    def _exchange(self, method: str, target: str, body: object, *, timeout: float, key: str) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = self._headers if data is None else {**self._headers, "Content-Type": "application/json"}
        if key:
            headers = {**headers, "Idempotency-Key": key}
        again = bool(key)
        while True:
            reused = self._open(timeout)
            try:
                self.http.request(method, target, data, headers)
                response = self.http.getresponse()
                status, payload = response.status, response.read()
            except TimeoutError as error:
                self.close()
                raise self._silent(timeout) from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not (again or (reused and method == "GET")):
                    raise self._lost(error) from error
                again = False
            except BaseException:
                self.close()  # the rest of a partly read answer must not be taken for the next answer
                raise
            else:
                self._used_at = time.monotonic()
                return status, payload

    def upload(
        self, path: str, file: IO[bytes], size: int, on_progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        """Send `size` bytes of `file` by POST. on_progress: called with (bytes sent, size)."""
        self._open(self.timeout)
        connection = self.http
        try:
            connection.putrequest("POST", self._prefix + path)
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            for key, value in {**self._headers, **headers}.items():
                connection.putheader(key, value)
            connection.endheaders()
            complete = self._stream(file, size, on_progress)
            connection.sock.settimeout(_UPLOAD_TIMEOUT)
            response = connection.getresponse()
            status, payload = response.status, response.read()
        except TimeoutError as error:
            raise self._silent(self.timeout) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            if sys.exc_info()[0] is not None:
                self.close()
        if not complete:
            self.close()
        return self.answer(status, payload)

    def _stream(self, file: IO[bytes], size: int, on_progress: Callable[[int, int], None] | None) -> bool:
        """Send the bytes; False if the service answered or closed the connection before all were sent."""
        sent = 0
        while sent < size:
            chunk = file.read(min(_CHUNK, size - sent))
            if not chunk:
                raise invalid("FILE", f"ended after {sent} of {size} bytes", "it changed while it was being read")
            # Over TLS, readable data need not be an answer: the server sends session tickets unasked.
            if not hasattr(self.http.sock, "pending") and readable(self.http):
                return False
            try:
                self.http.send(chunk)
            except (BrokenPipeError, ConnectionResetError):
                return False
            sent += len(chunk)
            if on_progress is not None:
                on_progress(sent, size)
        return True

    def channel(self, path: str, token: str) -> Channel:
        """Open the WebSocket at `path` of the service on a separate connection. token: the secret of its ticket."""
        from slicemgr.ipc import websocket

        connection = type(self.http)(self.http.host, self.http.port, timeout=self.timeout)
        host, target = urlsplit(self.url).netloc.rpartition("@")[2], self._prefix.removesuffix(API) + path
        try:
            connection.connect()
            return websocket.connect(connection.sock, host, target, token)
        except websocket.Rejected as error:
            connection.close()
            if error.status:
                self.answer(error.status, error.body)  # raises the error of the service
            raise self._lost(error) from error
        except OSError as error:
            connection.close()
            raise self._lost(error) from error

    def _open(self, timeout: float) -> bool:
        """Open the connection; True if it was already open and the service has not closed it."""
        connection = self.http
        connection.timeout = timeout
        idle = time.monotonic() - self._used_at
        if connection.sock is not None and idle < _LONGEST_IDLE and not readable(connection):
            connection.sock.settimeout(timeout)
            return True
        connection.close()
        try:
            connection.connect()
        except OSError as error:
            why = error.strerror or str(error) or "no answer"
            raise Refused(Code.UNAVAILABLE, f"cannot reach {self.url}: {why}", hint=START_HINT) from error
        return False

    def _silent(self, timeout: float) -> Failed:
        return Failed(f"no answer from {self.url} within {timeout:g} s", code=Code.TIMEOUT)

    def _lost(self, error: Exception) -> Failed:
        message = f"the connection to {self.url} was lost: {error or type(error).__name__}"
        return Failed(
            message, hint="the request may have taken effect; check before you repeat it", code=Code.UNAVAILABLE
        )

    def answer(self, status: int, payload: bytes) -> dict[str, Any]:
        """The JSON object of an answer. Raises the error that the service sent."""
        try:
            answer = json.loads(payload)
        except ValueError:
            answer = None
        if status >= 300:
            raise problem(self.url, self.source, status, answer if isinstance(answer, dict) else {})
        if not isinstance(answer, dict):
            raise Failed(f"{self.url} did not answer like a slicemgr service", hint="check SLICEMGR_URL")
        return answer


def readable(connection: http.client.HTTPConnection) -> bool:
    """Whether there is data to read. Between two requests, that is the end of the connection or an early answer."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
