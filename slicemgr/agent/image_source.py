"""Where a node of a testbed gets disk images: from the service, over HTTPS, with tokens that the node signs.

`Source.fetch` is the only function that knows how an image arrives. A partial file is kept, so a later attempt
continues where the last one ended.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import logging
import os
import re
import shutil
import ssl
import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from slicemgr.certificates import image_tokens
from slicemgr.certificates.member import AUTHORITY, KEY, Member
from slicemgr.drivers.importer.unpack import Progress
from slicemgr.errors import Code, Failed, Refused

log = logging.getLogger(__name__)

STEP = "fetch"
_TIMEOUT = 60.0  # seconds without data
_CHUNK = 1 << 18
RESERVE = 256 << 20  # bytes of the file system that stay free
_ATTEMPTS = 5  # consecutive connections without any data
_PAUSE = 2.0  # seconds before the next connection; it doubles with each that brings no data
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CLOCK = timedelta(minutes=1)  # by which the clock of the service may differ before its time is used
_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image as its row describes it. size: of its file, in bytes."""

    sha256: str
    format: str
    size: int


def partial_file(target: Path) -> Path:
    """The beginning of a file that is being fetched."""
    return target.with_suffix(".fetch")


class Source:
    """The service as a node sees it. Safe to use from several threads. stop: ends a fetch in progress."""

    def __init__(self, member: Member, stop: threading.Event, pause: float = _PAUSE) -> None:
        self._member, self._stop, self._pause = member, stop, pause
        self._ahead = timedelta()  # of the service's clock before ours, if it matters

    def fetch(self, wanted: Wanted, target: Path, progress: Progress) -> None:
        """Write the file to `target`, complete and with the right sha256. Its partial file is `target` with `.fetch`.

        Refused(QUOTA): the file system has no room. Failed: it cannot be fetched now, or is another file.
        """
        partial = partial_file(target)
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            if os.fstat(descriptor).st_size > wanted.size:
                file.truncate(0)
            _check_room(partial, wanted.size - os.fstat(descriptor).st_size)
            self._complete(wanted, file, progress)
            file.flush()
            os.fsync(descriptor)
            file.seek(0)
            if hashlib.file_digest(file, "sha256").hexdigest() != wanted.sha256:
                partial.unlink()
                raise Failed("the service sent another file: its sha256 differs", hint="it is fetched again")
        partial.rename(target)

    def _complete(self, wanted: Wanted, file: BinaryIO, progress: Progress) -> None:
        without = 0
        while (have := file.seek(0, os.SEEK_END)) < wanted.size:
            try:
                self._receive(wanted, file, have, progress)
                failure = Failed("the service closed the connection", code=Code.UNAVAILABLE)
            except Failed as error:
                if error.code is not Code.UNAVAILABLE:
                    raise
                failure = error
            without = 0 if file.tell() > have else without + 1
            if without >= _ATTEMPTS or self._stop.is_set():
                raise failure
            if file.tell() < wanted.size:
                log.warning("fetching image %s continues at byte %d: %s", wanted.sha256[:12], file.tell(), failure)
                self._stop.wait(self._pause * 2**without)

    def _receive(self, wanted: Wanted, file: BinaryIO, have: int, progress: Progress) -> None:
        """Append what one connection brings. Failed(UNAVAILABLE): another one may bring more."""
        with ExitStack() as stack:
            connection = stack.enter_context(closing(self._connect()))
            try:
                response = stack.enter_context(self._answer(connection, wanted, have))
                left = wanted.size - have
                while left and (chunk := response.read1(min(_CHUNK, left))):
                    file.write(chunk)
                    left -= len(chunk)
                    progress(STEP, 100 * (wanted.size - left) // wanted.size)
                    if self._stop.is_set():
                        raise Failed("the agent is stopping", code=Code.UNAVAILABLE)
            except ssl.SSLCertVerificationError as error:
                hint = "neither the system's authorities nor the testbed's issued it for this name"
                raise Failed(
                    f"the certificate of the service is not valid: {error.verify_message}", hint=hint
                ) from error
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    raise _no_room(wanted.size - have) from error
                why = str(error) or type(error).__name__
                raise Failed(f"the service does not answer: {why[:200]}", code=Code.UNAVAILABLE) from error

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._member.url)
        host = parts.hostname or ""
        if parts.scheme == "http" and host in _LOOPBACK:
            return http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT)
        if parts.scheme != "https":
            raise Failed(f"images are not fetched over {parts.scheme}", hint="let this host join over https")
        context = ssl.create_default_context()
        context.load_verify_locations(cadata=(self._member.folder / AUTHORITY).read_text())
        return http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT, context=context)

    def _answer(self, connection: http.client.HTTPConnection, wanted: Wanted, have: int) -> http.client.HTTPResponse:
        """The response with the rest of the file. Failed for any other."""
        response = self._ask(connection, wanted, have)
        if response.status in (401, 403) and self._follow_clock(response):
            response.close()
            connection.close()
            response = self._ask(connection, wanted, have)
        with ExitStack() as undo:
            undo.enter_context(response)
            if response.status in (429, 502, 503, 504):
                raise Failed(f"the service is busy: status {response.status}", code=Code.UNAVAILABLE)
            if response.status not in (200, 206):
                hint = "is the certificate of this node valid, and does a sliver of it need the image?"
                raise Failed(f"the service refuses the image: status {response.status}", hint=hint)
            _check_length(response, wanted.size, have)
            undo.pop_all()
        return response

    def _ask(self, connection: http.client.HTTPConnection, wanted: Wanted, have: int) -> http.client.HTTPResponse:
        now = datetime.now(UTC) + self._ahead
        token = image_tokens.sign(_key(self._member.folder), self._member.identity, wanted.sha256, now)
        headers = {"Authorization": f"{image_tokens.SCHEME} {token}", "User-Agent": "slicemgr"}
        if have:
            headers["Range"] = f"bytes={have}-"
        prefix = urlsplit(self._member.url).path.rstrip("/")
        connection.request("GET", f"{prefix}/api/v1/node-images/{wanted.sha256}", headers=headers)
        return connection.getresponse()

    def _follow_clock(self, response: http.client.HTTPResponse) -> bool:
        """Use the time of the service from now on; False if it is used already, so that it is not the reason."""
        try:
            theirs = parsedate_to_datetime(response.headers.get("Date", ""))
            ahead = theirs - datetime.now(UTC)
        except (ValueError, TypeError):
            return False
        if abs(ahead - self._ahead) < _CLOCK:
            return False
        self._ahead = ahead
        return True


def _key(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # as `slicemgr join` made it
    return key


def _check_length(response: http.client.HTTPResponse, size: int, have: int) -> None:
    """Failed unless the response is announced as exactly the rest of the file."""
    if have:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        right = (
            response.status == 206 and found is not None and tuple(map(int, found.groups())) == (have, size - 1, size)
        )
    else:
        right = response.status == 200
    if not right or response.headers.get("Content-Length") != str(size - have):
        raise Failed("the service announces a file of another size", hint="`slicectl image show` has its size")


def _check_room(path: Path, size: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if size + RESERVE > free:
        raise _no_room(size)


def _no_room(size: int) -> Refused:
    hint = "delete images or slices of this node, or enlarge its disk"
    return Refused(Code.QUOTA, f"the disk of the node has no room for {size} bytes of an image", hint=hint)
