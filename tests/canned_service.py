"""A service with predefined answers, for failures that a working service does not produce."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


class Request(NamedTuple):
    """A request of the client. body: None if there was none."""

    method: str
    path: str
    query: dict[str, str]
    token: str
    body: Any
    data: bytes
    connection: int
    key: str = ""


class Answer(NamedTuple):
    """status 0: close the connection without an answer. close: close it unannounced after the answer."""

    status: int
    body: Any = None
    close: bool = False
    unread: bool = False  # answer before reading the body


Reply = Answer | Callable[[Request], Answer]


def problem(status: int, code: str, detail: str = "no", **more: Any) -> Answer:
    return Answer(status, {"type": "about:blank", "status": status, "code": code, "detail": detail, **more})


class Canned:
    """A context manager. Replies by `METHOD /path` below /api/v1, in order; the last one is repeated."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._replies: dict[str, list[Reply]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def on(self, what: str, *replies: Reply | Json) -> None:
        """Set the replies to requests. replies: an object is the body of an answer with status 200."""
        self._replies[what] = [Answer(200, one) if isinstance(one, dict) else one for one in replies]

    def asked(self, what: str) -> list[Request]:
        return [one for one in self.requests if f"{one.method} {one.path}" == what]

    def _reply(self, request: Request) -> Answer:
        key = f"{request.method} {request.path}"
        replies = self._replies.get(key)
        if not replies:
            return problem(404, "not_found", f"nothing laid out for {key}")
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return reply if isinstance(reply, Answer) else reply(request)

    def _early(self, method: str, path: str) -> bool:
        replies = self._replies.get(f"{method} {path}", ())
        return any(isinstance(one, Answer) and one.unread for one in replies[:1])

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        canned = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                path = parts.path.removeprefix("/api/v1")
                early = canned._early(self.command, path)
                data = b"" if early else self.rfile.read(int(self.headers.get("Content-Length") or 0))
                is_json = self.headers.get("Content-Type") == "application/json"
                request = Request(
                    self.command,
                    path,
                    {key: values[0] for key, values in parse_qs(parts.query).items()},
                    self.headers.get("Authorization", "").removeprefix("Bearer "),
                    json.loads(data) if is_json else None,
                    data,
                    self.client_address[1],
                    self.headers.get("Idempotency-Key", ""),
                )
                canned.requests.append(request)
                answer = canned._reply(request)
                self.close_connection = answer.close or early or answer.status == 0
                if answer.status == 0:
                    return
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_DELETE = _answer

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        return Handler


def operation(state: str = "running", version: int = 1, **more: Any) -> Json:
    queued: Json = {
        "id": "op1",
        "kind": "create",
        "state": state,
        "slice": "exp",
        "image": None,
        "user": "admin",
        "created_at": "2026-01-02T03:04:05Z",
        "started_at": None,
        "finished_at": None,
        "error": None,
        "hint": None,
        "version": version,
        "progress": {"done": 0, "total": 1},
        "steps": [],
        "result": None,
    }
    return {**queued, **more}


UNSET = ("io_weight", "io_rate", "io_ops", "net_in", "net_out")
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDZL+rD/vRwJyc8ynlZ34fozFD0H1+ae81XD1/BIyS4U"


def sliver(index: int = 0, **more: Any) -> Json:
    limits = {"cpu": 0.5, "cpu_shares": 1024, "memory": 512 << 20, "memory_soft": None}
    made = {
        "index": index,
        "id": f"abcdefgh-{index}",
        "node": "node1",
        "state": "running",
        "address": "10.77.0.2",
        "ssh": {"host": "127.0.0.1", "port": 10000, "fingerprint": "SHA256:x", "host_key": HOST_KEY},
        "ports": {"first": 10000, "last": 10019},
        "limits": {**limits, "disk": 4 << 30, "pids": 512, **dict.fromkeys(UNSET)},
        "usage": {"memory": 5 << 20, "disk": None, "guest_memory": None},
        "acceleration": None,
        "booted": None,
        "error": None,
    }
    return {**made, **more}


def slice(name: str = "exp", **more: Any) -> Json:
    made = {
        "name": name,
        "type": "lxc",
        "project": "default",
        "owner": "admin",
        "state": "running",
        "created_at": "2026-01-02T03:04:05Z",
        "expires_at": "2026-01-09T03:04:05Z",
        "image": "debian-12",
        "image_sha256": "ab" * 32,
        "slivers": [sliver()],
    }
    return {**made, **more}
