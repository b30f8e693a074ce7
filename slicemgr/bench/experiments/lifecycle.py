"""Times of creation, ssh banner, work inside and deletion, compared with the raw baseline of the same run.

The banner is read through the DNAT port. A series is one type and, for machines, one way to boot. In each repetition
it has two steps: the raw baseline, and directly after it the slices, from their creation to their deletion. `warm` adds
a third one, in which each slice takes a spare of the node.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue

from slicemgr import wire
from slicemgr.bench.experiments import inside
from slicemgr.bench.frame import cleanup, guard, slivers
from slicemgr.bench.frame.experiment import Json, Progress, Step, StepOf, Stopped
from slicemgr.bench.frame.one_node import WithLogin
from slicemgr.client import Client
from slicemgr.config import parse_size
from slicemgr.errors import Code, Failed, Refused, SlicemgrError

NAME = "lifecycle"
_RAW_SECONDS = 1800.0
_GUESS = {"lxc": 0.3, "kvm": 20.0}  # estimated seconds of one sliver, for the dry run
_SPARE_SECONDS = {"lxc": 120.0, "kvm": 900.0}  # within which the node must have a spare again
_SPARE_TOLD = 10.0  # seconds after which the user learns what is waited for
_SPARE_UNFIT = 60.0  # seconds after which spares that do not fit are not replaced by others
_SPARE_PAUSE = 0.2  # seconds between two checks for one
_SETTLED = 0.5  # seconds after which the node is idle again
PHASES = ("accepted", "prepared", "started", "console", "operation", "banner")


@dataclass(frozen=True, slots=True)
class Series:
    """The type of the slivers. boot: the way to boot machines, "" for containers."""

    type: str
    image: str
    boot: str = ""

    @property
    def label(self) -> str:
        return f"{self.type} {self.boot}".strip()

    @property
    def recorded(self) -> Json:
        """The series as run.json stores it."""
        return {"kind": self.type, "image": self.image, "boot": self.boot}


@dataclass(frozen=True, slots=True)
class LifecycleParameters:
    """The parameters of a run.

    connect: makes a client; each thread has its own. key: the line of the public key, and the content of the private
    key. ping: the address that the slivers ping; "" for their gateway, which is the node. warm: whether to measure
    slices that take a spare, too: `count` of them, one at a time, and then `burst`, `parallel` at a time.
    """

    connect: Callable[[], Client]
    series: Sequence[Series]
    node: str
    key: tuple[str, bytes]
    prefix: str
    count: int = 20
    parallel: int = 4
    memory: str = "256M"
    repeat: int = 1
    ping: str = ""
    warm: bool = False
    burst: int = 0

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("node", "count", "parallel", "memory", "repeat", "ping")
        known = {name: getattr(self, name) for name in names}
        warm = {"warm": True} if self.warm else {}  # runs of earlier versions have neither
        burst = {"burst": self.burst} if self.burst else {}
        return {**known, **warm, **burst, "series": [one.recorded for one in self.series]}


@dataclass(frozen=True, slots=True)
class Part:
    """The work of a step. raw: the baseline of the series, without slicemgr. warm: slices that take a spare."""

    series: Series
    raw: bool
    warm: bool = False


def steps(parameters: LifecycleParameters) -> list[StepOf[Part]]:
    """The steps. Examples of ids: `2/kvm-direct/slices` in repetition 2, and `2/kvm-direct/raw` for its baseline."""
    found = []
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        for one in parameters.series:
            name = f"{turn}/{one.label.replace(' ', '-')}"
            seconds = 2 + _GUESS[one.type] * parameters.count / parameters.parallel
            found.append(StepOf(f"{name}/raw", f"{one.label}: raw{about}", Part(one, raw=True), seconds, name))
            found.append(
                StepOf(f"{name}/slices", f"{one.label}: slices{about}", Part(one, raw=False), 3 * seconds, name)
            )
            if parameters.warm:
                warm, each = Part(one, raw=False, warm=True), 6 + _GUESS[one.type]
                seconds = each * (parameters.count + parameters.burst)
                found.append(StepOf(f"{name}/warm", f"{one.label}: spares{about}", warm, seconds, name))
    return found


class Lifecycle(WithLogin):
    """The lifecycle experiment; see `experiment.Experiment`."""

    def __init__(self, parameters: LifecycleParameters) -> None:
        super().__init__(parameters.connect(), parameters.node, parameters.prefix, parameters.key)
        self._parameters = parameters
        self._watch = slivers.Watch(self.state)
        self._asked: str | int | None = None  # the operation of a baseline that may be running

    def steps(self) -> list[StepOf[Part]]:
        return steps(self._parameters)

    def need(self, step: StepOf[Part]) -> guard.Need:
        memory = parse_size(self._parameters.memory, "--memory")
        return slivers.cost(step.work.series.type, memory, self._parameters.count)

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Raises Refused if another experiment has slices, ports do not suffice, or an image is missing."""
        parameters, client = self._parameters, self._client
        self.state()
        cleanup.refuse_others(client, parameters.prefix)
        for one in parameters.series:
            planned = slivers.dry_run(client, self._request(f"{parameters.prefix}try", one))
            slivers.ports_suffice(client, parameters.node, planned, parameters.count, "--count")
            ports = planned["slivers"][0]["ports"]
            if ports["last"] == ports["first"]:
                hint = "at least 2: ssh and the web server that answers"
                raise Refused(Code.CONFLICT, "a sliver has one port on this node", hint=hint)
        cleanup.delete(client, parameters.prefix, progress)
        for running in client.operations.list(kind="baseline", state="running"):
            progress.say("waiting until the node has ended the raw baseline of an earlier run")
            client.operations.wait(running["id"], _RAW_SECONDS)
        cut = f"{todo[0].series}/raw"
        if cut in done and cut != todo[0].id:
            return [f"resumed at {todo[0].title}: its raw baseline was measured before the interruption"]
        return []

    def run(self, step: StepOf[Part], progress: Progress) -> Json:
        series = step.work.series
        if step.work.raw:
            return {"raw": self._baseline(series)}
        if step.work.warm:
            return {"warm": {**self._spares(series, progress), **self._burst(series, progress)}}
        names = [f"{self._parameters.prefix}{index:04}" for index in range(self._parameters.count)]
        return self._slices(series, names, progress)

    def clean(self, progress: Progress) -> None:
        """Delete the slices. A running baseline cannot be stopped; it deletes its own slivers, which is awaited."""
        if self._asked is not None:
            progress.say("waiting until the node has ended and deleted its raw baseline")
            self._client.operations.wait(self._asked, _RAW_SECONDS)
            self._asked = None
        super().clean(progress)

    # raw

    def _baseline(self, series: Series) -> wire.Baseline:
        parameters = self._parameters
        request: wire.BaselineRequest = {
            "type": series.type,
            "image": self._client.images.get(series.image)["sha256"],
            "memory": parameters.memory,
            "count": parameters.count,
            "parallel": parameters.parallel,
        }
        if series.boot:
            request["boot"] = series.boot
        self._asked = self._client.nodes.baseline(parameters.node, request)["id"]
        ended = self._client.operations.wait(self._asked)
        self._asked = None
        if ended["state"] == "failed" or ended["result"] is None:
            raise Failed(f"the baseline: {ended['error']}", hint=ended["hint"] or "")
        return ended["result"]["baseline"]

    # slices

    def _slices(self, series: Series, names: Sequence[str], progress: Progress) -> Json:
        """Create and delete the slices, also if only some were created; the deletion is timed if all were created."""
        before = self._available()
        begun = time.monotonic()
        found, trouble = self._side_by_side(lambda name: self._create(series, name), names, "create", progress)
        took = time.monotonic() - begun
        data: Json = {"count": len(found), "create": took, "phases": _gathered(one for one, _ in found.values())}
        if trouble is None:
            data |= self._weigh(names, before)
            made = {name: sliver for name, (_, sliver) in found.items()}
            looked, trouble = self._side_by_side(lambda name: self._inside(name, made[name]), names, "inside", progress)
            data["inside"] = _gathered(looked.values())
        begun = time.monotonic()
        cleanup.delete(self._client, self._parameters.prefix, progress)
        data["delete"] = time.monotonic() - begun
        if trouble is None:
            return data
        full = "inside" not in data and trouble.code in slivers.ENOUGH
        if not (full or isinstance(trouble, slivers.Suffocates)):
            raise trouble
        data.pop("inside", None)
        raise Stopped(f"of {len(names)} slivers {len(found)} came up: {trouble}", data)

    def _spares(self, series: Series, progress: Progress) -> dict[str, list[float]]:
        """Seconds of the phases of slices that take a spare, which are created and deleted one after the other."""
        found: dict[str, list[float]] = {}
        for number in range(self._parameters.count):
            name = f"{self._parameters.prefix}w{number:04}"
            asked: wire.SliceRequest = {**self._request(name, series), "warm": True}
            self._await_spare(asked, progress)
            for phase, value in warm_create(self._client, asked, self._stop).items():
                found.setdefault(phase, []).append(value)
            cleanup.delete(self._client, name, progress)
            progress.inside("spares", number + 1, self._parameters.count)
        return found

    def _burst(self, series: Series, progress: Progress) -> dict[str, list[float]]:
        """Seconds for each slice of many that take spares at once, until all of them have sent sshd's banner."""
        count = self._parameters.burst
        if not count:
            return {}
        names = [f"{self._parameters.prefix}b{number:04}" for number in range(count)]
        self._await_spare({**self._request(names[0], series), "warm": True}, progress, count)

        free: SimpleQueue[Client] = SimpleQueue()  # as many as work side by side, connected before

        def create(name: str) -> wire.Operation:
            client = free.get()
            try:
                created = slivers.ask(client, {**self._request(name, series), "warm": True})
            finally:
                free.put(client)
            slivers.wait_for_banner(name, series.type, created["slice"]["slivers"][0], self._stop)
            return created["operation"]

        with ExitStack() as stack:
            for _ in range(self._parameters.parallel):
                client = stack.enter_context(self._parameters.connect())
                client.nodes.get(self._parameters.node)
                free.put(client)
            begun = time.monotonic()
            found, trouble = self._side_by_side(create, names, "burst", progress)
            took = time.monotonic() - begun
        if trouble is not None:
            raise trouble
        for name, operation in found.items():
            slivers.wait(self._client, operation, self._stop)
            check_warm(self._client, name)
        cleanup.delete(self._client, self._parameters.prefix, progress)
        return {"burst": [took / count]}

    def _await_spare(self, asked: wire.SliceRequest, progress: Progress, count: int = 1) -> None:
        """Wait until the node has `count` spares for a request, and is idle.

        Raises Failed, or Over if `stop` is set.
        """
        boot = f" boot={asked['boot']}" if asked.get("boot") else ""
        wanted = f"{asked['type']} image={asked['image']} memory={asked['memory']}{boot} count={count}"
        begun, most, told = time.monotonic(), _SPARE_SECONDS[asked["type"]] * count, False
        unfit_since = math.inf
        while True:
            if self._client.nodes.get(self._parameters.node)["used"].get("spares", 0) < count:
                unfit_since = math.inf
            elif slivers.dry_run(self._client, asked).get("warm"):
                break
            else:
                unfit_since = min(unfit_since, time.monotonic())
            slivers.check(self._stop)
            waited = time.monotonic() - begun
            if waited > _SPARE_TOLD and not told:
                progress.say(f"waiting at most {most:.0f} s for spare slivers of the node: {wanted}")
                told = True
            if waited > most or time.monotonic() - unfit_since > _SPARE_UNFIT:
                hint = f"an admin sets spares.keep on the node, such as `{wanted}`"
                raise Failed("the node does not keep enough spares that fit these slices", hint=hint)
            self._stop.wait(_SPARE_PAUSE)
        self._stop.wait(_SETTLED)

    def _side_by_side(
        self, job: Callable[[str], slivers.Result], names: Sequence[str], what: str, progress: Progress
    ) -> tuple[dict[str, slivers.Result], SlicemgrError | None]:
        def done(count: int) -> None:
            progress.inside(what, count, len(names))
            self._watch.look()

        return slivers.side_by_side(job, names, self._parameters.parallel, self.interrupt, done)

    def _create(self, series: Series, name: str) -> tuple[dict[str, float], wire.Sliver]:
        """Seconds of each phase since the request, without the phases that were not observed; and the sliver."""
        with self._parameters.connect() as client:
            return timed_create(client, self._request(name, series), self._stop)

    def _inside(self, name: str, sliver: wire.Sliver) -> inside.Times:
        slivers.check(self._stop)
        words = slivers.login(name, sliver, self._key.file)
        return inside.measure(words, sliver, self._parameters.ping, self._stop)

    def _request(self, name: str, series: Series) -> wire.SliceRequest:
        parameters = self._parameters
        return slivers.request(
            name, series.type, series.image, parameters.node, self._key.line, memory=parameters.memory, boot=series.boot
        )

    def _available(self) -> int:
        """Bytes of memory that are available in the node's next facts."""
        return cleanup.next_look(self._client, self._parameters.node).memory_available

    def _weigh(self, names: Sequence[str], before: int) -> Json:
        """The costs per sliver, from the node's next facts, which were observed after the last sliver had started."""

        def usage() -> list[wire.Usage]:
            return [self._client.slices.get(name)["slivers"][0]["usage"] for name in (names[0], names[-1])]

        known = usage()
        memory = (before - self._available()) / len(names)
        own = slivers.mean_usage(slivers.next_usage(known, usage, self._stop))
        return {"available_each": memory, **{f"{name}_each": value for name, value in own.items()}}


def timed_create(
    client: Client, asked: wire.SliceRequest, stop: threading.Event
) -> tuple[dict[str, float], wire.Sliver]:
    """Create a slice of one sliver, up to the banner of sshd.

    Returns the seconds of each phase since the request, without the phases that were not observed, and the sliver.
    Raises the errors of `slivers.ask`, `wait` and `wait_for_banner`.
    """
    slivers.check(stop)
    begun, times = time.monotonic(), dict[str, float]()
    created = slivers.ask(client, asked)
    times["accepted"] = time.monotonic() - begun

    def look(operation: wire.Operation) -> None:
        if speaks(operation):
            times.setdefault("console", time.monotonic() - begun)

    ended = slivers.wait(client, created["operation"], stop, look if asked["type"] == "kvm" else None)
    times["operation"] = time.monotonic() - begun
    times |= reached(ended)
    slivers.wait_for_banner(asked["name"], asked["type"], created["slice"]["slivers"][0], stop)
    times["banner"] = time.monotonic() - begun
    return times, client.slices.get(asked["name"])["slivers"][0]


def warm_create(client: Client, asked: wire.SliceRequest, stop: threading.Event) -> dict[str, float]:
    """Create a slice of one sliver that takes a spare: seconds since the request until it was accepted, until sshd's
    banner was read, and until the operation had ended, and those of the agent's own work in between.

    Raises the errors of `timed_create`, and Failed if the slice took no spare.
    """
    slivers.check(stop)
    begun, times = time.monotonic(), dict[str, float]()
    created = slivers.ask(client, asked)
    times["accepted"] = time.monotonic() - begun
    slivers.wait_for_banner(asked["name"], asked["type"], created["slice"]["slivers"][0], stop)
    times["banner"] = time.monotonic() - begun
    ended = slivers.wait(client, created["operation"], stop)
    times["operation"] = time.monotonic() - begun
    check_warm(client, asked["name"])
    times["agent"] = sum(one.get("seconds") or 0.0 for one in ended["steps"])
    return times


def check_warm(client: Client, name: str) -> None:
    """Raises Failed unless the slice took a spare."""
    if not client.slices.get(name).get("warm"):
        raise Failed(f"{name} took no spare", hint="another request was first; try again")


def speaks(operation: wire.Operation) -> bool:
    """Whether the steps of a creation report output of the guest on its console."""
    return any(one["name"] == "ssh" and one["state"] == "running" and one["detail"] for one in operation["steps"])


def reached(operation: wire.Operation) -> dict[str, float]:
    """Seconds until the root existed, `prepared`, and until the domain ran, `started`, from the steps of a creation."""
    for step in operation["steps"]:
        began, took = step.get("began"), step.get("seconds")
        if step["name"] == "domain" and began is not None and took is not None:
            return {"prepared": began, "started": began + took}
    return {}


def _gathered(found: Iterable[Mapping[str, float | list[float]]]) -> dict[str, list[float]]:
    """The values of all slivers by phase."""
    gathered: dict[str, list[float]] = {}
    for times in found:
        for phase, value in times.items():
            gathered.setdefault(phase, []).extend(value if isinstance(value, list) else [value])
    return gathered
