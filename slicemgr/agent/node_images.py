"""The images that this node has. A node of a testbed fetches those that it lacks, and makes room for them."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from slicemgr import names
from slicemgr.agent import kept_disks, observe, records
from slicemgr.agent.image_source import RESERVE, Source, Wanted, block_file, partial_file
from slicemgr.agent.images import POOL_RESERVE, Importer, note_file, read_note
from slicemgr.agent.node import Node
from slicemgr.drivers.importer.unpack import Progress
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.model import Desired, Image, ImageState, NodeImageState, Sliver
from slicemgr.store import pending

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0  # seconds after a failed attempt
_CLEANED = 30.0  # seconds until btrfs has freed the space


@dataclass(frozen=True, slots=True)
class Status:
    """How far an image is. step: fetch, check, inspect or extract; "": not begun. error: of the last attempt."""

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
        self._attempts: dict[str, _Attempt] = {}
        self._deleting: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "images")

    def missing(self, sliver: Sliver) -> bool:
        """Whether the sliver cannot be created, because this node must fetch its image first."""
        if self._source is None or sliver.desired is Desired.ABSENT or observe.has_root(self._node.config, sliver.id):
            return False
        with self._lock:
            if sliver.image in self._deleting:
                return True
        return not self._has(sliver.image, sliver.image_format)

    def want(self, sha256: str) -> Status:
        """Fetch an image in the background, after the pause that follows a failed attempt. Returns how far it is."""
        with self._lock:
            attempt = self._attempts.setdefault(sha256, _Attempt())
            if not attempt.running and time.monotonic() >= attempt.next_at:
                attempt.running = True
                self._thread.submit(self._attempt, sha256, attempt)
            return attempt.status

    def kept(self) -> list[str]:
        """The images that this node fetched and keeps for later slivers, also if its rows do not name them."""
        return self._by_age() if self._source is not None else []

    def used(self, sha256: str) -> None:
        """Note that a sliver begins with the image: those that were not used for longest are deleted first."""
        with suppress(OSError):
            os.utime(note_file(self._node.config, sha256))

    def push(self, sha256: str, progress: Progress) -> None:
        """Have an image on this node. Refused or Failed if that is not possible now."""
        with self._one:
            self._ensure(sha256, progress)

    def drop(self, sha256: str) -> None:
        """Delete the files of an image. Refused(CONFLICT) if a sliver of this node uses them."""
        with self._one:
            if not self._delete(sha256):
                raise Refused(Code.CONFLICT, "a sliver of this node uses the image", hint="delete it first")

    def _attempt(self, sha256: str, attempt: _Attempt) -> None:
        def progress(step: str, percent: int | None) -> None:
            attempt.status = Status(step, percent)

        try:
            self.push(sha256, progress)
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
                self._attempts.pop(sha256, None)

    def _ensure(self, sha256: str, progress: Progress) -> None:
        with self._node.store.read() as c:
            image = pending.image(c, sha256)
        if image is None or image.state is ImageState.DELETING:
            raise Refused(Code.NOT_FOUND, "the image does not exist any more")
        if self._has(sha256, image.format):
            self._report(image, NodeImageState.READY)
            return
        if self._source is None:
            raise Refused(Code.CONFLICT, "the files of the image were lost", hint="import it again")
        self._report(image, NodeImageState.FETCHING)
        try:
            self._fetch(self._source, image, progress)
        except Exception as error:
            self._report(image, NodeImageState.FAILED, str(error))
            raise
        self._report(image, NodeImageState.READY)

    def _fetch(self, source: Source, image: Image, progress: Progress) -> None:
        disk = names.image_file(self._node.config.images_dir, image.sha256, image.format)
        self._importer.make_folder()
        self._make_room(image)
        if not disk.exists():  # it has its name once its sha256 was compared
            source.fetch(Wanted(image.sha256, image.format, image.file_size), disk, progress)
        _, tree = self._importer.extract(image.sha256, image.format, disk, progress)
        if tree.arch != image.arch:
            self._importer.delete_files(image.sha256)
            raise Failed(f"the image has programs for {tree.arch or 'no system'} here, but {image.arch} in its row")

    def _report(self, image: Image, state: NodeImageState, error: str = "") -> None:
        known = read_note(self._node.config, image.sha256) if state is NodeImageState.READY else None
        size = known.bytes if known is not None and known.arch else 0
        node = self._node.config.node.name
        self._node.journal.add(pending.ImageOnNode(image.sha256, node, state, error[:300], size))

    def _has(self, sha256: str, format: str) -> bool:
        config = self._node.config
        known = read_note(config, sha256)
        return (
            known is not None
            and names.image_file(config.images_dir, sha256, format).exists()
            and (not known.arch or names.base_dir(config.node.pool, sha256).is_dir())
        )

    def _make_room(self, image: Image) -> None:
        """Delete images that no sliver of this node uses, those first that were not used for longest."""
        for one in self._by_age():
            if self._has_room(image):
                return
            if one != image.sha256 and self._delete(one):
                log.info("image %s was deleted to make room for %s", one[:12], image.name)
                self._node.pool.wait_cleaned(_CLEANED)

    def _has_room(self, image: Image) -> bool:
        config = self._node.config
        disk = names.image_file(config.images_dir, image.sha256, image.format)
        files = (disk, partial_file(disk), block_file(disk))
        there = sum(one.stat().st_blocks * 512 for one in files if one.exists())
        on_disk = shutil.disk_usage(config.images_dir).free - RESERVE >= image.file_size - there
        return on_disk and self._node.pool.space().free - POOL_RESERVE >= image.base_size

    def _by_age(self) -> list[str]:
        """The images of this node, the one that was not used for longest first."""
        notes = self._node.config.images_dir.glob("*.json")
        return [one.stem for one in sorted(notes, key=lambda one: one.stat().st_mtime)]

    def _used(self) -> set[str] | None:
        """The images of all slivers that the rows or the host have; None if the image of one is not known."""
        config = self._node.config
        with self._node.store.read() as c:
            rows = [row.sliver for row in pending.slivers(c, config.node.name)]
            operations = pending.pending_operations(c, config.node.name)
        recorded = {one: records.read(config.node.pool, one) for one in observe.in_pool(config)}
        known = {one.id for one in rows}
        if any(found is None and sliver not in known for sliver, found in recorded.items()):
            return None
        pushed = {one.image for one in operations if one.image and one.kind != "image-drop"}
        recorded_images = {one.image for one in recorded.values() if one is not None}
        return {one.image for one in rows} | recorded_images | pushed | kept_disks.images(config.node.pool)

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
