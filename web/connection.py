"""A connection whose request is being received: its parts so far, its framing, and its minimum rate.

The worker's event loop reads whole requests, header and body, before a thread gets them. A larger body is read by the
thread, which gives up if the sender is too slow.
"""

from __future__ import annotations

import json
import time
from enum import Enum
from typing import Any

import h11
from gunicorn.http import get_parser
from gunicorn.http.unreader import SocketUnreader
from gunicorn.workers.gthread import TConn

from slicemgr.config import WebConfig
from slicemgr.errors import Busy, Code, Refused

SMALL_BODY = 4 << 20  # bytes; a larger body is an upload, which has its own limits
LARGEST_HEADER = 64 << 10  # bytes
_TITLES = {400: "Bad request", 408: "Request timeout", 431: "Request header too large"}
_TITLES |= {429: "Too many requests", 503: "Service unavailable"}


class Phase(Enum):
    """What the event loop waits for. When resources are exhausted, the first of these are closed first."""

    END = "the client reads the last answer and closes"
    IDLE = "the next request"
    HEADER = "the rest of a header"
    BODY = "the rest of a body"


class TooSlow(Refused):
    """The body arrived too slowly."""

    def __init__(self, least: int, seconds: float) -> None:
        hint = f"send at least {least} bytes in {seconds:g} s (web.body_least, web.body_time)"
        super().__init__(Code.TOO_SLOW, "the body of the request arrived too slowly", hint=hint)


class Pace:
    """At least `least` bytes in every `seconds` of waiting for the sender."""

    def __init__(self, config: WebConfig) -> None:
        self.least = config.body_least.bytes
        self.seconds = config.body_time.total_seconds()


class _Source(SocketUnreader):  # type: ignore[misc]
    """The parser's source in a thread: the data that the event loop has read, then the socket if the body is large."""

    def __init__(self, sock: Any, pace: Pace) -> None:
        super().__init__(sock)
        self.large = False
        self._pace = pace
        self._waited, self._got = 0.0, 0

    def chunk(self, size_hint: int | None = None) -> bytes:
        """b"", the end, if the whole request was received: a thread waits for nothing else. Raises TooSlow."""
        if not self.large:
            return b""
        left, began = self._pace.seconds - self._waited, time.monotonic()
        if left <= 0:
            raise TooSlow(self._pace.least, self._pace.seconds)
        before = self.sock.gettimeout()
        self.sock.settimeout(left)
        try:
            data: bytes = super().chunk(size_hint)
        except TimeoutError as error:
            raise TooSlow(self._pace.least, self._pace.seconds) from error
        finally:
            self.sock.settimeout(before)
        self._waited += time.monotonic() - began
        self._got += len(data)
        if self._got >= self._pace.least:
            self._waited, self._got = 0.0, 0
        return data


class Connection(TConn):  # type: ignore[misc]
    """phase, since: what the event loop waits for, and since when; for a body, since the rate was last sufficient."""

    def __init__(self, cfg: Any, sock: Any, client: Any, server: Any, pace: Pace) -> None:
        super().__init__(cfg, sock, client, server)
        self.phase, self.since = Phase.HEADER, 0.0
        self.place: str | None = None  # the address whose limit counts this connection
        self.runs_for = ""  # the address whose limit counts the thread of its request
        self.last = False  # this request is the last
        self.kept = 0  # bytes of its request in memory
        self.source = _Source(sock, pace)
        self.parser = get_parser(cfg, sock, client)
        self.parser.unreader = self.source
        self.initialized = self.data_ready = True
        self.begin()

    def begin(self) -> None:
        """Prepare for the next request."""
        self.raw = bytearray()
        self.header: h11.Request | None = None
        self.got = 0  # bytes of the body since `since`
        self.source.large = False
        self._framing = h11.Connection(h11.SERVER, max_incomplete_event_size=LARGEST_HEADER)

    def feed(self, data: bytes) -> bool:
        """Parse received data; whether a thread may have the request now. Raises h11.RemoteProtocolError."""
        self.raw += data
        self.got += len(data)
        self._framing.receive_data(data)
        while True:
            event = self._framing.next_event()
            match event:
                case h11.Request():
                    self._begin_body(event)
                    if self.source.large:
                        return True
                case h11.Data():
                    if len(self.raw) > SMALL_BODY + LARGEST_HEADER:  # chunks, whose total is not announced
                        self.source.large = True
                        return True
                case h11.EndOfMessage():
                    return True
                case _:
                    return False

    def _begin_body(self, header: h11.Request) -> None:
        self.header, self.got = header, 0
        length = next((int(value) for name, value in header.headers if name == b"content-length"), 0)
        self.source.large = length > SMALL_BODY
        if self.source.large and b"\r\n\r\n" not in self.raw:
            raise h11.RemoteProtocolError("lines end with CR and LF")

    @property
    def wants_leave(self) -> bool:
        """Whether the client sends the body only after `100 Continue`."""
        return self._framing.they_are_waiting_for_100_continue

    def hand_over(self) -> None:
        """Give the received data to the parser."""
        self.source.unread(bytes(self.raw))
        self.raw = bytearray()

    def forwarded(self, hops: int) -> str | None:
        """The client address according to the last trusted proxy, by `web.proxies`; None if it reports none."""
        headers = self.header.headers if self.header is not None else ()
        values = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1").split(",")
        return (values[-hops].strip() or None) if len(values) >= hops else None


def problem(status: int, code: str, detail: str, hint: str = "", retry_after: int = 0) -> bytes:
    """A complete response that closes the connection, in the format of `problems`."""
    title = _TITLES.get(status, "Bad request")
    body = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, "hint": hint}
    content = json.dumps(body).encode() + b"\n"
    again = f"Retry-After: {retry_after}\r\n" if retry_after else ""
    head = f"HTTP/1.1 {status} {title}\r\nContent-Type: application/problem+json\r\n{again}"
    return f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


def refusal(error: Refused) -> bytes:
    """The response for an error."""
    retry_after = error.retry_after if isinstance(error, Busy) else 0
    return problem(error.code.status, error.code.wire, error.message, error.hint, retry_after)
