"""Sample the resource use of the node and all its slivers, as rows for the store.

A sample reads files of the kernel, one tree search in the pool and one dump of connections; it starts no process and
does not call libvirt. The caller passes libvirt's statistics of virtual machines, as of its last answer.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from slicemgr import names
from slicemgr.config import Config
from slicemgr.drivers.kernel import counters
from slicemgr.drivers.kernel.counters import Counts, Groups
from slicemgr.drivers.network import conntrack
from slicemgr.drivers.storage import atomic_file
from slicemgr.drivers.storage.btrfs import Pool, QuotaMode
from slicemgr.drivers.storage.btrfs_step import PoolFailed
from slicemgr.figures import COUNTED, RAW, Known, Usage
from slicemgr.model import KIB, SliverType
from slicemgr.record.increments import Increment, Reading, since

log = logging.getLogger(__name__)

MACHINE = ""  # the node itself, among the readings of slivers
_CHEAP = 20_000  # above this number, connections are not counted by sliver
_GAUGES = ("charged", "working", "swap", "pids")
_KILLS = "oom_kills"
_NOTHING = Increment(0.0, {})

Row = dict[str, Any]
Stats = Mapping[str, Mapping[str, int]]


class Sample(NamedTuple):
    """whole: the node's row. slivers: their rows. usage: the part of it that is kept with the slivers as the latest.

    oom_kills: processes that the kernel killed for lack of memory since the last sample, by the serials of slivers.
    """

    whole: Row
    slivers: list[Row]
    usage: list[Usage]
    oom_kills: dict[int, int]


class Sampler:
    """Remembers the counters of the last stored sample, also across a restart of the agent.

    memory: the file for that, in a directory that is emptied by a reboot, as are the counters. reclaimed: of
    slivers by their ids, the main process and the bytes that the node has taken of its memory.
    """

    def __init__(self, config: Config, pool: Pool, memory: Path, reclaimed: Mapping[str, tuple[int, int]]) -> None:
        self._config = config
        self._pool = pool
        self._memory = memory
        self._reclaimed = reclaimed
        self._groups = Groups()
        self._kept: dict[str, Reading] = {}
        self._began: float | None = None
        self._fresh: tuple[dict[str, Reading], float] | None = None
        self._remember()

    def sample(self, at: int, slivers: Sequence[Known], machines: Stats) -> Sample:
        """The node's row and one for each sliver. `keep` makes this sample the start of the next increments.

        at: the time for the rows, seconds since 1970. machines: libvirt's statistics of virtual machines.
        """
        wall, cpu = time.perf_counter(), time.thread_time()
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        running = counters.running()
        found = self._groups.read({one.id: running[one.id] for one in slivers if one.id in running})
        links, charges, connections = counters.links(), self._charges(), _connections(slivers)
        fresh: dict[str, Reading] = {}
        rows, usage, kills = [], [], {}
        for one in slivers:
            row = _empty(self._config.node.name, at, one.serial)
            row["seconds"] = 0.0 if self._began is None else now - self._began
            row["referenced"], row["disk"] = self._charge(one, charges)
            counts = found.get(one.id)
            if counts is not None:
                row["connections"] = connections.get(one.id)
                values = {**asdict(counts), **(asdict(links[one.id]) if one.id in links else {})}
                pid, taken = self._reclaimed.get(one.id, (0, 0))
                values["reclaimed"] = taken if pid == running[one.id] else 0
                values |= _of_machine(machines.get(one.id, {})) if one.type == SliverType.KVM else {}
                life = str(running[one.id])
                fresh[one.id] = Reading(life, now, self._counters(one.id, life, values))
                increment = self._since(one.id, fresh[one.id], running[one.id])
                self._fill(row, counts, values, increment)
                if killed := int(increment.counts.get(_KILLS, 0)):
                    kills[one.serial] = killed
            rows.append(row)
            usage.append(self._usage(one, row))
        whole = self._whole(at, now, rows, slivers, found, fresh)
        self._fresh = fresh, now
        whole["sample_seconds"], whole["sample_cpu"] = time.perf_counter() - wall, time.thread_time() - cpu
        return Sample(whole, rows, usage, kills)

    def keep(self) -> None:
        """Call after the last sample was stored."""
        if self._fresh is None:
            return
        self._kept, self._began = self._fresh
        readings = {name: [one.life, one.at, one.counters] for name, one in self._kept.items()}
        with suppress(OSError):  # without the file, a restart of the agent loses the counts since the last sample
            atomic_file.write(self._memory, json.dumps([self._began, readings]))

    def _remember(self) -> None:
        try:
            began, readings = json.loads(self._memory.read_text())
            kept = {name: Reading(*one) for name, one in readings.items()}
        except (OSError, ValueError, TypeError):
            return
        if isinstance(began, int | float) and began <= time.clock_gettime(time.CLOCK_BOOTTIME):
            self._kept, self._began = kept, began

    def _since(self, name: str, reading: Reading, pid: int) -> Increment:
        before = self._kept.get(name)
        if before is not None and before.life == reading.life:
            return since(before, reading, 0.0, self._began)
        age = counters.age(pid)
        return _NOTHING if age is None else since(before, reading, age, self._began)

    def _counters(self, name: str, life: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Counters for the next reading. An absent value stays as before: its increment is part of the next sample that
        has it.
        """
        before = self._kept.get(name)
        known = before.counters if before is not None and before.life == life else {}
        return {one: known.get(one) if values.get(one) is None else values[one] for one in ("cpu", _KILLS, *COUNTED)}

    @staticmethod
    def _fill(row: Row, counts: Counts, values: Mapping[str, Any], increment: Increment) -> None:
        row.update({name: values[name] for name in _GAUGES})
        row["guest"], row["charged_peak"] = values["guest"], counts.charged
        row["running"] = increment.seconds
        row["seconds"] = max(row["seconds"], increment.seconds)
        row.update({name: int(increment.counts.get(name, 0)) for name in COUNTED})
        row["cpu"] = increment.counts.get("cpu", 0.0)
        row["cpu_peak"] = row["cpu"] / increment.seconds if increment.seconds else 0.0

    def _whole(
        self,
        at: int,
        now: float,
        rows: Sequence[Row],
        slivers: Sequence[Known],
        found: Mapping[str, Counts],
        fresh: dict[str, Reading],
    ) -> Row:
        state = counters.machine()
        fresh[MACHINE] = Reading("boot", now, {"cpu": state.cpu, "pressure": counters.pressure()})
        increment = since(self._kept.get(MACHINE), fresh[MACHINE], 0.0, None)
        types = [one.type for one in slivers if one.id in found]
        space = self._pool.space()
        return {
            "node": self._config.node.name,
            "resolution": RAW,
            "at": at,
            "seconds": increment.seconds,
            **{name: getattr(state, name) for name in ("memory", "memory_total", "swap", "swap_total", "load", "pids")},
            "memory_peak": state.memory,
            "disk": space.used,
            "disk_total": space.total,
            "connections": conntrack.total(),
            "cpu": increment.counts["cpu"],
            "cpu_peak": increment.counts["cpu"] / increment.seconds if increment.seconds else 0.0,
            **{name: sum(row[name] for row in rows) for name in COUNTED},
            "pressure": int(increment.counts.get("pressure", 0)),
            **{one.value: types.count(one.value) for one in SliverType},
        }

    def _usage(self, one: Known, row: Row) -> Usage:
        """Full quotas do not include a sliver's snapshots, simple ones not its initial content.

        Its limit covers both.
        """
        more = one.kept if self._pool.quota_mode() is QuotaMode.FULL else one.inherited
        disk = None if row["disk"] is None else row["disk"] + more
        guest = row["guest"] if one.type == SliverType.KVM else None
        return Usage(one.serial, row["working"], row["charged"], disk, guest)

    def _charges(self) -> dict[int, tuple[int, int]]:
        try:
            return self._pool.charges()
        except PoolFailed as error:
            log.warning("%s", error)
            return {}

    def _charge(self, one: Known, charges: Mapping[int, tuple[int, int]]) -> tuple[int | None, int | None]:
        """Referenced and exclusive bytes: of the quota group, or with full quotas of the subvolume of its root."""
        own = charges.get(names.qgroup(one.serial))
        if self._pool.quota_mode() is not QuotaMode.FULL:
            return own or (None, None)
        with suppress(PoolFailed):
            return charges.get(self._pool.subvolume_id(_limited(self._config.node.pool, one.id)), (None, None))
        return None, None


def _limited(pool: Path, sliver: str) -> Path:
    """The limited subvolume: a container's root, a machine's directory. A restore replaces the root."""
    root = names.root_dir(pool, sliver)
    return root if root.exists() else names.sliver_dir(pool, sliver)


def _empty(node: str, at: int, serial: int) -> Row:
    """The row of a sliver that does not run."""
    gauges = ("charged", "working", "guest", "swap", "charged_peak", "disk", "referenced", "pids", "connections")
    row: Row = {"node": node, "resolution": RAW, "at": at, "sliver": serial, "seconds": 0.0, "running": 0.0}
    return {**row, **dict.fromkeys(gauges), "cpu": 0.0, "cpu_peak": 0.0, **dict.fromkeys(COUNTED, 0)}


def _of_machine(stats: Mapping[str, int]) -> dict[str, int | None]:
    """Memory use of the guest and I/O of its disks, from domstats: more exact than the cgroup of its QEMU."""
    values: dict[str, int | None] = {"guest": None}
    if "balloon.available" in stats and "balloon.usable" in stats:
        values["guest"] = (stats["balloon.available"] - stats["balloon.usable"]) * KIB
    for name, field in (
        ("io_read", "rd.bytes"),
        ("io_written", "wr.bytes"),
        ("io_reads", "rd.reqs"),
        ("io_writes", "wr.reqs"),
    ):
        found = [stats.get(f"block.{number}.{field}") for number in range(stats.get("block.count", 0))]
        known = [one for one in found if one is not None]
        values[name] = sum(known) if known else None
    return values


def _connections(slivers: Sequence[Known]) -> dict[str, int]:
    """Connections by sliver, to its port block or from inside; {} if there are too many to count."""
    total = conntrack.total()
    if total is None or total > _CHEAP:
        return {}
    addresses = {socket.inet_aton(one.address): one.id for one in slivers}
    try:
        return {addresses[address]: count for address, count in conntrack.count(addresses).items()}
    except OSError as error:
        log.warning("cannot count connections: %s", error)
        return {}
