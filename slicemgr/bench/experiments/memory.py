"""The promise of memory under pressure, after the thesis on elastic memory (figure and table 1.2).

Two slivers that were promised memory 1 : 2 read pages of a file each that fits into their guarantee. Then a program on
the node takes a part of its memory, and a third sliver, which was promised nothing, reads ever new pages. The same is
done while only the kernel decides what is taken from whom, while it knows the guarantees (v2), with the memory
controller, and with a static partition, in which each sliver is limited to its share. A repetition has each once, in an
order that is derived from the seed.

Only page cache can be taken on a node without swap, so all slivers use page cache.
"""

from __future__ import annotations

import random
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicemgr import loads, wire
from slicemgr.bench.frame import cleanup, guard, load_hosts, slivers
from slicemgr.bench.frame.experiment import Json, Progress, Step, StepOf
from slicemgr.client import Client
from slicemgr.client.nodes import MemoryRequest
from slicemgr.config import parse_size
from slicemgr.drivers import command
from slicemgr.errors import Code, Failed, Refused
from slicemgr.human import size as human_size

NAME = "memory"
KERNEL, GUARANTEE, CONTROLLER, STATIC = "kernel", "guarantee", "controller", "static"
CONFIGURATIONS = {KERNEL: "off", GUARANTEE: "observe", CONTROLLER: "on", STATIC: "off"}  # what the controller does
LOW, HIGH, HOG = "low", "high", "hog"
_PROMISED = {LOW: 0.10, HIGH: 0.20}  # of the node's memory
_WEIGHTS = {LOW: 100, HIGH: 200, HOG: 100}
_STATIC_HOG = 0.12  # of the node's memory: the limit of the third sliver in a static partition
_USED = 0.8  # of its guarantee: the file that a sliver reads
_MOST = 16 << 30  # bytes of the node's memory: a larger one takes too long to fill
_MIB = 1 << 20
_SLACK = 300.0  # seconds for what is not measured
_LARGEST = 1 << 20  # characters that a program may print


@dataclass(frozen=True, slots=True)
class MemoryParameters:
    """The parameters of a run.

    connect: makes a client. key: the line of the public key, and the content of the private key. seconds: before the
    pressure, and after it; it lasts twice as long. pressure: the percentage of the node's memory that a program takes.
    rate: bytes per second that the third sliver reads.
    """

    connect: Callable[[], Client]
    node: str
    key: tuple[str, bytes]
    prefix: str
    configurations: tuple[str, ...] = (KERNEL, CONTROLLER, STATIC)
    image: str = "debian-12"
    seconds: int = 15
    pressure: int = 40
    rate: str = "256M"
    repeat: int = 5
    seed: int = 1

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("image", "seconds", "pressure", "rate", "repeat", "seed")
        found = {name: getattr(self, name) for name in names}
        return {"node": self.node, "configurations": " ".join(self.configurations), **found}


@dataclass(frozen=True, slots=True)
class Run:
    turn: int
    configuration: str


@dataclass(frozen=True, slots=True)
class Size:
    """Of one sliver, in bytes. file: that it reads."""

    limit: int
    guarantee: int
    weight: int
    file: int


def steps(parameters: MemoryParameters) -> list[StepOf[Run]]:
    """The steps. Example of an id: `2/controller`, where 2 is the repetition."""
    found = []
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        order = random.Random(f"{parameters.seed}/{turn}")
        for one in order.sample(parameters.configurations, len(parameters.configurations)):
            lasts = 4.0 * parameters.seconds + 15.0
            found.append(StepOf(f"{turn}/{one}", f"{one}{about}", Run(turn, one), lasts, str(turn)))
    return found


def configurations(cgroup: object) -> tuple[str, ...]:
    """Those that differ on a node. cgroup: the version of its control groups. A kernel of v1 knows no guarantees."""
    return tuple(one for one in CONFIGURATIONS if one != GUARANTEE or cgroup == "v2")


def sizes(configuration: str, memory: int) -> dict[str, Size]:
    """Of each sliver. memory: of the node. A static partition limits each to what it was promised."""

    def part(share: float) -> int:
        return int(share * memory) // _MIB * _MIB

    static, found = configuration == STATIC, {}
    for name in (LOW, HIGH, HOG):
        promised = part(_PROMISED.get(name, 0.0))
        limit = (promised or part(_STATIC_HOG)) if static else part(1.0)
        file = int(_USED * promised) if promised else part(1.0)
        found[name] = Size(limit, promised, _WEIGHTS[name], file)
    return found


class Memory:
    """The experiment of memory; see `experiment.Experiment`."""

    def __init__(self, parameters: MemoryParameters) -> None:
        self._parameters = parameters
        self._client = parameters.connect()
        self._key = slivers.Key(parameters.key)
        self._stop = threading.Event()
        self._memory = 0

    def steps(self) -> list[StepOf[Run]]:
        return steps(self._parameters)

    def state(self) -> guard.State:
        return guard.state(self._facts())

    def need(self, step: StepOf[Run]) -> guard.Need:
        found = sizes(step.work.configuration, self._memory)
        return guard.Need(disk=sum(one.file for one in found.values() if one.guarantee), pids=48)

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Raises Refused if the node has too much memory for it, or another experiment has slices."""
        self._memory = int(self._facts()["memory"])
        if self._memory > _MOST:
            message = (
                f"the node has {human_size(self._memory)} of memory, and at most {human_size(_MOST)} can be filled"
            )
            hint = "run it in a virtual machine, or in a group with a limit, such as that of a node box"
            raise Refused(Code.CONFLICT, message, hint=hint, field="--node")
        cleanup.refuse_others(self._client, self._parameters.prefix)
        cleanup.delete(self._client, self._parameters.prefix, progress)
        for configuration in self._parameters.configurations:
            for name, one in sizes(configuration, self._memory).items():
                slivers.dry_run(self._client, self._request(name, one))
        return []

    def run(self, step: StepOf[Run], progress: Progress) -> Json:
        turn, configuration = step.work.turn, step.work.configuration
        found = sizes(configuration, self._memory)
        cleanup.delete(self._client, self._parameters.prefix, progress)
        places = {name: self._create(name, one, progress) for name, one in found.items()}
        seed = random.Random(f"{self._parameters.seed}/{turn}").randrange(1 << 31)
        promised = [name for name in found if found[name].guarantee]
        with ThreadPoolExecutor(len(found) + 1) as threads:
            progress.say("the slivers write their files")
            list(threads.map(lambda name: self._load(places[name], "make", found[name].file, seed), promised))
            seconds = self._parameters.seconds
            rate = parse_size(self._parameters.rate, "--rate")
            pressed = threads.submit(self._press, configuration)
            loads_ = {
                name: threads.submit(
                    self._rates, places[name], 4 * seconds, "read", found[name].file, 4 * seconds, seed
                )
                for name in promised
            }
            hog = ("stream", found[HOG].file, rate, 2 * seconds, seconds)
            loads_[HOG] = threads.submit(self._rates, places[HOG], 2 * seconds, *hog)
            rates = {name: one.result() for name, one in loads_.items()}
            node = pressed.result()
        cleanup.delete(self._client, self._parameters.prefix, progress)
        return {
            "turn": turn,
            "configuration": configuration,
            "memory": self._memory,
            "node": node,
            "slivers": {
                name: {"limit": one.limit, "guarantee": one.guarantee, "file": one.file, **rates[name]}
                for name, one in found.items()
            },
        }

    def interrupt(self) -> None:
        self._stop.set()

    def clean(self, progress: Progress) -> None:
        cleanup.delete(self._client, self._parameters.prefix, progress)

    def close(self) -> None:
        self._key.close()
        self._client.close()

    def _facts(self) -> dict[str, Any]:
        return self._client.nodes.get(self._parameters.node)["facts"]

    def _request(self, name: str, size: Size) -> wire.SliceRequest:
        more: dict[str, Any] = {
            "memory": f"{size.limit // _MIB}M",
            "memory_guarantee": f"{size.guarantee // _MIB}M" if size.guarantee else "",
            "memory_weight": size.weight,
        }
        parameters = self._parameters
        title = f"{parameters.prefix}{name}"
        return slivers.request(title, "lxc", parameters.image, parameters.node, self._key.line, **more)

    def _create(self, name: str, size: Size, progress: Progress) -> list[str]:
        """The command prefix that runs a command in the new sliver."""
        slivers.check(self._stop)
        progress.say(f"creating {name}")
        created = slivers.ask(self._client, self._request(name, size))
        slivers.wait(self._client, created["operation"], self._stop)
        title = created["slice"]["name"]
        sliver = self._client.slices.get(title)["slivers"][0]
        slivers.wait_for_banner(title, "lxc", sliver, self._stop)
        return slivers.login(title, sliver, self._key.file)

    def _press(self, configuration: str) -> Json:
        """Have the agent take memory. What the node had in each second, and what the controller took."""
        seconds = self._parameters.seconds
        request: MemoryRequest = {
            "bytes": self._memory * self._parameters.pressure // 100,
            "before": seconds,
            "hold": 2 * seconds,
            "after": seconds,
            "controller": CONFIGURATIONS[configuration],
        }
        operation = self._client.nodes.measure_memory(self._parameters.node, request)
        ended = self._client.operations.wait(operation["id"], 4 * seconds + _SLACK)
        if ended["state"] == "failed" or ended["result"] is None:
            raise Failed(f"on the node: {ended['error']}", hint=ended["hint"] or "")
        measured = dict(ended["result"]["measured"])
        names = ("available", "free", "taken")
        return {**{name: measured[name] for name in names}, "at": measured["at"], "cpu": measured["cpu"]}

    def _load(self, words: Sequence[str], *arguments: str | int) -> Json:
        """The result of a program of `loads.memory` in a sliver. Raises Failed."""
        text = Path(loads.__file__).with_name("memory.py").read_bytes()
        line = f"cd /var/tmp && exec python3 -I - {shlex.join(map(str, arguments))}"
        timeout = 4 * self._parameters.seconds + _SLACK
        try:
            said = command.run([*words, line], input=text, timeout=timeout).decode(errors="replace")
        except command.CommandFailed as error:
            raise Failed(f"a load in a sliver failed: {error}", hint="the image needs python3") from error
        found = load_hosts.result(said[-_LARGEST:], "a sliver")
        if "missing" in found:
            raise Failed(f"a load in a sliver failed: {str(found)[:200]}")
        return found

    def _rates(self, words: Sequence[str], seconds: int, *arguments: str | int) -> Json:
        """When a load began, by the clock of its sliver, what it did in each second, and `p99` of its reads if it has
        one.
        """
        found = self._load(words, *arguments)
        names = ("each_second", "p99")
        series: Json = {name: found[name] for name in names if name in found}
        if (
            not load_hosts.is_measure(found.get("at"))
            or "each_second" not in series
            or not all(_has_measures(one, seconds) for one in series.values())
        ):
            raise Failed("a load in a sliver printed a result of another form")
        return {"at": found["at"], **series}


def _has_measures(found: object, count: int) -> bool:
    return isinstance(found, list) and len(found) == count and all(map(load_hosts.is_measure, found))
