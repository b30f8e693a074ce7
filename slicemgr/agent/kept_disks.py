"""The disks of slivers that were taken from this node while it was away: kept for a day, for what only they have.

Each is the directory of the sliver, moved to `POOL/kept/SLIVER.SECONDS`; seconds: since 1970, of the move.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from slicemgr import names, sliver_record
from slicemgr.agent.publisher import Publisher
from slicemgr.config import Config
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network import traffic
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Failed, Refused

log = logging.getLogger(__name__)

TIME = 86400  # seconds for which they are kept
SWEEP = 600.0  # seconds between two deletions of older ones
_SECONDS = re.compile(r"[1-9][0-9]{0,11}")


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept disk. at: of the move, seconds since 1970."""

    path: Path
    sliver: str
    at: int

    @property
    def until(self) -> str:
        return f"{datetime.fromtimestamp(self.at + TIME, UTC):%Y-%m-%dT%H:%M:%SZ}"


def found(pool: Path) -> Iterator[Kept]:
    """All of them, by sliver. Other names are not slicemgr's."""
    with suppress(FileNotFoundError):
        for path in sorted(names.kept_dir(pool).iterdir()):
            sliver, _, at = path.name.rpartition(".")
            if names.is_sliver_id(sliver) and _SECONDS.fullmatch(at):
                yield Kept(path, sliver, int(at))


def images(pool: Path) -> set[str]:
    """The images that the kept disks need, because a disk of a virtual machine lies over its image."""
    needed = set()
    for one in found(pool):
        with suppress(OSError, ValueError, Refused):
            needed.add(sliver_record.from_json(json.loads((one.path / names.RECORD).read_text())).image)
    return needed


class KeptDisks:
    """Thread-safe for different slivers."""

    def __init__(self, config: Config, hypervisor: Hypervisor, pool: Pool, publisher: Publisher) -> None:
        self._config, self._hypervisor, self._pool, self._publisher = config, hypervisor, pool, publisher

    def keep(self, sliver: str, group: int | None) -> Kept | None:
        """Stop a sliver at once and keep its disk; None if it has none. group: its quota group, which is removed.

        Raises Failed or Refused.
        """
        self._hypervisor.kill(sliver)
        self._publisher.withdraw(sliver)
        launch.remove(self._config, sliver)
        traffic.clear(sliver)
        directory, folder = names.sliver_dir(self._config.node.pool, sliver), names.kept_dir(self._config.node.pool)
        if not directory.exists():
            return None
        kept = Kept(folder / f"{sliver}.{int(time.time())}", sliver, int(time.time()))
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            directory.rename(kept.path)
        except OSError as error:
            raise Failed(f"the disk of {sliver} cannot be moved to {folder}: {error.strerror}") from error
        if group is not None:
            self._pool.release_group(group)
        log.warning("%s was stopped; its disk is kept in %s until %s", sliver, kept.path, kept.until)
        return kept

    def sweep(self) -> None:
        """Delete those that were kept for their time. Raises Failed."""
        for one in found(self._config.node.pool):
            if time.time() >= one.at + TIME:
                self._pool.delete_tree(one.path, None)
                log.info("the kept disk %s was deleted", one.path)
