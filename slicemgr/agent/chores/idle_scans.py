"""Find out how much memory of containers is idle, by samples of their pages; see policy/idle.py.

Only while little memory is free, and at most for the part of a processor that the policy allows. Where the kernel has
no tracker, or another program uses it, what the kernel lists as inactive counts as idle.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from slicemgr.agent.chores.runner import Chore
from slicemgr.drivers.kernel import cgroup, counters, idle_pages, memory_groups
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.drivers.kernel.idle_pages import Tracker
from slicemgr.drivers.kernel.memory_groups import Held
from slicemgr.drivers.kernel.page_samples import Kind, PageSamples, Sample, inner_groups
from slicemgr.drivers.libvirt import processes as bodies
from slicemgr.errors import SlicemgrError
from slicemgr.policy import idle
from slicemgr.policy.idle import Estimate

_INTERVAL = 5.0  # seconds
_LONGEST = 3600.0  # seconds between two attempts that fail
_ENDING = 10.0  # seconds that the agent waits at its end: DAMON answers when it checks pages


@dataclass(frozen=True, slots=True)
class _Scan:
    """What was marked. owners: slivers by the inode numbers of their groups. cost: of the marks, in seconds."""

    groups: Mapping[str, Path]
    owners: Mapping[int, str]
    samples: Mapping[Kind, Sample]
    begun: float
    cost: float


def containers() -> dict[str, Path]:
    """The memory group of each container that runs."""
    running = counters.running(bodies.LXC_DIR)
    found = {sliver: memory_groups.group(sliver, pid) for sliver, pid in running.items()}
    return {sliver: group for sliver, group in found.items() if group is not None}


@dataclass(slots=True)
class IdleScans:
    """wanted: whether anything uses the estimates. now, spent: seconds of a monotonic clock, and of processor time."""

    run_dir: Path
    wanted: Callable[[], bool]
    measure: Callable[[], Memory] = counters.memory
    find: Callable[[], dict[str, Path]] = containers
    pages: PageSamples = field(default_factory=PageSamples)
    now: Callable[[], float] = time.monotonic
    spent: Callable[[], float] = time.thread_time
    dice: random.Random = field(default_factory=random.Random)
    tracker: Tracker | None = field(init=False)
    cost: float = 0.0  # seconds of processor time of all scans
    _scan: _Scan | None = None
    _rest: float = 0.0
    estimates: Mapping[Path, Mapping[str, Estimate]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tracker = idle_pages.of_machine(self.run_dir / idle_pages.NOTE)

    def __enter__(self) -> Self:
        self._stop()  # what an agent left that was killed
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._stop()

    def chore(self) -> Chore:
        return Chore(
            thread="idle",
            run=self.step,
            interval=_INTERVAL,
            failure="cannot find out which memory is idle",
            longest=_LONGEST,
            grace=_ENDING,
        )

    def idle(self, group: Path, held: Held) -> int:
        """The idle bytes of a group, by the last scan if it is recent."""
        return idle.idle_now(held.kinds, self.estimates.get(group, {}), self.now())

    def step(self) -> None:
        """Begin or end a scan if that is due. Raises OSError or Failed; then no scan is under way."""
        if self.tracker is None:
            return
        now = self.now()
        try:
            if self._scan is not None and now - self._scan.begun >= idle.WINDOW:
                self._end(self._scan, self.tracker)
            elif self._scan is None and now >= self._rest and (memory := self._short()):
                self._begin(now, memory, self.tracker)
        except (OSError, SlicemgrError):
            self._stop()
            raise

    def _short(self) -> Memory | None:
        """The memory of the node if some may be taken soon."""
        memory = self.measure() if self.wanted() else None
        return memory if memory is not None and memory.free < idle.FREE * memory.total else None

    def _begin(self, now: float, memory: Memory, tracker: Tracker) -> None:
        begun = self.spent()
        groups: dict[str, Path] = {}
        owners: dict[int, str] = {}
        for sliver, group in self.find().items():
            inner = inner_groups(group)
            if inner is not None:
                groups[sliver] = group
                owners |= dict.fromkeys(inner, sliver)
        self.estimates = {group: one for group, one in self.estimates.items() if group in groups.values()}
        kinds = [(sliver, kind) for sliver in groups for kind in (("file", "anon") if memory.swap else ("file",))]
        if not kinds:
            return
        some, most = idle.plan(len(kinds))
        drawn = self.pages.draw(owners, self.dice.sample(kinds, some), most)
        samples = {kind: sample for kind, sample in drawn.items() if len(sample.pages) >= idle.LEAST}
        if samples:
            tracker.mark({page for sample in samples.values() for page in sample.pages})
        cost = self.spent() - begun
        self._scan = _Scan(groups, owners, samples, now, cost) if samples else None
        self._pay(now, cost)

    def _end(self, scan: _Scan, tracker: Tracker) -> None:
        """Estimates of kinds that this scan did not include are kept."""
        begun, now, version = self.spent(), self.now(), cgroup.version()
        still = tracker.idle()
        self._stop()
        found: dict[Path, dict[str, Estimate]] = {}
        for (sliver, kind), sample in scan.samples.items():
            group = scan.groups[sliver]
            held = memory_groups.held(group, version, swap=True)
            if held is None:
                continue
            unused = self.pages.still(scan.owners, (sliver, kind), still.intersection(sample.pages))
            count = sum(page in unused for page in sample.pages)
            one = idle.estimate(count, len(sample.pages), len(sample.unseen), held.kinds[kind][1], now)
            if one is not None:
                found.setdefault(group, {})[kind] = one
        self.estimates = {
            **self.estimates,
            **{group: {**self.estimates.get(group, {}), **one} for group, one in found.items()},
        }
        self._pay(scan.begun, self.spent() - begun, scan.cost)

    def _pay(self, begun: float, cost: float, before: float = 0.0) -> None:
        """Begin the next scan only when this one has cost no more than it may. before: what it has cost until now."""
        self.cost += cost
        self._rest = begun + (cost + before) / idle.COST

    def _stop(self) -> None:
        self._scan = None
        if self.tracker is not None:
            with suppress(OSError):
                self.tracker.end()
