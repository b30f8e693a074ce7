"""How many slivers fit on a node until a promise is broken: with guarantees below their limits, and without.

All slivers have the same limit, and use the same part of it most of the time. In a static partition the whole limit is
promised to each; otherwise a part of it, which is more than they use. One sliver after the other is added, until the
node refuses the next or a sliver within its guarantee becomes slower. While it is measured, the newest sliver uses
nearly all of its limit, as each may at times.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from slicemgr import wire
from slicemgr.bench.experiments.memory_loads import WORKLOADS, Sliver
from slicemgr.bench.experiments.memory_setting import MIB
from slicemgr.bench.frame import cleanup, guard, slivers, timed_load
from slicemgr.bench.frame.experiment import Json, Progress, Step, StepOf
from slicemgr.bench.frame.one_node import WithLogin
from slicemgr.client import Client
from slicemgr.config import parse_size
from slicemgr.errors import SlicemgrError, invalid

NAME = "consolidation"
STATIC, ELASTIC = "static", "elastic"
POLICIES = (STATIC, ELASTIC)
KEPT = 0.95  # of the speed of the first slivers
_FEW = 3  # slivers that are all measured
_USUAL = 6  # speeds whose median is the usual one
_TRIES = 3  # measurements in which a sliver must be too slow
_OWN = 16 << 20  # bytes that a sliver uses beside its data
_BURST = 0.8  # of its limit, which the newest sliver uses
_MEASURED = 6  # slivers, of more
_SLACK = 300.0  # seconds for what is not measured
_MOST = 500


@dataclass(frozen=True, slots=True)
class ConsolidationParameters:
    """The parameters of a run.

    connect: makes a client. key: the line of the public key, and the content of the private key. memory: the limit of
    each sliver. guarantee: percentage of it that is promised where it is not all. usage: percentage of that guarantee
    that each uses. seconds: of one measurement. step: slivers that are added at a time.
    """

    connect: Callable[[], Client]
    node: str
    key: tuple[str, bytes]
    prefix: str
    policies: tuple[str, ...] = POLICIES
    image: str = "debian-12"
    memory: str = "128M"
    guarantee: int = 50
    usage: int = 80
    workload: str = "memory"
    seconds: int = 4
    step: int = 1
    repeat: int = 3
    seed: int = 1

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("node", "image", "memory", "guarantee", "usage", "workload", "seconds", "step", "repeat", "seed")
        return {"policies": " ".join(self.policies), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True)
class Run:
    turn: int
    policy: str


@dataclass(frozen=True, slots=True)
class Size:
    """Of each sliver, in bytes. used: by its workload. burst: that the newest one uses beside that."""

    limit: int
    guarantee: int
    used: int
    burst: int


def size(policy: str, parameters: ConsolidationParameters) -> Size:
    """Raises Refused if so little is promised that a sliver cannot do its work in it."""
    limit = parse_size(parameters.memory, "--memory") // MIB * MIB
    promised = limit * parameters.guarantee // 100 // MIB * MIB
    used = promised * parameters.usage // 100 - _OWN
    if parameters.workload not in WORKLOADS:
        raise invalid("--workload", f"{parameters.workload[:40]!r} is unknown", ", ".join(WORKLOADS))
    if used < _OWN:
        least = -(-2 * _OWN * 10_000 // parameters.guarantee // parameters.usage // MIB)
        raise invalid("--memory", f"{parameters.memory} is too little for the workload", f"at least {least}M")
    burst = max(0, int(limit * _BURST) - used - _OWN)
    return Size(limit, limit if policy == STATIC else promised, used, burst)


def steps(parameters: ConsolidationParameters) -> list[StepOf[Run]]:
    """The steps. Example of an id: `2/elastic`, where 2 is the repetition."""
    found = []
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        for policy in random.Random(f"{parameters.seed}/{turn}").sample(parameters.policies, len(parameters.policies)):
            found.append(StepOf(f"{turn}/{policy}", f"{policy}{about}", Run(turn, policy), 20.0 * parameters.seconds))
    return found


class Consolidation(WithLogin):
    """The experiment; see `experiment.Experiment`."""

    def __init__(self, parameters: ConsolidationParameters) -> None:
        super().__init__(parameters.connect(), parameters.node, parameters.prefix, parameters.key)
        self._parameters = parameters

    def steps(self) -> list[StepOf[Run]]:
        return steps(self._parameters)

    def state(self) -> guard.State:
        return guard.state_without_memory(self._facts())

    def need(self, step: StepOf[Run]) -> guard.Need:
        """Of memory it needs all that the node can guarantee: the end of it is what is measured."""
        return guard.Need(pids=64)

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Raises Refused if the node cannot take a sliver, or another experiment has slices."""
        cleanup.refuse_others(self._client, self._parameters.prefix)
        self.clean(progress)
        WORKLOADS[self._parameters.workload].check()
        for policy in self._parameters.policies:
            slivers.dry_run(self._client, self._request(0, size(policy, self._parameters)))
        return []

    def run(self, step: StepOf[Run], progress: Progress) -> Json:
        found = size(step.work.policy, self._parameters)
        self.clean(progress)
        there, looks, refused, broken = list[Sliver](), list[Json](), "", ""
        while len(there) < _MOST and not refused and not broken:
            try:
                new = self._create(len(there), found, step.work.turn)
            except SlicemgrError as error:
                if error.code not in slivers.ENOUGH or len(there) < _FEW:
                    raise
                refused = f"the node refused the next: {error.message}"
                break
            there += new
            progress.inside("slivers", len(there), _MOST)
            look, broken = self._look(there, found, looks)
            looks.append(look)
        self.clean(progress)
        fits = len(there) - (self._parameters.step if broken else 0)
        return {
            "turn": step.work.turn,
            "policy": step.work.policy,
            "memory": int(self._facts()["memory"]),
            "fits": fits,
            "end": broken or refused,
            "broken": bool(broken),
            "looks": looks,
        }

    def _request(self, number: int, found: Size) -> wire.SliceRequest:
        parameters = self._parameters
        more = {"memory": f"{found.limit // MIB}M", "memory_guarantee": f"{found.guarantee // MIB}M"}
        title = f"{parameters.prefix}{number:03}"
        return slivers.request(title, "lxc", parameters.image, parameters.node, self._key.line, **more)

    def _create(self, first: int, found: Size, turn: int) -> list[Sliver]:
        """The next slivers, whose memory is in use. Raises Refused if the node takes no more."""
        numbers = range(first, first + self._parameters.step)
        made = [slivers.ask(self._client, self._request(number, found)) for number in numbers]
        new = []
        for created in made:
            title, words = slivers.enter(self._client, created, self._key.file, self._stop)
            seed = random.Random(f"{self._parameters.seed}/{turn}/{title}").randrange(1 << 31)
            new.append(Sliver(title, words, found.used, seed))
        for one in new:
            WORKLOADS[self._parameters.workload].prepare(one)
        return new

    def _look(self, there: Sequence[Sliver], found: Size, before: Sequence[Json]) -> tuple[Json, str]:
        """The speeds of some slivers, and which promise is broken; "": none."""
        some = sample(there, self._parameters.seed)
        slow = {one.name for one in some}
        for _ in range(_TRIES):
            speeds = self._speeds([one for one in some if one.name in slow], there[-1], found)
            look = {"n": len(there), "speeds": speeds, "available": self._facts().get("memory_available")}
            usual = usual_speed([*before, look])
            slow = {name for name, speed in speeds.items() if usual and speed < KEPT * usual}
            if not slow:
                return look, ""
        worst = min(slow, key=lambda name: speeds[name])
        number = [one.name for one in there].index(worst) + 1
        return look, f"sliver {number} kept {100 * speeds[worst] / usual:.0f} % of the usual speed"

    def _speeds(self, some: Sequence[Sliver], newest: Sliver, found: Size) -> dict[str, float]:
        """By sliver, the best second; 0 if its program was killed. The newest uses most of its limit.

        One after the other, so that they do not wait for the processor. Who waits for it nevertheless does so at times;
        memory that is gone is missed in each second.
        """
        seconds, workload = self._parameters.seconds, WORKLOADS[self._parameters.workload]
        whole = (len(some) + 1) * seconds
        with ThreadPoolExecutor(len(some) + 1) as threads, ExitStack() as open_:
            loads = {one.name: open_.enter_context(workload.load(one, seconds)) for one in some}
            hold = ("hold", found.burst, whole)
            started = timed_load.start(newest.name, newest.words, "memory.py", hold, ("held",), whole + _SLACK)
            burst = open_.enter_context(started)
            list(threads.map(timed_load.TimedLoad.wait, [*loads.values(), burst]))
            burst.begin()
            series = {}
            for name, one in loads.items():
                one.begin()
                series[name] = one.series(seconds)
            burst.series(whole)
        return {name: 0.0 if one.get("killed") else max(one["each_second"]) for name, one in series.items()}


def sample(there: Sequence[Sliver], seed: int) -> list[Sliver]:
    """The slivers that are measured: all of a few, and some of many, but not the newest one of them."""
    if len(there) <= _FEW:
        return list(there)
    return random.Random(f"{seed}/{len(there)}").sample(there[:-1], min(_MEASURED, len(there) - 1))


def usual_speed(looks: Sequence[Mapping[str, Any]]) -> float:
    """The median of the first speeds, while much memory is free; 0 if too few are measured yet."""
    speeds: list[float] = []
    for look in looks:
        speeds += look["speeds"].values()
        if len(speeds) >= _USUAL:
            return median(speeds)
    return 0.0
