"""Measure slivers and node at a set interval, and write the samples.

Another thread queries libvirt for machines, so that a slow response costs some values and not a sample. A measurement
that cannot be written is discarded, and the next one includes everything since the last that was written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy.engine import Connection

from slicemgr.agent.chores.runner import Chore, First
from slicemgr.config import Config
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import SlicemgrError
from slicemgr.figures import Usage
from slicemgr.model import SliverType
from slicemgr.record.sampler import Sampler
from slicemgr.store import Store, out_of_memory, outbox, sample_reports, samples
from slicemgr.store.updates import SliverUsed, Update

log = logging.getLogger(__name__)

Stats = Mapping[str, Mapping[str, int]]
_REPORT = 60  # seconds between two reports to the centre of the testbed; samples stay on the node
_ENDING = 5.0  # seconds that the agent waits at its end for a measurement in progress


class MachineStatistics:
    """libvirt's statistics of machines as of its last response, queried in the background."""

    def __init__(self, ask: Callable[[], Stats]) -> None:
        self._ask = ask
        self._thread: threading.Thread | None = None
        self._known: Stats = {}

    def ask(self, any_there: bool) -> Stats:
        """Return the last response and start the next query; {} while the last query is in progress."""
        if self._thread is not None and self._thread.is_alive():
            return {}
        known, self._known = self._known, {}
        if any_there:
            self._thread = threading.Thread(target=self._work, name="recorder-machines", daemon=True)
            self._thread.start()
        return known

    def _work(self) -> None:
        try:
            self._known = self._ask()
        except SlicemgrError as error:
            log.debug("no figures of machines: %s", error)


class Recorder:
    """Records the usage of slivers and node. ask: returns libvirt's statistics of machines, which may take long.

    reclaimed: what the node has taken of the memory of slivers, as of MemoryController; another thread adds to it.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        pool: Pool,
        ask: Callable[[], Stats],
        reclaimed: Mapping[str, tuple[int, int]],
    ) -> None:
        self._config = config
        self._store = store
        self._sampler = Sampler(config, pool, config.node.run_dir / "recorder.json", reclaimed)
        self._machines = MachineStatistics(ask)
        self._reported = 0  # to the centre of the testbed

    def chore(self) -> Chore:
        """The chore that records at the configured interval."""
        return Chore(
            thread="recorder",
            run=self.record,
            interval=self._config.record.interval.total_seconds(),
            failure="cannot record what is used",
            first=First.AT_ONCE,
            steady=True,
            grace=_ENDING,
        )

    def record(self, now: int | None = None) -> None:
        """Write one sample, then sum up and delete old samples as due. now: seconds since 1970, the present.

        Nothing happens for a second sample within the same second.
        """
        now = int(time.time()) if now is None else now
        node = self._config.node.name
        with self._store.read() as c:
            slivers = samples.slivers(c, node)
        stats = self._machines.ask(any(one.type == SliverType.KVM for one in slivers))
        sample = self._sampler.sample(now, slivers, stats)
        with self._store.write() as c:
            projects = {one.serial: one.project for one in slivers}
            if not samples.write(c, sample.whole, sample.slivers, projects, sample.usage):
                return  # the next sample has its increments
            events = out_of_memory.record(c, sample.oom_kills, datetime.fromtimestamp(now, UTC))
            if self._config.joined:
                self._report(c, now, events, {one.serial: one.id for one in slivers}, sample.usage)
        self._sampler.keep()
        with self._store.write() as c:
            last = sample_reports.newest(c, node)
            samples.sum_up(c, node, now)
            if self._config.joined:
                outbox.add(c, sample_reports.since(c, node, last))
            samples.forget(c, node, self._config.record, now)

    def _report(
        self, c: Connection, now: int, events: Sequence[Update], ids: Mapping[int, str], usage: Sequence[Usage]
    ) -> None:
        """Queue what the centre of the testbed shall know; ids: of the slivers, by serial."""
        used: list[Update] = []
        if now - self._reported >= _REPORT:
            self._reported = now
            kills = out_of_memory.counts(c, self._config.node.name)
            used = [
                SliverUsed(ids[u.serial], now, u.working, u.charged, u.disk, u.guest, *kills.get(u.serial, ()))
                for u in usage
            ]
        outbox.add(c, [*events, *used])
