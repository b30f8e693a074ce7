"""The images that this node has. A node of a testbed fetches those that it lacks, and makes room for them.

A container needs the base of its image, which arrives as a stream if the image has one; a virtual machine needs the
disk image.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import Connection

from slicemgr import names
from slicemgr.agent import kept_disks, observe, records
from slicemgr.agent.image_source import RESERVE, Source, Wanted, block_file, partial_file
from slicemgr.agent.images import POOL_RESERVE, Importer, note_file, read_note, stream_file
from slicemgr.agent.node import Node
from slicemgr.drivers.importer import base_stream
from slicemgr.drivers.importer.disk_image import TreeFacts
from slicemgr.drivers.importer.unpack import Progress
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.model import BaseStream, Desired, Image, ImageState, NodeImageState, Sliver, SliverType
from slicemgr.policy.image_blocks import BASE
from slicemgr.policy.image_needs import ALL, Needs, needs
from slicemgr.store import pending

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0  # seconds after a failed attempt
_CLEANED = 30.0  # seconds until btrfs has freed the space


@dataclass(frozen=True, slots=True)
class Status:
    """How far an image is. error: of the last attempt.

    step: fetch, receive, check, inspect or extract; "": not begun.
    """

    step: str = ""
    percent: int | None = None
    error: str = ""


@dataclass(slots=True)
class _Attempt:
    """status: of the present or last one. next_at: of the next one, by the monotonic clock."""

    status: Status = Status()
    next_at: float = 0.0
    pause: float = _FIRST_PAUSE
    running: bool = False


class NodeImages:
    """Thread-safe. source None: this node has all images, since it imports them itself."""

    def __init__(self, node: Node, importer: Importer, source: Source | None) -> None:
        self._node, self._importer, self._source = node, importer, source
        self._one = threading.Lock()  # one image is fetched at a time
        self._lock = threading.Lock()
        self._attempts: dict[tuple[str, Needs], _Attempt] = {}
        self._deleting: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "images")

    def missing(self, sliver: Sliver) -> bool:
        """Whether the sliver cannot be created, because this node must fetch its image first."""
        if self._source is None or sliver.desired is Desired.ABSENT or observe.has_root(self._node.config, sliver.id):
            return False
        with self._lock:
            if sliver.image in self._deleting:
                return True
        return not self._has(sliver.image, sliver.image_format, needs(sliver.type, sliver.boot))

    def want(self, sha256: str, needed: Needs = ALL) -> Status:
        """Fetch an image in the background, after the pause that follows a failed attempt. Returns how far it is."""
        with self._lock:
            attempt = self._attempts.setdefault((sha256, needed), _Attempt())
            if not attempt.running and time.monotonic() >= attempt.next_at:
                attempt.running = True
                self._thread.submit(self._attempt, sha256, needed, attempt)
            return attempt.status

    def kept(self) -> list[str]:
        """The images that this node fetched and keeps for later slivers, also if its rows do not name them."""
        return self._by_age() if self._source is not None else []

    def used(self, sha256: str) -> None:
        """Note that a sliver begins with the image: those that were not used for longest are deleted first."""
        with suppress(OSError):
            os.utime(note_file(self._node.config, sha256))

    def push(self, sha256: str, progress: Progress, needed: Needs = ALL) -> None:
        """Have an image on this node. Refused or Failed if that is not possible now."""
        with self._one:
            self._ensure(sha256, needed, progress)

    def drop(self, sha256: str) -> None:
        """Delete the files of an image. Refused(CONFLICT) if a sliver of this node uses them."""
        with self._one:
            if not self._delete(sha256):
                raise Refused(Code.CONFLICT, "a sliver of this node uses the image", hint="delete it first")

    def _attempt(self, sha256: str, needed: Needs, attempt: _Attempt) -> None:
        def progress(step: str, percent: int | None) -> None:
            attempt.status = Status(step, percent)

        try:
            self.push(sha256, progress, needed)
        except Exception as error:  # a thread of a pool hides it
            if not isinstance(error, SlicemgrError):
                log.exception("unexpected error while image %s was fetched", sha256[:12])
            log.warning("image %s is fetched again in %.0f s: %s", sha256[:12], attempt.pause, error)
            with self._lock:
                attempt.status = Status(attempt.status.step, error=str(error))
                attempt.next_at = time.monotonic() + attempt.pause
                attempt.pause = min(2 * attempt.pause, _LONGEST_PAUSE)
                attempt.running = False
        else:
            with self._lock:
                self._attempts.pop((sha256, needed), None)

    def _ensure(self, sha256: str, needed: Needs, progress: Progress) -> None:
        image = self._node.query(lambda c: pending.image(c, sha256))
        if image is None or image.state is ImageState.DELETING:
            raise Refused(Code.NOT_FOUND, "the image does not exist any more")
        if not image.arch:  # there is no base
            needed = Needs(base=False)
        if self._has(sha256, image.format, needed):
            self._report(image, NodeImageState.READY)
            return
        if self._source is None:
            raise Refused(Code.CONFLICT, "the files of the image were lost", hint="import it again")
        try:
            self._fetch(self._source, image, needed, progress)
        except Exception as error:
            self._report(image, NodeImageState.FAILED, error=str(error))
            raise
        self._report(image, NodeImageState.READY)

    def _fetch(self, source: Source, image: Image, needed: Needs, progress: Progress) -> None:
        self._importer.make_folder()
        extracted = False
        if needed.base and not self._has_base(image.sha256):
            stream = self._usable(image)
            extracted = stream is None or not self._receive(source, image, stream, progress)
        disk = names.image_file(self._node.config.images_dir, image.sha256, image.format)
        if extracted or (needed.disk and not self._has_disk(image.sha256, image.format)):
            self._report(image, NodeImageState.FETCHING, Needs(base=extracted))
            self._make_room(image, image.file_size, disk, base=extracted)
            if not disk.exists():  # it has its name once its sha256 was compared
                source.fetch(Wanted(image.sha256, image.format, image.file_size), disk, progress)
            if extracted:
                self._extract(image, disk, progress)
            else:
                self._importer.use_disk(disk, image.format)
                if read_note(self._node.config, image.sha256) is None:
                    self._importer.note(image.sha256, TreeFacts(image.arch, image.os, image.base_size, image.boot))

    def _usable(self, image: Image) -> BaseStream | None:
        """The stream of the base, if this node uses it."""
        found = image.stream if self._node.config.exchange.streams else None
        return found if found is not None and found.version == base_stream.VERSION else None

    def _receive(self, source: Source, image: Image, stream: BaseStream, progress: Progress) -> bool:
        """Make the base from its stream; False if that is not possible, so that it must be extracted."""
        file = stream_file(self._node.config, image.sha256)
        self._report(image, NodeImageState.FETCHING, Needs(disk=False), stream=True)
        self._make_room(image, stream.size, file, base=True)
        try:
            if not file.exists():
                source.fetch(Wanted(stream.sha256, BASE, stream.size, image.sha256), file, progress)
            self._importer.receive(image, file, progress)
        except SlicemgrError as error:
            if self._node.stop.is_set():
                raise
            file.unlink(missing_ok=True)
            log.warning("image %s is extracted here, since its base was not received: %s", image.sha256[:12], error)
            return False
        return True

    def _extract(self, image: Image, disk: Path, progress: Progress) -> None:
        _, tree = self._importer.extract(image.sha256, image.format, disk, progress)
        if tree.arch != image.arch:
            self._importer.delete_files(image.sha256)
            raise Failed(f"the image has programs for {tree.arch or 'no system'} here, but {image.arch} in its row")

    def _report(
        self,
        image: Image,
        state: NodeImageState,
        fetched: Needs | None = None,
        *,
        stream: bool | None = None,
        error: str = "",
    ) -> None:
        """fetched: the files that are being fetched. stream: whether the stream of the base is; None: it is there."""
        config, sha256 = self._node.config, image.sha256
        known = read_note(config, sha256) if state is NodeImageState.READY else None
        held = Needs(base=self._has_base(sha256), disk=self._has_disk(sha256, image.format))

        def part(there: bool, under_way: bool) -> NodeImageState:
            if there:
                return NodeImageState.READY
            return NodeImageState.FETCHING if under_way else NodeImageState.ABSENT

        self._node.journal.add(
            pending.ImageOnNode(
                *(sha256, config.node.name, state, error[:300]),
                base_size=known.bytes if known is not None and known.arch and held.base else 0,
                disk=part(held.disk, fetched is not None and fetched.disk),
                base=part(held.base, fetched is not None and fetched.base),
                stream=stream_file(config, sha256).exists() if stream is None else stream,
            )
        )

    def _has(self, sha256: str, format: str, needed: Needs) -> bool:
        known = read_note(self._node.config, sha256)
        if known is None or (needed.disk and not self._has_disk(sha256, format)):
            return False
        return not needed.base or not known.arch or self._has_base(sha256)

    def _has_base(self, sha256: str) -> bool:
        return names.base_dir(self._node.config.node.pool, sha256).is_dir()

    def _has_disk(self, sha256: str, format: str) -> bool:
        """Whether the disk image is there and was checked: then programs of another user may read it."""
        try:
            mode = names.image_file(self._node.config.images_dir, sha256, format).stat().st_mode
        except FileNotFoundError:
            return False
        return bool(mode & stat.S_IRGRP) and read_note(self._node.config, sha256) is not None

    def _make_room(self, image: Image, size: int, file: Path, *, base: bool) -> None:
        """Delete images that no sliver of this node uses, those first that were not used for longest.

        size: of a file that is going to be fetched, in bytes. base: whether the base is going to be made.
        """
        for one in self._by_age():
            if self._has_room(size, file, image.base_size if base else 0):
                return
            if one != image.sha256 and self._delete(one):
                log.info("image %s was deleted to make room for %s", one[:12], image.name)
                self._node.pool.wait_cleaned(_CLEANED)

    def _has_room(self, size: int, file: Path, base_size: int) -> bool:
        files = (file, partial_file(file), block_file(file))
        there = sum(one.stat().st_blocks * 512 for one in files if one.exists())
        on_disk = shutil.disk_usage(self._node.config.images_dir).free - RESERVE >= size - there
        return on_disk and self._node.pool.space().free - POOL_RESERVE >= base_size

    def _by_age(self) -> list[str]:
        """The images of this node, the one that was not used for longest first."""
        notes = self._node.config.images_dir.glob("*.json")
        return [one.stem for one in sorted(notes, key=lambda one: one.stat().st_mtime)]

    def _used(self) -> set[str] | None:
        """The images of all slivers that the rows or the host have; None if the image of one is not known."""
        config = self._node.config

        def ask(c: Connection) -> tuple[list[Sliver], list[pending.Operation]]:
            slivers = [row.sliver for row in pending.slivers(c, config.node.name)]
            return slivers, pending.pending_operations(c, config.node.name)

        rows, operations = self._node.query(ask)
        recorded = {one: records.read(config.node.pool, one) for one in observe.in_pool(config)}
        known = {one.id for one in rows}
        if any(found is None and sliver not in known for sliver, found in recorded.items()):
            return None
        pushed = {one.image for one in operations if one.image and one.kind != "image-drop"}
        recorded_images = {one.image for one in recorded.values() if one is not None}
        # The root of a spare container lives without its base; requests need the room more than the next spare does.
        held = {one.image for one in rows if not (one.spare and one.type is SliverType.LXC)}
        return held | recorded_images | pushed | kept_disks.images(config.node.pool)

    def _delete(self, sha256: str) -> bool:
        """Delete the files of an image, unless a sliver uses it.

        It counts as missing before the rows are read: a sliver whose row came later waits, and is not created from it.
        """
        with self._lock:
            self._deleting.add(sha256)
        try:
            used = self._used()
            if used is None or sha256 in used:
                return False
            self._importer.delete_files(sha256)
            node = self._node.config.node.name
            self._node.journal.add(pending.ImageOnNode(sha256, node, NodeImageState.ABSENT))
            return True
        finally:
            with self._lock:
                self._deleting.discard(sha256)
