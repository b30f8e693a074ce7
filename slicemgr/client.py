"""The REST client that slicectl uses and a script or notebook can import.

    from slicemgr.client import Client
    with Client.local() as client, client.create("exp", image="debian-12") as exp:
        exp.wait_ssh()
        print(exp.ssh("uname -a"))

Answers are the API's own JSON: times are RFC 3339 text in UTC, sizes bytes. Every method raises `Refused` (nothing
happened) or `Failed` (it may have) with the service's code, hint and field, and one note for each further field;
code UNAVAILABLE means that the service cannot be reached. A client is for one thread at a time.
"""

from __future__ import annotations

import http.client
import json
import math
import select
import sys
import time
import uuid
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from slicemgr.client_audits import Audits
from slicemgr.client_json import operation_in as _operation
from slicemgr.client_json import pages, problem, query, segment
from slicemgr.client_measures import Measures
from slicemgr.client_people import People
from slicemgr.client_published import Published
from slicemgr.client_samples import Samples
from slicemgr.client_settings import START_HINT, Settings, chosen_project, find_settings, settings_files
from slicemgr.client_slice import Experiments
from slicemgr.client_snapshots import Snapshots
from slicemgr.errors import Code, Failed, Refused, SlicemgrError, invalid

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from slicemgr import wire
    from slicemgr.ipc.websocket import Channel

__all__ = ["Client", "Settings", "find_settings", "settings_files"]

API = "/api/v1"
_CHUNK = 1 << 20  # bytes of an upload between two looks at the progress
_LONGEST_POLL = 30  # seconds; the service allows 60, what stands between may not
_LONGEST_IDLE = 30.0  # seconds; a connection idle for longer may be closed by the service just as it is used again
_UPLOAD_TIMEOUT = 600.0  # seconds for the answer after the last byte: the service still writes it to disk


class Client(People, Snapshots, Samples, Published, Measures, Experiments, Audits):
    """A connection to one service, kept open between calls.

    url: such as http://127.0.0.1:8480. token: of the caller. timeout: seconds for connecting and for each answer.
    source: where the token came from, for the error that says it is wrong. project: whose slices are meant, if not
    those of all your projects.
    """

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
        self._prefix = parts.path.rstrip("/") + API
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "slicectl"}
        self.port = port or kind.default_port
        self._connection = kind(parts.hostname, port, timeout=timeout)
        self._used_at = 0.0

    @classmethod
    def local(cls, timeout: float = 30.0) -> Client:
        """A client for the service that `find_settings` finds."""
        found = find_settings()
        made = cls(found.url, found.token, timeout, source=found.source, project=chosen_project())
        made.identity = found.identity
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    # slices

    def create_slice(self, request: wire.SliceRequest) -> wire.Created:
        """`{"operation", "slice"}`; `{"plan"}` when the request says dry_run; `{"request"}` beyond the quota.

        Asked once more, and still made once, if the connection breaks before the answer.
        """
        body = {"project": self.project, **request} if self.project else request
        return cast("wire.Created", self._call("POST", "/slices", body, key=uuid.uuid4().hex))

    def slices(self, **filters: str | None) -> list[wire.Slice]:
        """filters: state, type, image, project, owner, prefix (of the name)."""
        return pages(self._get, "/slices", "slices", {"project": self.project, **filters})

    def slice(self, name: str) -> wire.Slice:
        return cast("wire.Slice", self._call("GET", self._slice(name)))

    def slice_action(self, name: str, action: str) -> wire.Operation:
        """The operation that does start, stop, restart, pause or resume."""
        return _operation(self._call("POST", self._slice(name, f"/{action}"), {}))

    def renew_slice(self, name: str, lease: str) -> wire.Renewed:
        """The slice, with the end of the lease as granted; `trimmed`: why it is not what was asked for.

        lease: such as `7d`, from now on.
        """
        return cast("wire.Renewed", self._call("POST", self._slice(name, "/renew"), {"lease": lease}))

    def resize_slice(self, name: str, disk: str) -> wire.Operation:
        """disk: the new limit of each sliver, such as `8G`."""
        return _operation(self._call("POST", self._slice(name, "/resize"), {"disk": disk}))

    def delete_slice(self, name: str) -> wire.Operation:
        return _operation(self._call("DELETE", self._slice(name)))

    def _slice(self, name: str, what: str = "") -> str:
        return f"/slices/{segment('NAME', name)}{what}" + query({"project": self.project})

    def console(self, name: str, sliver: int = 0, *, screen: bool = False) -> Channel:
        """The console of a running sliver as bytes both ways; whoever was attached is cut off.

        screen: a virtual machine's, as RFB (VNC).
        """
        from slicemgr.ipc import websocket

        asked = self._call("POST", self._slice(name, "/console"), {"sliver": sliver, "screen": screen})
        ticket = cast("wire.Console", asked)
        connection = type(self._connection)(self._connection.host, self._connection.port, timeout=self.timeout)
        host, target = urlsplit(self.url).netloc.rpartition("@")[2], self._prefix.removesuffix(API) + ticket["path"]
        try:
            connection.connect()
            return websocket.connect(connection.sock, host, target, ticket["token"])
        except websocket.Rejected as error:
            connection.close()
            if error.status:
                self._answer(error.status, error.body)  # raises what it tells
            raise self._lost(error) from error
        except OSError as error:
            connection.close()
            raise self._lost(error) from error

    # images

    def images(self, **filters: str | None) -> list[wire.Image]:
        """filters: state, project, prefix (of the name)."""
        return pages(self._get, "/images", "images", filters)

    def image(self, name: str) -> wire.Image:
        """name: the image's name, its sha256 or the unique beginning of that."""
        return cast("wire.Image", self._call("GET", f"/images/{segment('NAME', name)}"))

    def publish_image(self, name: str) -> wire.Image:
        """Make a project's image one for all."""
        return cast("wire.Image", self._call("POST", f"/images/{segment('NAME', name)}/publish", {}))

    def delete_image(self, name: str) -> wire.Operation:
        return _operation(self._call("DELETE", f"/images/{segment('NAME', name)}"))

    def import_image(
        self,
        file: IO[bytes],
        size: int,
        *,
        name: str,
        format: str,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> wire.Imported:
        """Send `size` bytes of `file`; `{"image"}`, with an `"operation"` unless the image is already known.

        on_progress: called with (bytes sent, size). Refused if the file is shorter than `size`.
        """
        path = "/images" + query({"name": name, "format": format, "project": self.project})
        return cast("wire.Imported", self._upload(path, file, size, on_progress))

    def _upload(
        self, path: str, file: IO[bytes], size: int, on_progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        self._open(self.timeout)
        connection = self._connection
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
        return self._answer(status, payload)

    def _stream(self, file: IO[bytes], size: int, on_progress: Callable[[int, int], None] | None) -> bool:
        """False if the service answered or hung up before everything was sent."""
        sent = 0
        while sent < size:
            chunk = file.read(min(_CHUNK, size - sent))
            if not chunk:
                raise invalid("FILE", f"ended after {sent} of {size} bytes", "it changed while it was being read")
            # Over TLS there is something to read without an answer: tickets for later sessions come of themselves.
            if not hasattr(self._connection.sock, "pending") and _readable(self._connection):
                return False
            try:
                self._connection.send(chunk)
            except (BrokenPipeError, ConnectionResetError):
                return False
            sent += len(chunk)
            if on_progress is not None:
                on_progress(sent, size)
        return True

    # nodes

    def nodes(self) -> list[wire.Node]:
        return pages(self._get, "/nodes", "nodes", {})

    def node(self, name: str) -> wire.Node:
        return cast("wire.Node", self._call("GET", f"/nodes/{segment('NODE', name)}"))

    def doctor(self, node: str) -> wire.Operation:
        """The operation whose result has `checks`."""
        return _operation(self._call("POST", f"/nodes/{segment('NODE', node)}/doctor", {}))

    def gc(self, node: str, *, apply: bool = False) -> wire.Operation:
        """The operation whose result has `items`: what carries our mark and nobody wants; apply: remove it."""
        return _operation(self._call("POST", f"/nodes/{segment('NODE', node)}/gc", {"apply": apply}))

    def baseline(self, node: str, request: wire.BaselineRequest) -> wire.Operation:
        """The operation whose result has the raw times of the same work."""
        body = dict(request)
        return _operation(self._call("POST", f"/nodes/{segment('NODE', node)}/baseline", body))

    # operations and events

    def operations(self, *, limit: int | None = 100, **filters: str | None) -> list[wire.Operation]:
        """The newest, `limit` at most; None: all. filters: state, kind, slice, project, user, since, until."""
        return pages(self._get, "/operations", "operations", filters, limit)

    def operation(self, operation_id: str | int, *, wait: int | None = None, seen: int | None = None) -> wire.Operation:
        """wait: seconds to hold the answer back until the operation ended or its version is beyond `seen`."""
        path = f"/operations/{segment('ID', str(operation_id))}" + query({"wait": wait, "seen": seen})
        return cast("wire.Operation", self._call("GET", path, timeout=self.timeout + (wait or 0)))

    def events(self, *, limit: int | None = 100, **filters: str | None) -> list[wire.Event]:
        """The newest, `limit` at most; None: all. filters: slice, project, user, action, since, until."""
        return pages(self._get, "/events", "events", {"project": self.project, **filters}, limit)

    def wait(
        self,
        operation_id: str | int,
        timeout: float | None = None,
        on_progress: Callable[[wire.Operation], None] | None = None,
        *,
        patience: float = 15.0,
    ) -> wire.Operation:
        """The operation, once it has ended (`done` or `failed`: look at its state).

        timeout: seconds, None for ever; then Failed with code TIMEOUT, and the operation goes on. on_progress: called
        with the operation each time it has changed. patience: seconds for which a service that restarts is missed.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        lost_since: float | None = None
        seen: int | None = None if on_progress is None else 0  # None: the answer is held back until the end
        while True:
            left = end - time.monotonic()
            began = time.monotonic()
            try:
                poll = max(0, math.ceil(min(left, _LONGEST_POLL)))
                operation = self.operation(operation_id, wait=poll, seen=seen)
            except SlicemgrError as error:
                lost_since = lost_since or began
                if error.code is not Code.UNAVAILABLE or time.monotonic() - lost_since > min(patience, left):
                    raise
                time.sleep(min(0.5, patience))
                continue
            lost_since = None
            if operation["version"] != seen and on_progress is not None:
                on_progress(operation)
            if operation["state"] in ("done", "failed"):
                return operation
            if time.monotonic() >= end:
                raise Failed(
                    f"operation {operation_id} has not ended within {timeout:g} s",
                    hint="the operation continues",
                    code=Code.TIMEOUT,
                )
            if operation["version"] == seen and time.monotonic() - began < min(0.1, poll):
                time.sleep(0.2)  # a service that does not hold its answer back is not asked in a busy loop
            seen = operation["version"]

    # transport

    def _get(self, path: str) -> dict[str, Any]:
        return self._call("GET", path)

    def _call(
        self, method: str, path: str, body: object = None, *, timeout: float | None = None, key: str = ""
    ) -> dict[str, Any]:
        """One request. A GET that finds the kept connection closed is sent once more on a new one.

        key: makes it one that may be sent twice, as it is when the connection breaks.
        """
        return self._answer(*self._exchange(method, path, body, timeout=timeout, key=key))

    def _exchange(
        self, method: str, path: str, body: object = None, *, timeout: float | None = None, key: str = ""
    ) -> tuple[int, bytes]:
        timeout = timeout or self.timeout
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = self._headers if data is None else {**self._headers, "Content-Type": "application/json"}
        if key:
            headers = {**headers, "Idempotency-Key": key}
        again = bool(key)
        while True:
            reused = self._open(timeout)
            try:
                self._connection.request(method, self._prefix + path, data, headers)
                response = self._connection.getresponse()
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
                self.close()  # an answer half read must not be taken for the next one's
                raise
            else:
                self._used_at = time.monotonic()
                return status, payload

    def _open(self, timeout: float) -> bool:
        """True if the connection was open already and the service has not hung up on it."""
        connection = self._connection
        connection.timeout = timeout
        idle = time.monotonic() - self._used_at
        if connection.sock is not None and idle < _LONGEST_IDLE and not _readable(connection):
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

    def _answer(self, status: int, payload: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(payload)
        except ValueError:
            answer = None
        if status >= 300:
            raise problem(self.url, self.source, status, answer if isinstance(answer, dict) else {})
        if not isinstance(answer, dict):
            raise Failed(f"{self.url} did not answer like a slicemgr service", hint="check SLICEMGR_URL")
        return answer


def _readable(connection: http.client.HTTPConnection) -> bool:
    """Between two requests nothing is to be read: if something is, it is the end or an early answer."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
