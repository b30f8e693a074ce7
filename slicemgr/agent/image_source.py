"""Where a node of a testbed gets disk images: from the service, over HTTPS, with tokens that the node signs, and from
other nodes.

`Source.fetch` is the only function that knows how an image arrives. A partial file is kept, so a later attempt
continues where the last one ended.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from slicemgr.agent.block_fetch import BlockFetch
from slicemgr.agent.image_exchange import ImageExchange
from slicemgr.certificates import image_tokens
from slicemgr.certificates.member import AUTHORITY, KEY, Member
from slicemgr.drivers.importer.unpack import Progress
from slicemgr.errors import Code, Failed, Refused
from slicemgr.policy import image_blocks
from slicemgr.policy.image_blocks import BASE

log = logging.getLogger(__name__)

STEP = "fetch"
_TIMEOUT = 60.0  # seconds without data
_CHUNK = 1 << 18
RESERVE = 256 << 20  # bytes of the file system that stay free
_ATTEMPTS = 5  # consecutive connections without any data
_PAUSE = 2.0  # seconds before the next connection; it doubles with each that brings no data
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CLOCK = timedelta(minutes=1)  # by which the clock of the service may differ before its time is used
_HASHING = 600.0  # seconds in which the service reads a whole image
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file of an image as its row describes it. size: in bytes.

    of_base: the sha256 of the image, if the file is the stream of its base.
    """

    sha256: str
    format: str
    size: int
    of_base: str = ""

    @property
    def image(self) -> str:
        return self.of_base or self.sha256

    @property
    def path(self) -> str:
        """Of the file in the REST API."""
        return f"/api/v1/node-images/{self.image}{'/base' if self.of_base else ''}"


def partial_file(target: Path) -> Path:
    """The beginning of a file that is being fetched."""
    return target.with_suffix(_suffix(target, "fetch"))


def block_file(target: Path) -> Path:
    """A file that is being fetched in blocks, with holes where blocks are missing."""
    return target.with_suffix(_suffix(target, "blocks"))


def _suffix(target: Path, word: str) -> str:
    """Another one for the stream of a base, whose disk image has the same name."""
    return f".{BASE}-{word}" if target.suffix == f".{BASE}" else f".{word}"


class Source:
    """The service as a node sees it. Safe to use from several threads. stop: ends a fetch in progress.

    exchange: with other nodes; None: everything comes from the service.
    """

    def __init__(
        self,
        member: Member,
        stop: threading.Event,
        pause: float = _PAUSE,
        exchange: ImageExchange | None = None,
    ) -> None:
        self._member, self._stop, self._pause, self._exchange = member, stop, pause, exchange
        self._ahead = timedelta()  # of the service's clock before ours, if it matters

    def fetch(self, wanted: Wanted, target: Path, progress: Progress, *, alone: bool = False) -> None:
        """Write the file to `target`, complete and with the right sha256.

        alone: no other node can have it. Refused(QUOTA): the file system has no room. Failed: it cannot be fetched
        now, or is another file.
        """
        hashes = None if self._exchange is None or alone else self._hashes(wanted)
        if self._exchange is None or hashes is None:
            self._fetch_whole(wanted, target, progress)
            return
        incomplete = block_file(target)
        with suppress(FileNotFoundError):
            partial_file(target).replace(incomplete)
        os.close(os.open(incomplete, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        _check_room(incomplete, wanted.size - incomplete.stat().st_blocks * 512)
        try:
            self._fetch_blocks(wanted, hashes, incomplete, progress, self._exchange)
            with incomplete.open("rb") as file:
                _compare(wanted, file, incomplete)
            incomplete.rename(target)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise _no_room(wanted.size) from error
            raise
        finally:
            self._exchange.ended(wanted.sha256)

    def send(self, wanted: Wanted, file: Path, version: int) -> None:
        """Send the stream of a base to the service. version: of the extraction.

        Refused(CONFLICT): the service has one. Failed: the service does not take it.
        """
        attempts = 0
        while True:
            try:
                self._send(wanted, file, version)
                return
            except Failed as error:
                attempts += 1
                self.pause_after(error, attempts, wanted)

    def _send(self, wanted: Wanted, file: Path, version: int) -> None:
        headers = {**self._headers(wanted), "Content-Length": str(wanted.size)}
        headers["Content-Type"] = "application/octet-stream"
        with ExitStack() as stack:
            connection = stack.enter_context(closing(self.connect()))
            with _failures(wanted.size), file.open("rb") as body:
                connection.request("PUT", f"{self._prefix()}{wanted.path}?version={version}", body, headers)
                response = stack.enter_context(connection.getresponse())
            if response.status in (429, 502, 503, 504):
                raise Failed(f"the service is busy: status {response.status}", code=Code.UNAVAILABLE)
            if response.status == 409:
                raise Refused(Code.CONFLICT, "the service has the base of this image")
            if response.status != 204:
                raise Failed(f"the service refuses the base: status {response.status}")

    def _fetch_blocks(
        self, wanted: Wanted, hashes: list[str], file: Path, progress: Progress, exchange: ImageExchange
    ) -> None:
        with ServiceFile(self, wanted) as service:
            done = partial(progress, STEP)
            fetch = BlockFetch(wanted.sha256, wanted.size, hashes, file, exchange, service.read, done, self._stop)
            from_service = fetch.run()
        log.info("image %s: %d of %d blocks came from the service", wanted.sha256[:12], from_service, len(hashes))

    def _hashes(self, wanted: Wanted) -> list[str] | None:
        """The sha256 of each block; None if the service is of a version that does not offer them."""
        number = image_blocks.count(wanted.size)
        if number > image_blocks.MOST:
            return None
        with ServiceFile(self, wanted, _HASHING) as service:
            content = service.whole("/blocks", 100 * number + 1000)
        if content is None:
            return None
        try:
            raw = json.loads(content)
            hashes, right = list(raw["blocks"]), raw["size"] == image_blocks.SIZE
        except (ValueError, KeyError, TypeError) as error:
            raise Failed("the service sent no hashes of blocks") from error
        if not right or len(hashes) != number or not all(_SHA256.fullmatch(str(one)) for one in hashes):
            raise Failed("the service sent the hashes of another file")
        return hashes

    def _fetch_whole(self, wanted: Wanted, target: Path, progress: Progress) -> None:
        """Everything from the service, in one piece."""
        block_file(target).unlink(missing_ok=True)
        incomplete = partial_file(target)
        descriptor = os.open(incomplete, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            if os.fstat(descriptor).st_size > wanted.size:
                file.truncate(0)
            _check_room(incomplete, wanted.size - os.fstat(descriptor).st_size)
            self._complete(wanted, file, progress)
            file.flush()
            os.fsync(descriptor)
            _compare(wanted, file, incomplete)
        incomplete.rename(target)

    def _complete(self, wanted: Wanted, file: BinaryIO, progress: Progress) -> None:
        without = 0
        while (have := file.seek(0, os.SEEK_END)) < wanted.size:
            try:
                self._receive(wanted, file, have, progress)
                failure = Failed("the service closed the connection", code=Code.UNAVAILABLE)
            except Failed as error:
                failure = error
            without = 0 if file.tell() > have else without + 1
            if file.tell() < wanted.size:
                self.pause_after(failure, without, wanted)

    def pause_after(self, failure: Failed, without: int, wanted: Wanted) -> None:
        """Wait before the next connection. without: how many brought nothing. Raises the failure if it is the end."""
        if failure.code is not Code.UNAVAILABLE or without >= _ATTEMPTS or self._stop.is_set():
            raise failure
        log.warning("fetching image %s continues: %s", wanted.sha256[:12], failure)
        self._stop.wait(self._pause * 2**without)

    def _receive(self, wanted: Wanted, file: BinaryIO, have: int, progress: Progress) -> None:
        """Append what one connection brings. Failed(UNAVAILABLE): another one may bring more."""
        with ExitStack() as stack:
            connection = stack.enter_context(closing(self.connect()))
            with _failures(wanted.size - have):
                response = stack.enter_context(self.answer(connection, wanted, have))
                left = wanted.size - have
                while left and (chunk := response.read1(min(_CHUNK, left))):
                    file.write(chunk)
                    left -= len(chunk)
                    progress(STEP, 100 * (wanted.size - left) // wanted.size)
                    if self._stop.is_set():
                        raise Failed("the agent is stopping", code=Code.UNAVAILABLE)

    def connect(self, timeout: float = _TIMEOUT) -> http.client.HTTPConnection:
        """A connection to the service; timeout: seconds without data."""
        parts = urlsplit(self._member.url)
        host = parts.hostname or ""
        if parts.scheme == "http" and host in _LOOPBACK:
            return http.client.HTTPConnection(host, parts.port, timeout=timeout)
        if parts.scheme != "https":
            raise Failed(f"images are not fetched over {parts.scheme}", hint="let this host join over https")
        context = ssl.create_default_context()
        context.load_verify_locations(cadata=(self._member.folder / AUTHORITY).read_text())
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=context)

    def answer(
        self, connection: http.client.HTTPConnection, wanted: Wanted, first: int = 0, end: int = 0, path: str = ""
    ) -> http.client.HTTPResponse:
        """The response with a part of the file; Failed for any other. end: 0 for the rest. path: below the file's.

        A path has no part and may have any length. Failed(NOT_FOUND): the service does not know it.
        """
        end = end or wanted.size
        span = f"bytes={first}-{end - 1 if end < wanted.size else ''}" if (first, end) != (0, wanted.size) else ""
        response = self._ask(connection, wanted, span, path)
        if response.status in (401, 403) and self._follow_clock(response):
            response.close()
            connection.close()
            response = self._ask(connection, wanted, span, path)
        with ExitStack() as undo:
            undo.enter_context(response)
            if response.status in (429, 502, 503, 504):
                raise Failed(f"the service is busy: status {response.status}", code=Code.UNAVAILABLE)
            if path and response.status == 404:
                raise Failed("the service does not know this request", code=Code.NOT_FOUND)
            if response.status not in (200, 206):
                hint = "is the certificate of this node valid, and does a sliver of it need the image?"
                raise Failed(f"the service refuses the image: status {response.status}", hint=hint)
            if not path:
                _check_length(response, wanted.size, first, end)
            undo.pop_all()
        return response

    def _ask(
        self, connection: http.client.HTTPConnection, wanted: Wanted, span: str, path: str
    ) -> http.client.HTTPResponse:
        headers = self._headers(wanted)
        if span:
            headers["Range"] = span
        connection.request("GET", f"{self._prefix()}{wanted.path}{path}", headers=headers)
        return connection.getresponse()

    def _headers(self, wanted: Wanted) -> dict[str, str]:
        now = datetime.now(UTC) + self._ahead
        token = image_tokens.sign(_key(self._member.folder), self._member.identity, wanted.image, now)
        return {"Authorization": f"{image_tokens.SCHEME} {token}", "User-Agent": "slicemgr"}

    def _prefix(self) -> str:
        return urlsplit(self._member.url).path.rstrip("/")

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


class ServiceFile:
    """A context manager, for one thread: parts of an image from the service, over one connection as long as it lasts.

    timeout: seconds without data.
    """

    def __init__(self, source: Source, wanted: Wanted, timeout: float = _TIMEOUT) -> None:
        self._source, self._wanted, self._timeout = source, wanted, timeout
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, first: int, end: int) -> bytes:
        """The bytes from `first` to the one before `end`. Failed, after several attempts if the service is busy."""
        return self._repeated(end - first, partial(self._part, first, end))

    def whole(self, path: str, most: int) -> bytes | None:
        """What the service answers at a path below that of the file, at most so many bytes; None: it is not known."""

        def ask(connection: http.client.HTTPConnection) -> bytes:
            with self._source.answer(connection, self._wanted, path=path) as response:
                return response.read(most)

        try:
            return self._repeated(most, ask)
        except Failed as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise

    def _part(self, first: int, end: int, connection: http.client.HTTPConnection) -> bytes:
        with self._source.answer(connection, self._wanted, first, end) as response:
            content = response.read(end - first)
        if len(content) != end - first:
            raise Failed("the service closed the connection", code=Code.UNAVAILABLE)
        return content

    def _repeated(self, size: int, ask: Callable[[http.client.HTTPConnection], bytes]) -> bytes:
        without = 0
        while True:
            used = self._connection is not None
            try:
                with _failures(size):
                    self._connection = self._connection or self._source.connect(self._timeout)
                    return ask(self._connection)
            except Failed as error:
                self._close()
                if error.code is Code.UNAVAILABLE and used:
                    continue  # the service ends connections that wait
                without += 1
                self._source.pause_after(error, without, self._wanted)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def _failures(size: int) -> Iterator[None]:
    """Make errors of connections Failed; Failed(UNAVAILABLE): another one may bring more. size: bytes that are left."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        hint = "neither the system's authorities nor the testbed's issued it for this name"
        raise Failed(f"the certificate of the service is not valid: {error.verify_message}", hint=hint) from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise _no_room(size) from error
        why = str(error) or type(error).__name__
        raise Failed(f"the service does not answer: {why[:200]}", code=Code.UNAVAILABLE) from error


def _key(folder: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # as `slicemgr join` made it
    return key


def _check_length(response: http.client.HTTPResponse, size: int, first: int, end: int) -> None:
    """Failed unless the response is announced as exactly this part of the file."""
    if (first, end) != (0, size):
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        right = (
            response.status == 206 and found is not None and tuple(map(int, found.groups())) == (first, end - 1, size)
        )
    else:
        right = response.status == 200
    if not right or response.headers.get("Content-Length") != str(end - first):
        raise Failed("the service announces a file of another size", hint="`slicectl image show` has its size")


def _compare(wanted: Wanted, file: BufferedReader | BufferedRandom, path: Path) -> None:
    """Delete a file with another sha256, and raise Failed."""
    file.seek(0)
    if hashlib.file_digest(file, "sha256").hexdigest() != wanted.sha256:
        path.unlink()
        raise Failed("the service sent another file: its sha256 differs", hint="it is fetched again")


def _check_room(path: Path, size: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if size + RESERVE > free:
        raise _no_room(size)


def _no_room(size: int) -> Refused:
    hint = "delete images or slices of this node, or enlarge its disk"
    return Refused(Code.QUOTA, f"the disk of the node has no room for {size} bytes of an image", hint=hint)
