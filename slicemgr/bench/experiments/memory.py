"""The promise of memory under pressure, after the thesis on elastic memory (figure and table 1.2).

Slivers that were promised memory 1 : 2 use memory that fits into their guarantee: alone, then while a further sliver,
which was promised nothing, works in little memory. Then a program on the node takes a part of its memory, and that
sliver uses ever more at the same rate, so that what is lost is lost for want of memory. The same is done while only the
kernel decides what is taken from whom, while it knows the guarantees (v2), with the memory controller, and with a
static partition, in which each sliver is limited to its share. A repetition has each once, in an order that is derived
from the seed. One knob at a time can be varied.

Only page cache can be taken on a node without swap, so slivers use files by default.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

from slicemgr import wire
from slicemgr.bench.experiments.memory_loads import WORKLOADS, Sliver, send_stress, stress_program
from slicemgr.bench.experiments.memory_setting import (
    BALLOON,
    CONFIGURATIONS,
    CONTROLLER,
    FILE,
    GUARANTEE,
    HOG,
    KERNEL,
    MIB,
    STATIC,
    STRESS,
    Setting,
    Size,
    Variant,
    sizes,
)
from slicemgr.bench.frame import cleanup, guard, slivers, timed_load
from slicemgr.bench.frame.experiment import Json, Progress, Step, StepOf
from slicemgr.bench.frame.one_node import WithLogin
from slicemgr.client import Client
from slicemgr.client.nodes import MemoryRequest
from slicemgr.config import parse_size
from slicemgr.errors import Code, Failed, Refused
from slicemgr.human import size as human_size

NAME = "memory"
_MOST = 16 << 30  # bytes of the node's memory: a larger one takes too long to fill
_SLACK = 300.0  # seconds for what is not measured
_LITTLE = 32 * MIB  # that the further sliver uses while memory is not short
_PHASES = 5  # of `seconds`, in which slivers work


@dataclass(frozen=True, slots=True)
class MemoryParameters:
    """The parameters of a run.

    connect: makes a client. key: the line of the public key, and the content of the private key. seconds: alone, beside
    the further sliver, and after the pressure, which lasts twice as long. rate: bytes per second that the further
    sliver uses. type, boot: of the slivers. variants: the base first.
    """

    connect: Callable[[], Client]
    node: str
    key: tuple[str, bytes]
    prefix: str
    configurations: tuple[str, ...] = (KERNEL, CONTROLLER, STATIC)
    image: str = "debian-12"
    seconds: int = 15
    rate: str = "256M"
    repeat: int = 5
    seed: int = 1
    type: str = "lxc"
    boot: str = ""
    variants: tuple[Variant, ...] = (Variant(Setting()),)

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("image", "seconds", "rate", "repeat", "seed")
        found = {name: getattr(self, name) for name in names}
        if self.type != "lxc":
            found |= {"type": self.type, "boot": self.boot}
        varied = {"varied": " ".join(one.name for one in self.variants[1:])} if len(self.variants) > 1 else {}
        base = self.variants[0].setting.recorded
        return {"node": self.node, "configurations": " ".join(self.configurations), **found, **base, **varied}


@dataclass(frozen=True, slots=True)
class Run:
    turn: int
    configuration: str
    variant: Variant


def steps(parameters: MemoryParameters) -> list[StepOf[Run]]:
    """The steps. Example of an id: `2/controller/usage=120`, where 2 is the repetition."""
    found = []
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        order, lasts = random.Random(f"{parameters.seed}/{turn}"), float(_PHASES) * parameters.seconds + 15.0
        for variant in parameters.variants:
            for one in order.sample(parameters.configurations, len(parameters.configurations)):
                title = "/".join(filter(None, (one, variant.name)))
                found.append(StepOf(f"{turn}/{title}", f"{title}{about}", Run(turn, one, variant), lasts))
    return found


def configurations(cgroup: object) -> tuple[str, ...]:
    """Those that differ on a node. cgroup: the version of its control groups. A kernel of v1 knows no guarantees."""
    return tuple(one for one in CONFIGURATIONS if one != GUARANTEE or cgroup == "v2")


class Memory(WithLogin):
    """The experiment of memory; see `experiment.Experiment`."""

    def __init__(self, parameters: MemoryParameters) -> None:
        super().__init__(parameters.connect(), parameters.node, parameters.prefix, parameters.key)
        self._parameters = parameters
        self._memory, self._swaps = 0, False

    def steps(self) -> list[StepOf[Run]]:
        return steps(self._parameters)

    def state(self) -> guard.State:
        return guard.state_without_memory(self._facts())

    def need(self, step: StepOf[Run]) -> guard.Need:
        found = self._sizes(step.work.configuration, step.work.variant.setting)
        return guard.Need(disk=sum(one.file for one in found.values() if one.guarantee), pids=16 * len(found))

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Raises Refused if the node has too much memory for it or no swap, or another experiment has slices."""
        facts = self._facts()
        self._memory, self._swaps = int(facts["memory"]), bool(facts.get("swap_total"))
        if self._memory > _MOST:
            message = (
                f"the node has {human_size(self._memory)} of memory, and at most {human_size(_MOST)} can be filled"
            )
            hint = "run it in a virtual machine, or in a group with a limit, such as that of a node box"
            raise Refused(Code.CONFLICT, message, hint=hint, field="--node")
        cleanup.refuse_others(self._client, self._parameters.prefix)
        self.clean(progress)
        for variant in self._parameters.variants:
            WORKLOADS[variant.setting.workload].check()
            if variant.setting.hog == STRESS:
                stress_program()
            for configuration in self._parameters.configurations:
                for name, one in self._sizes(configuration, variant.setting).items():
                    slivers.dry_run(self._client, self._request(name, one))
        programs = any(one.setting.workload != FILE for one in self._parameters.variants)
        if programs and not self._swaps and self._parameters.type == "lxc":
            return ["the node has no swap: it can take page cache of slivers, but no memory of their programs"]
        return []

    def run(self, step: StepOf[Run], progress: Progress) -> Json:
        turn, configuration, setting = step.work.turn, step.work.configuration, step.work.variant.setting
        found = self._sizes(configuration, setting)
        self.clean(progress)
        seed = random.Random(f"{self._parameters.seed}/{turn}").randrange(1 << 31)
        workload, seconds = WORKLOADS[setting.workload], _PHASES * self._parameters.seconds
        with ThreadPoolExecutor(len(found) + 1) as threads, ExitStack() as open_:
            progress.say("creating the slivers")
            words = self._create(found)
            places = {name: Sliver(name, words[name], found[name].file, seed) for name in found}
            promised = [one for name, one in places.items() if found[name].guarantee]
            progress.say("the slivers fill their memory")
            list(threads.map(workload.prepare, promised))
            if setting.hog == STRESS:
                send_stress(places[HOG])
            loads = {one.name: open_.enter_context(workload.load(one, seconds)) for one in promised}
            loads[HOG] = open_.enter_context(self._hog(setting, places[HOG]))
            list(threads.map(timed_load.TimedLoad.wait, loads.values()))
            pressed = threads.submit(self._press, configuration, setting)
            for one in loads.values():
                one.begin()
            progress.say("the slivers work")
            ends = {name: threads.submit(one.series, seconds) for name, one in loads.items()}
            rates = {name: one.result() for name, one in ends.items()}
            node = pressed.result()
        self.clean(progress)
        return {
            "turn": turn,
            "configuration": configuration,
            "alone": self._parameters.seconds,
            "setting": setting.recorded,
            "knob": step.work.variant.knob,
            "memory": self._memory,
            "node": node,
            "slivers": {
                name: {"limit": one.limit, "guarantee": one.guarantee, "file": one.file, **rates[name]}
                for name, one in found.items()
            },
        }

    def _request(self, name: str, size: Size) -> wire.SliceRequest:
        more: dict[str, Any] = {
            "memory": f"{size.limit // MIB}M",
            "memory_guarantee": f"{size.guarantee // MIB}M" if size.guarantee else "",
            "memory_weight": size.weight,
            "boot": self._parameters.boot,
        }
        parameters = self._parameters
        title = f"{parameters.prefix}{name}"
        return slivers.request(title, parameters.type, parameters.image, parameters.node, self._key.line, **more)

    def _sizes(self, configuration: str, setting: Setting) -> dict[str, Size]:
        return sizes(configuration, self._memory, setting, machines=self._parameters.type == "kvm")

    def _create(self, found: Mapping[str, Size]) -> dict[str, list[str]]:
        """The command prefix that runs a command in each of the new slivers."""
        asked = {name: slivers.ask(self._client, self._request(name, one)) for name, one in found.items()}
        entered = (slivers.enter(self._client, one, self._key.file, self._stop) for one in asked.values())
        return {name: words for name, (_, words) in zip(asked, entered, strict=True)}

    def _hog(self, setting: Setting, place: Sliver) -> AbstractContextManager[timed_load.TimedLoad]:
        seconds, rate = self._parameters.seconds, parse_size(self._parameters.rate, "--rate")
        little = (seconds, min(_LITTLE, place.size))
        phases = ((seconds, 0), little, (2 * seconds, place.size), little)
        arguments: list[str | int] = [setting.hog, rate, *chain.from_iterable(phases)]
        longest = _PHASES * seconds + _SLACK
        return timed_load.start(HOG, place.words, "memory.py", arguments, ("each_second",), longest)

    def _press(self, configuration: str, setting: Setting) -> Json:
        """Have the agent take memory. What the node had in each second, and what the controller took."""
        seconds = self._parameters.seconds
        request: MemoryRequest = {
            "bytes": self._memory * setting.pressure // 100,
            "before": 2 * seconds,
            "hold": 2 * seconds,
            "after": seconds,
            "controller": CONFIGURATIONS[configuration],
            "locked": setting.external == BALLOON,
            "swap": self._swaps and configuration in (KERNEL, GUARANTEE),
        }
        operation = self._client.nodes.measure_memory(self._parameters.node, request)
        ended = self._client.operations.wait(operation["id"], _PHASES * seconds + _SLACK)
        if ended["state"] == "failed" or ended["result"] is None:
            raise Failed(f"on the node: {ended['error']}", hint=ended["hint"] or "")
        measured = dict(ended["result"]["measured"])
        names = ("available", "free", "taken")
        found = {**{name: measured[name] for name in names}, "at": measured["at"], "cpu": measured["cpu"]}
        more: Json = {"taking": measured.get("taking", 0.0), "kernel": measured.get("kernel", {})}
        return {**found, **more, "killed": bool(measured.get("killed"))}
