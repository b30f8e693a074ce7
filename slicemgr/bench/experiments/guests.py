"""What a guest costs and gives, by its kernel and its machine: time to start, memory, elementary operations, servers.

After Lupine (Kuo et al., EuroSys 2020), whose table compares kernels by size, boot time, memory, lmbench and the
throughput of applications. All guests are measured in turns on one node; the seed determines their order.
"""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from slicemgr import loads, wire
from slicemgr.bench.experiments.lifecycle import timed_create
from slicemgr.bench.frame import cleanup, guard, slivers
from slicemgr.bench.frame.experiment import Json, Missing, Progress, Step, StepOf
from slicemgr.bench.frame.load_hosts import checked
from slicemgr.bench.frame.one_node import WithLogin
from slicemgr.bench.frame.sent_program import SentProgram
from slicemgr.client import Client
from slicemgr.client.ssh import answers
from slicemgr.config import parse_size
from slicemgr.drivers import command
from slicemgr.errors import Failed, Refused

NAME = "guests"
LOADS = ("python", "redis", "nginx")
OPERATIONS = ("null_call", "read", "fork_exec", "context_switch")
LATENCY = "sliver-latency"
MIB = 1 << 20
LEAST = tuple(size * MIB for size in (16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 384, 512))  # bytes tried
_FOLDER = "/var/tmp/slicemgr-bench"
_KERNEL = "uname -r; stat -c %s /boot/vmlinuz-$(uname -r) 2>/dev/null || echo 0"
_SECONDS = {"lxc": 60.0, "kvm": 900.0}  # within which a guest must start
_GUESS = {"lxc": 1.0, "kvm": 20.0}  # estimated seconds of one start, for the dry run
_COMMAND = 900.0
_QUIET = 3.0  # seconds after its start in which a guest becomes idle
_PATIENCE = 4.0  # a guest that needs so many times the usual time to start does not start


@dataclass(frozen=True, slots=True)
class Guest:
    """What is compared. boot, machine: "" for containers and for the default."""

    name: str
    type: str
    image: str
    boot: str = ""
    machine: str = ""
    about: str = ""


GUESTS: Mapping[str, Guest] = {
    one.name: one
    for one in (
        Guest("lxc", "lxc", "debian-12", about="a container on the node's kernel"),
        Guest("debian", "kvm", "debian-12", "loader", about="Debian's kernel, by its boot loader, with systemd"),
        Guest("small", "kvm", "debian-12-small", "direct", about="Debian's kernel, booted directly"),
        Guest("small-thin", "kvm", "debian-12-small", machine="thin", about="the same on a thin machine"),
        Guest("thin-standard", "kvm", "debian-12-thin", "direct", about="a thin kernel on the standard machine"),
        Guest("thin", "kvm", "debian-12-thin", machine="thin", about="a thin kernel on a thin machine"),
        Guest("thin-size", "kvm", "debian-12-thin-size", machine="thin", about="the same, compiled for size"),
        Guest(
            "thin-unprotected",
            "kvm",
            "debian-12-thin-unprotected",
            machine="thin",
            about="thin, without isolation of page tables, mitigations and stack protector",
        ),
    )
}
BASE = "small"  # the guest with which the others are compared


@dataclass(frozen=True, slots=True)
class GuestsParameters:
    """The parameters of a run.

    key: the line of the public key, and the content of the private key. count: starts of each guest in a repetition.
    seconds: of each load. programs: returns those of this machine that guests are sent, by name.
    """

    connect: Callable[[], Client]
    guests: Sequence[Guest]
    node: str
    key: tuple[str, bytes]
    prefix: str
    count: int = 3
    memory: str = "256M"
    seconds: float = 5.0
    repeat: int = 3
    seed: int = 1
    programs: Callable[[], Mapping[str, SentProgram]] = dict

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("node", "count", "memory", "seconds", "repeat", "seed")
        return {**{name: getattr(self, name) for name in names}, "guests": [asdict(one) for one in self.guests]}


@dataclass(frozen=True, slots=True)
class Part:
    """The work of a step. what: `start`, `work`, or `least` for the least memory."""

    turn: int
    guest: Guest
    what: str


def steps(parameters: GuestsParameters) -> list[StepOf[Part]]:
    """The steps. Example of an id: `2/thin/work`, where 2 is the repetition. `least` is in the first one only."""
    found = []
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        for one in random.Random(f"{parameters.seed}/{turn}").sample(parameters.guests, len(parameters.guests)):
            each, series = _GUESS[one.type], f"{turn}/{one.name}"
            found.append(
                StepOf(
                    f"{series}/start",
                    f"{one.name}: start{about}",
                    Part(turn, one, "start"),
                    each * parameters.count,
                    series,
                )
            )
            work = each + 20 + len(LOADS) * parameters.seconds
            found.append(StepOf(f"{series}/work", f"{one.name}: work{about}", Part(turn, one, "work"), work, series))
            if turn == 1 and one.type == "kvm":
                title = f"{one.name}: least memory"
                found.append(StepOf(f"{series}/least", title, Part(turn, one, "least"), 8 * each, series))
    return found


class Guests(WithLogin):
    """The experiment; see `experiment.Experiment`."""

    def __init__(self, parameters: GuestsParameters) -> None:
        super().__init__(parameters.connect(), parameters.node, parameters.prefix, parameters.key)
        self._parameters = parameters
        self._usual: dict[str, float] = {}  # seconds in which a guest has started, the longest

    def steps(self) -> list[StepOf[Part]]:
        return steps(self._parameters)

    def need(self, step: StepOf[Part]) -> guard.Need:
        most = max(LEAST) if step.work.what == "least" else parse_size(self._parameters.memory, "--memory")
        return slivers.cost(step.work.guest.type, most, 1)

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Raises Refused if another experiment has slices, or if the service would not create such a slice."""
        parameters, client = self._parameters, self._client
        self.state()
        cleanup.refuse_others(client, parameters.prefix)
        for one in parameters.guests:
            slivers.dry_run(client, self._request(f"{parameters.prefix}try", one, parameters.memory))
        self.clean(progress)
        return [f"resumed at {todo[0].title}"] if done else []

    def run(self, step: StepOf[Part], progress: Progress) -> Json:
        part = step.work
        head: Json = {"guest": part.guest.name, "turn": part.turn}
        match part.what:
            case "start":
                return head | self._start(part, progress)
            case "work":
                return head | self._work(part, progress)
            case _:
                return head | {"least": self._least(part.guest, progress)}

    def _start(self, part: Part, progress: Progress) -> Json:
        """Seconds of each start by phase, and the memory of an idle guest."""
        found: dict[str, list[float]] = {}
        working: list[float] = []
        for number in range(self._parameters.count):
            name = f"{self._parameters.prefix}{part.turn}-{part.guest.name}-{number}"
            times, sliver = self._create(name, part.guest, self._parameters.memory)
            for phase, value in times.items():
                found.setdefault(phase, []).append(value)
            if number == 0:
                working.append(self._idle(name))
                kernel = self._kernel(name, sliver)
            cleanup.delete(self._client, name, progress)
            progress.inside("start", number + 1, self._parameters.count)
        return {"phases": found, "working": working, **kernel}

    def _work(self, part: Part, progress: Progress) -> Json:
        """What elementary operations take and how much servers do, in one guest."""
        name = f"{self._parameters.prefix}{part.turn}-{part.guest.name}-w"
        _, sliver = self._create(name, part.guest, self._parameters.memory)
        words = self._words(name, sliver)
        for number, one in enumerate(self._programs.values(), 1):
            command_line = one.unpack(f"{_FOLDER}/programs")
            slivers.check(self._stop)
            self._say(words, f"{command_line} >/dev/null", one.archive, name)
            progress.inside("programs", number, len(self._programs))
        path = f"mkdir -p {_FOLDER}/work && cd {_FOLDER}/work && PATH=$PATH:{_FOLDER}/programs && export PATH"
        found = {"operations": self._checked(words, f"{path} && exec {LATENCY}", b"", OPERATIONS, name)}
        text = Path(loads.__file__).with_name("guest.py").read_bytes()
        rates, missing = {}, {}
        for load in LOADS:
            slivers.check(self._stop)
            line = f"{path} && exec python3 -I - {load} {self._parameters.seconds:g}"
            try:
                rates[load] = self._checked(words, line, text, ("rate",), name)["rate"]
            except Missing as error:
                missing[load] = error.reason
        cleanup.delete(self._client, name, progress)
        return {**found, "rates": rates, "missing": missing}

    def _least(self, guest: Guest, progress: Progress) -> int:
        """The least memory in bytes, of those tried, with which a guest starts."""
        low, high = 0, len(LEAST) - 1  # LEAST[high] is enough
        while low < high:
            middle = (low + high) // 2
            slivers.check(self._stop)
            name = f"{self._parameters.prefix}least-{guest.name}-{LEAST[middle] // MIB}"
            if self._starts(name, guest, LEAST[middle]):
                high = middle
            else:
                low = middle + 1
            cleanup.delete(self._client, name, progress)
        return LEAST[high]

    def _starts(self, name: str, guest: Guest, memory: int) -> bool:
        limit = _PATIENCE * self._usual.get(guest.name, _SECONDS[guest.type] / _PATIENCE)
        try:
            created = slivers.ask(self._client, self._request(name, guest, str(memory)))
        except Refused:
            return False  # less than the service gives to any sliver
        end = time.monotonic() + limit
        while time.monotonic() < end:
            slivers.check(self._stop)
            if answers(created["slice"]["slivers"][0]):
                return True
            time.sleep(0.1)
        return False

    def _create(self, name: str, guest: Guest, memory: str) -> tuple[dict[str, float], wire.Sliver]:
        """Seconds of each phase since the request, and the sliver."""
        times, sliver = timed_create(self._client, self._request(name, guest, memory), self._stop)
        self._usual[guest.name] = max(times["banner"], self._usual.get(guest.name, 0.0))
        return times, sliver

    def _idle(self, name: str) -> float:
        """The memory of the node that an idle guest uses, in bytes."""
        self._stop.wait(_QUIET)

        def usage() -> list[wire.Usage]:
            return [self._client.slices.get(name)["slivers"][0]["usage"]]

        return float(slivers.mean_usage(slivers.next_usage(usage(), usage, self._stop))["working"] or 0)

    def _kernel(self, name: str, sliver: wire.Sliver) -> Json:
        release, size = self._say(self._words(name, sliver), _KERNEL, b"", name).decode(errors="replace").split()[:2]
        return {"release": release[:60], "kernel_size": int(size) if size.isdigit() else 0}

    @cached_property
    def _programs(self) -> Mapping[str, SentProgram]:
        return self._parameters.programs()

    def _words(self, name: str, sliver: wire.Sliver) -> list[str]:
        return slivers.login(name, sliver, self._key.file)

    def _say(self, words: Sequence[str], line: str, given: bytes, name: str) -> bytes:
        try:
            return command.run([*words, line], timeout=_COMMAND, input=given)
        except command.CommandFailed as error:
            raise Failed(f"{name}: {error}", hint=f"`slicectl console {shlex.quote(name)}`") from error

    def _checked(self, words: Sequence[str], line: str, given: bytes, names: Sequence[str], name: str) -> Json:
        return checked(self._say(words, line, given, name).decode(errors="replace"), names, name)

    def _request(self, name: str, guest: Guest, memory: str) -> wire.SliceRequest:
        parameters = self._parameters
        more = {"memory": memory, "boot": guest.boot, "machine": guest.machine, "ports": 1}
        return slivers.request(name, guest.type, guest.image, parameters.node, self._key.line, **more)


def with_images(guests: Sequence[str], images: Mapping[str, str]) -> list[Guest]:
    """The guests of these names, with other images for some."""
    found = [GUESTS[name] for name in guests]
    return [replace(one, image=images.get(one.name, one.image)) for one in found]
