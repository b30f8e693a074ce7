"""The table of "Create Simple Container": sysbench's CPU, threads, memory and file I/O, on the host, in lxc and in kvm.

Each test is run five times. The seed determines the order of the places for each run. Every run in lxc and kvm has a
new sliver; on the host, the agent runs sysbench as an unprivileged user in a directory of the pool.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slicemgr.bench.frame import guard
from slicemgr.bench.frame.experiment import Json, Progress, StepOf
from slicemgr.bench.frame.load_hosts import MACHINE, TYPES, InPlaces, Way, in_words
from slicemgr.bench.frame.sent_program import SentProgram
from slicemgr.client.nodes import SysbenchRequest
from slicemgr.config import parse_size
from slicemgr.loads.sysbench import ADDS, SECONDS

NAME = "sysbench"
HOST = "host"
PLACES = (HOST, *TYPES)
TESTS = ("cpu", "threads", "memory", "fileio")
MEASURED = {
    "cpu": ("seconds", "events", "events_per_second"),
    "threads": ("seconds", "events"),
    "memory": ("seconds", "operations", "mib_per_second"),
    "fileio": ("seconds", "read", "written"),
}
INSTALL = f"command -v sysbench >/dev/null || {{ {ADDS}; }}"
_SLACK = 1200.0  # seconds beyond a test, for creating its files in an emulated machine


@dataclass(frozen=True, slots=True)
class SysbenchParameters:
    """The parameters of a run.

    seconds: of each test, 0 for the durations of the table. size: of the files. install: install sysbench if missing.
    own: the sysbench of this machine, for slivers without it.
    """

    way: Way
    places: tuple[str, ...] = PLACES
    images: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = TESTS
    seconds: int = 0
    size: str = "1G"
    memory: str = "2G"
    disk: str = "8G"
    boot: str = "direct"
    install: bool = False
    own: Callable[[], SentProgram | None] = lambda: None
    repeat: int = 5
    seed: int = 1

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("places", "images", "tests", "seconds", "size", "memory", "disk", "boot", "repeat", "seed")
        return {"node": self.way.node, **in_words({name: getattr(self, name) for name in names})}


@dataclass(frozen=True, slots=True)
class Run:
    """A test of sysbench in a place, in one repetition."""

    turn: int
    place: str
    test: str


def steps(parameters: SysbenchParameters) -> list[StepOf[Run]]:
    """The steps. Example of an id: `2/kvm/memory`, where 2 is the repetition."""
    found = []
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        for place in random.Random(f"{parameters.seed}/{turn}").sample(parameters.places, len(parameters.places)):
            for test in parameters.tests:
                seconds = (parameters.seconds or SECONDS[test]) + (30.0 if test == "fileio" else 2.0)
                title, series = f"{place}, {test}{about}", f"{turn}/{place}"
                found.append(StepOf(f"{series}/{test}", title, Run(turn, place, test), seconds, series))
    return found


class Sysbench(InPlaces):
    """The sysbench experiment; see `experiment.Experiment`."""

    def __init__(self, parameters: SysbenchParameters) -> None:
        super().__init__(parameters.way, parameters.places)
        self._parameters = parameters

    def steps(self) -> list[StepOf[Run]]:
        return steps(self._parameters)

    def need(self, step: StepOf[Run]) -> guard.Need:
        place, test = step.work.place, step.work.test
        disk = parse_size(self._parameters.size, "--size") if test == "fileio" else 0
        machine = parse_size(self._parameters.memory, "--memory") + MACHINE
        return guard.Need(machine if place == "kvm" else MACHINE, disk, 32)

    def run(self, step: StepOf[Run], progress: Progress) -> Json:
        turn, place, test = step.work.turn, step.work.place, step.work.test
        parameters, names = self._parameters, MEASURED[test]
        size, seed = (
            parse_size(parameters.size, "--size"),
            random.Random(f"{parameters.seed}/{turn}/{test}").randrange(1, 2**31),
        )
        head: Json = {"turn": turn, "place": place, "test": test}
        if place == HOST:
            self._slivers.leave(progress)
            request: SysbenchRequest = {"test": test, "seconds": parameters.seconds, "size": size, "seed": seed}
            ask = self._client.nodes.measure_sysbench
            return {**head, **self._on_node.run(lambda: ask(parameters.way.node, request), names)}
        self._slivers.use(turn, place, progress, INSTALL if parameters.install else "", self._own)
        words = (test, str(parameters.seconds), str(size), str(seed))
        limit = (parameters.seconds or SECONDS[test]) + _SLACK
        origin = {"sent": True} if self._slivers.sent else {}
        return {**head, **origin, **self._slivers.run("sysbench.py", words, names, limit)}

    @cached_property
    def _own(self) -> SentProgram | None:
        return self._parameters.own()
