"""The paper's figures 3 and 4: memory, swap and disk of the node, and the time of a create, by the number of slivers.

Slices of one sliver each are added in steps of `step`. After each step, the next facts of the node are recorded, and
some earlier slivers, chosen by the seed, are tested again through their ports; at the end, all slivers are tested.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum

from slicemgr import wire
from slicemgr.bench.frame import cleanup, guard, slivers
from slicemgr.bench.frame.experiment import Json, Progress, Step, StepOf, Stopped
from slicemgr.bench.frame.one_node import OneNode
from slicemgr.client import Client
from slicemgr.client.ssh import answers
from slicemgr.config import parse_size
from slicemgr.errors import SlicemgrError

NAME = "scale"
_GUESS = {"lxc": 0.3, "kvm": 20.0}  # estimated seconds of one create, for the dry run
_AGAIN = 20  # number of earlier slivers that are tested after each step
_WAKES = 35.0  # seconds after a deletion until the cleaner of the pool, which sleeps up to 30 s, has begun
_CLEANED = 300.0  # seconds that the cleaner may take
_ANSWER_SECONDS = 5
_LOOKS = 3  # number of tests of a sliver that does not answer


@dataclass(frozen=True, slots=True)
class ScaleParameters:
    """The parameters of a run.

    connect: makes a client; each thread has its own. prefix: of the names of all that it makes.
    """

    connect: Callable[[], Client]
    node: str
    ssh_key: str
    prefix: str
    type: str = "lxc"
    image: str = "debian-12"
    to: int = 200
    step: int = 5
    parallel: int = 4
    memory: str = "256M"
    boot: str = ""
    machine: str = ""
    repeat: int = 1
    seed: int = 1

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("node", "type", "image", "to", "step", "parallel", "memory", "boot", "repeat", "seed")
        more = {"machine": self.machine} if self.machine else {}  # earlier versions had none
        return {"kind" if name == "type" else name: getattr(self, name) for name in names} | more


@dataclass(frozen=True, slots=True)
class Grow:
    """Create slivers until there are `size`."""

    size: int


class AtTheEnd(Enum):
    """The steps at the end of a repetition."""

    CHECK = "check"
    DELETE = "delete"


ScaleStep = StepOf[Grow | AtTheEnd]


def steps(parameters: ScaleParameters) -> list[ScaleStep]:
    """The steps. Example of an id: `2/15`, in repetition 2, until there are 15 slivers."""
    sizes = [*range(0, parameters.to, parameters.step), parameters.to]
    each = _GUESS[parameters.type] * parameters.step / parameters.parallel
    found: list[ScaleStep] = []
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        found += [
            StepOf(
                f"{turn}/{size}", f"{size} {parameters.type}{about}", Grow(size), (each if size else 0) + 3, str(turn)
            )
            for size in sizes
        ]
        check, delete = AtTheEnd.CHECK, AtTheEnd.DELETE
        found.append(
            StepOf(f"{turn}/check", f"all ports{about}", check, 1 + parameters.to / 100, str(turn), always=True)
        )
        seconds = 1 + parameters.to / 50
        found.append(StepOf(f"{turn}/delete", f"delete{about}", delete, seconds, str(turn), always=True, deletes=True))
    return found


class Scale(OneNode):
    """The scale experiment; see `experiment.Experiment`."""

    def __init__(self, parameters: ScaleParameters) -> None:
        super().__init__(parameters.connect(), parameters.node, parameters.prefix)
        self._parameters = parameters
        self._slivers: dict[str, wire.Sliver] = {}  # of each slice that answers, by the name of the slice
        self._looks: dict[int, guard.State] = {}  # of this series, by the number of slivers
        self._watch = slivers.Watch(self.state)

    def steps(self) -> list[ScaleStep]:
        return steps(self._parameters)

    def need(self, step: ScaleStep) -> guard.Need:
        """From the costs of the slivers of this series, or of the last ones if they cost more; an estimate at first."""
        more = max(0, step.work.size - len(self._slivers)) if isinstance(step.work, Grow) else 0
        sizes = sorted(self._looks)
        if len(sizes) < 2:
            limit = parse_size(self._parameters.memory, "--memory")
            return slivers.cost(self._parameters.type, limit, more)
        spans = [(sizes[0], sizes[-1]), (sizes[max(0, len(sizes) - 6)], sizes[-1])]
        found = [guard.growth(self._looks[a], self._looks[b], b - a, more) for a, b in spans]
        return guard.Need(*(max(values) for values in zip(*(asdict(one).values() for one in found), strict=True)))

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Raises Refused if another experiment has slices or ports do not suffice. Restores an interrupted series."""
        parameters, client = self._parameters, self._client
        self.state()
        cleanup.refuse_others(client, parameters.prefix)
        planned = slivers.dry_run(client, self._request(f"{parameters.prefix}try"))
        slivers.ports_suffice(client, parameters.node, planned, parameters.to, "--to")
        return self._refill(done, todo[0], progress)

    def run(self, step: ScaleStep, progress: Progress) -> Json:
        match step.work:
            case AtTheEnd.CHECK:
                names = list(self._slivers)
                return {"slivers": len(names), "reached": self._reached(names, progress)}
            case AtTheEnd.DELETE:
                begun, count = time.monotonic(), len(self._slivers)
                self.clean(progress)
                self._slivers, self._looks = {}, {}
                return {"slivers": count, "seconds": time.monotonic() - begun}
            case Grow(size):
                return self._grow(size, progress)

    # the steps

    def _grow(self, size: int, progress: Progress) -> Json:
        if size == 0:
            self._settle(progress)
        before = list(self._slivers)
        wanted = [self._name(index) for index in range(len(before), size)]
        begun = time.monotonic()
        creates, trouble = self._create(wanted, progress)
        seconds = time.monotonic() - begun
        known = self._usage()
        now = self._look()
        self._looks[len(self._slivers)] = now
        asked = random.Random(f"{self._parameters.seed}/{size}").sample(before, min(_AGAIN, len(before)))
        data = {
            "n": len(self._slivers),
            "creates": creates,
            "seconds": seconds,
            "node": asdict(now),
            "own": slivers.mean_usage(slivers.next_usage(known, self._usage, self._stop)),
            "again": {"slivers": len(asked), "reached": self._reached(asked, progress)},
        }
        if trouble is not None and trouble.code not in slivers.ENOUGH:
            raise trouble
        if trouble is not None:
            raise Stopped(f"of {size} slivers {len(self._slivers)} came up: {trouble}", data)
        return data

    def _settle(self, progress: Progress) -> None:
        """Wait until the pool has freed the space of all deleted slivers: it would reduce the measured growth."""
        end, shown = time.monotonic() + _CLEANED, self._client.nodes.get(self._parameters.node)
        ended = [one["finished_at"] for one in self._client.operations.list(kind="delete") if one["finished_at"]]
        deleted = max(map(datetime.fromisoformat, ended), default=None)
        if deleted is None:
            return
        seen = datetime.fromisoformat(shown["agent_seen_at"] or ended[0])  # by the clock of the service, as the other
        since = (seen - deleted).total_seconds()
        if since > _CLEANED:
            return
        progress.say("waiting until the pool has freed the space of deleted files")
        self._stop.wait(max(0.0, _WAKES - max(0.0, since)))
        before, used = math.inf, self._look().disk_used
        while used < before and time.monotonic() < end:
            slivers.check(self._stop)
            before, used = used, self._look().disk_used

    def _look(self) -> guard.State:
        """The node's next state."""
        return cleanup.next_look(self._client, self._parameters.node)

    def _create(self, names: Sequence[str], progress: Progress) -> tuple[list[dict[str, float]], SlicemgrError | None]:
        """Seconds by phase of each sliver that started, in the order of names; and the first error, which ends it."""

        def done(count: int) -> None:
            progress.inside("create", count, len(names))
            self._watch.look()

        found, trouble = slivers.side_by_side(self._one, names, self._parameters.parallel, self.interrupt, done)
        return list(found.values()), trouble

    def _one(self, name: str) -> dict[str, float]:
        """Create a slice. Raises SlicemgrError if it does not start, Over if the experiment was interrupted."""
        with self._parameters.connect() as client:
            slivers.check(self._stop)
            begun = time.monotonic()
            created = slivers.ask(client, self._request(name))
            times = {"accepted": time.monotonic() - begun}
            slivers.wait(client, created["operation"], self._stop)
            times["operation"] = time.monotonic() - begun
            sliver = created["slice"]["slivers"][0]
            slivers.wait_for_banner(name, self._parameters.type, sliver, self._stop)
            times["banner"] = time.monotonic() - begun
            self._slivers[name] = sliver
            return times

    def _reached(self, names: Sequence[str], progress: Progress) -> int:
        """The number of slices whose sshd answers through the port, with retries for late answers of a loaded node."""
        silent = list(names)
        with ThreadPoolExecutor(self._parameters.parallel) as threads:
            for _ in range(_LOOKS):
                asked, silent = silent, []
                for done, (name, answered) in enumerate(zip(asked, threads.map(self._answers, asked), strict=True), 1):
                    silent += [] if answered else [name]
                    progress.inside("reach", done, len(asked))
        return len(names) - len(silent)

    def _answers(self, name: str) -> bool:
        return answers(self._slivers[name], _ANSWER_SECONDS)

    def _usage(self) -> list[wire.Usage]:
        found = self._client.slices.list(prefix=self._parameters.prefix)
        return [sliver["usage"] for one in found if one["name"] in self._slivers for sliver in one["slivers"]]

    # what they need

    def _name(self, index: int) -> str:
        return f"{self._parameters.prefix}{index:04}"

    def _request(self, name: str) -> wire.SliceRequest:
        parameters = self._parameters
        return slivers.request(
            name,
            parameters.type,
            parameters.image,
            parameters.node,
            parameters.ssh_key,
            memory=parameters.memory,
            boot=parameters.boot,
            machine=parameters.machine,
        )

    def _refill(self, done: Mapping[str, Json], first: Step, progress: Progress) -> list[str]:
        """Create missing slivers on which the first unfinished step builds, but none of that step. Returns notes."""
        size = max((one["data"].get("n", 0) for one in done.values() if one["series"] == first.series), default=0)
        found = {one["name"]: one for one in self._client.slices.list(prefix=self._parameters.prefix)}
        wanted = [self._name(index) for index in range(size)]
        for name in wanted:
            there = found[name]["slivers"] if name in found else []
            if there and there[0]["state"] == "running" and answers(there[0], _ANSWER_SECONDS):
                self._slivers[name] = there[0]
        kept = len(self._slivers)
        cleanup.delete(self._client, self._parameters.prefix, progress, but=set(self._slivers))
        if size:
            progress.say(f"{size} slivers are needed to continue, {kept} of them exist")
            _, trouble = self._create([name for name in wanted if name not in self._slivers], progress)
            if trouble is not None:
                raise trouble
            for record in done.values():
                if record["series"] == first.series and "node" in record["data"]:
                    self._looks[record["data"]["n"]] = guard.State(**record["data"]["node"])
            return [f"resumed at {first.title}: {size - kept} of {size} slivers were made again, which is not measured"]
        return []
