"""The same work by slicemgr and by other installed systems: create to ssh banner, memory, disk, iperf3, delete.

One step is one repetition of one system: its containers are created from the same image on the same pool, each with
its forwarded ports, measured, and deleted before the next system begins. The order of the systems differs between
repetitions.

The experiment runs as root on the node itself, and not in the agent: daemons, bridges and programs of other systems
that run as root do not belong to the service of a testbed. So no request starts them, only root on the node can, and
they end together with slicectl (see `peers.namespaces`), whereas an operation of the agent would continue.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slicemgr import names, wire
from slicemgr.bench.frame import cleanup, guard, iperf, slivers
from slicemgr.bench.frame.experiment import Json, Progress, Step, StepOf, Stopped
from slicemgr.bench.frame.one_node import OneNode
from slicemgr.bench.peers import namespaces, systems
from slicemgr.bench.peers.kinds import PEERS, Cost, version
from slicemgr.bench.peers.namespaces import PEER_SIDE, Sandbox
from slicemgr.bench.peers.sides import Ours, Route, Side, Target, Theirs, answers
from slicemgr.client import Client
from slicemgr.config import parse_size
from slicemgr.drivers import command
from slicemgr.errors import Code, Failed, Refused, SlicemgrError

NAME = "peers"
OURS = "slicemgr"
LABELS = {OURS: "slicemgr", **{key: peer.label for key, peer in PEERS.items()}}
_OURS_COST = Cost(0.3, 6 << 20, 4)
_BANNER = 60.0  # seconds within which the ssh banner must arrive
_SETTLE = 2.0  # seconds from the last banner until the memory is read
_CLEANED = 300.0  # seconds that the pool may take to free the space of deleted files
_BESIDES = 60.0  # estimated seconds of a step without its containers
_MARGIN = 60.0  # seconds beyond an iperf3 measurement, for starting and ending programs
_IMPORT = 1200.0  # seconds that a peer may take to import the image
_ABSENT = "absent"
_UNPACKED = 3 << 29  # bytes of an image during its import into a peer, packed and unpacked
_PLAIN_PORT = 5201
_GIB = 1 << 30
_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class PeersParameters:
    """The parameters of a run.

    connect: makes a client; each thread has its own. prefix: of the names of all slices. pool: the directory of
    the node's pool. peers: by their keys in PEERS. seconds: of each iperf3 measurement, 0 for none.
    """

    connect: Callable[[], Client]
    node: str
    ssh_key: str
    prefix: str
    pool: Path
    peers: tuple[str, ...] = tuple(PEERS)
    image: str = "debian-12"
    count: int = 50
    ports: int = 20
    parallel: int = 4
    memory: str = "256M"
    seconds: int = 5
    repeat: int = 1
    seed: int = 1

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        kept = ("node", "image", "count", "ports", "parallel", "memory", "seconds", "repeat", "seed")
        return {**{name: getattr(self, name) for name in kept}, "peers": " ".join(self.peers)}

    @property
    def request(self) -> wire.SliceRequest:
        more = {"memory": self.memory, "ports": self.ports}
        return slivers.request("", "lxc", self.image, self.node, self.ssh_key, **more)


@dataclass(frozen=True, slots=True)
class Turn:
    """One repetition of one system. missing: the programs that are not installed; the step only records them."""

    key: str
    missing: tuple[str, ...] = ()


def steps(parameters: PeersParameters, missing: Mapping[str, Sequence[str]]) -> list[StepOf[Turn]]:
    """The steps. Examples of ids: `2/docker` in repetition 2; `absent/lxd`: LXD is not installed.

    missing: the missing programs, by peer.
    """
    found = [
        StepOf(
            f"{_ABSENT}/{key}",
            f"{LABELS[key]}: not installed",
            Turn(key, tuple(missing[key])),
            0.0,
            f"{_ABSENT}/{key}",
            always=True,
        )
        for key in parameters.peers
        if missing.get(key)
    ]
    there = [OURS, *(key for key in parameters.peers if not missing.get(key))]
    for turn in range(1, parameters.repeat + 1):
        about = f" ({turn} of {parameters.repeat})" if parameters.repeat > 1 else ""
        for key in random.Random(f"{parameters.seed}/{turn}").sample(there, len(there)):
            seconds = _BESIDES + parameters.count * _cost(key).seconds + 3 * parameters.seconds
            found.append(
                StepOf(f"{turn}/{key}", f"{parameters.count} by {LABELS[key]}{about}", Turn(key), seconds, key)
            )
    return found


class Peers(OneNode):
    """See `experiment.Experiment`. A failure of one system stops its series only."""

    def __init__(self, parameters: PeersParameters) -> None:
        super().__init__(parameters.connect(), parameters.node, parameters.prefix)
        self._parameters = parameters
        self._missing = {key: PEERS[key].missing() for key in parameters.peers}
        self._base = Path()
        self._sandbox: Sandbox | None = None
        self._watch = slivers.Watch(self.state)

    def steps(self) -> list[StepOf[Turn]]:
        return steps(self._parameters, self._missing)

    def need(self, step: StepOf[Turn]) -> guard.Need:
        key = step.work.key
        if step.work.missing:
            return guard.Need()
        cost, image = _cost(key), 0 if key == OURS else _UNPACKED
        return guard.Need(
            cost.memory * self._parameters.count,
            (1 << 20) * self._parameters.count + image,
            cost.pids * self._parameters.count,
        )

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Raises Refused unless root runs it on the node, without other experiments, with enough ports and iperf3."""
        parameters, client = self._parameters, self._client
        self._base = base(client, parameters.node, parameters.pool, parameters.image)
        self.state()
        wanted = (*namespaces.PROGRAMS, *(("iperf3",) if parameters.seconds else ()))
        lacking = [one for one in wanted if systems.find(one) is None]
        if lacking:
            hint = "tools/packages.txt names what a node needs"
            raise Refused(Code.UNAVAILABLE, f"not installed here: {', '.join(lacking)}", hint=hint)
        cleanup.refuse_others(client, parameters.prefix)
        planned = slivers.dry_run(client, {**parameters.request, "name": f"{parameters.prefix}try"})
        slivers.ports_suffice(client, parameters.node, planned, parameters.count, "--count")
        self.clean(progress)
        return []

    def run(self, step: StepOf[Turn], progress: Progress) -> Json:
        key = step.work.key
        if step.work.missing:
            return {"system": key, "missing": self._missing[key], "install": PEERS[key].package}
        data: Json = {"system": key, "version": version(PEERS[key]) if key in PEERS else ""}
        try:
            try:
                self._measure(key, data, progress)
            finally:
                self._leave(key, progress)
        except SlicemgrError as error:
            raise Stopped(_reason(key, self._parameters.count, data, error), data) from error
        except OSError as error:  # a file of a peer that could not be written, or has an unexpected type
            raise Stopped(f"{LABELS[key]}: {error}", data) from error
        return data

    def interrupt(self) -> None:
        """Ends all programs of a peer at once."""
        self._stop.set()
        if self._sandbox is not None:
            self._sandbox.end()

    def clean(self, progress: Progress) -> None:
        try:
            namespaces.remove(self._parameters.pool, self._parameters.prefix)
        finally:
            super().clean(progress)

    # one system

    def _measure(self, key: str, data: Json, progress: Progress) -> None:
        parameters = self._parameters
        seconds = _IMPORT + parameters.count * 60 + 6 * (parameters.seconds + _MARGIN)
        with Sandbox(parameters.pool, parameters.prefix, seconds) as sandbox:
            self._sandbox = sandbox
            side = self._side(key, sandbox)
            side.begin()
            self._look(progress, cleaned=True)
            before = self._look(progress)
            made, trouble = self._create(side, data, progress)
            if trouble is not None and not made:
                raise trouble
            self._stop.wait(_SETTLE)
            after = self._look(progress)
            data.update(memory=before[0] - after[0], disk=before[1] - after[1], charged=side.charged())
            data["reached"] = self._reached(made, progress)
            if parameters.seconds:
                data["rates"], data["work"] = self._rates(side, sandbox, made[-1], progress)
            begun = time.monotonic()
            side.delete(made, progress)
            data["delete_seconds"] = time.monotonic() - begun
            if trouble is not None:  # the containers that started were measured
                raise trouble

    def _side(self, key: str, sandbox: Sandbox) -> Side:
        parameters = self._parameters
        if key == OURS:
            return Ours(parameters.connect, parameters.request, sandbox)
        work = systems.Work(parse_size(parameters.memory, "--memory"), parameters.ports)
        return Theirs(PEERS[key], work, self._base, sandbox, parameters.parallel)

    def _leave(self, key: str, progress: Progress) -> None:
        self._sandbox = None
        namespaces.remove(self._parameters.pool, self._parameters.prefix)
        if key == OURS:
            cleanup.delete(self._client, self._parameters.prefix, progress)

    def _look(self, progress: Progress, *, cleaned: bool = False) -> tuple[int, int]:
        """Free bytes of memory (including swap) and of the pool. cleaned: wait until deleted files are freed."""
        if cleaned:
            progress.say("waiting until the pool has freed the space of deleted files")
        for what in ("filesystem", "subvolume") if cleaned else ("filesystem",):  # the first wakes the cleaner
            try:
                command.run(["btrfs", what, "sync", self._parameters.pool], timeout=_CLEANED)
            except command.CommandFailed as error:
                raise Failed(f"btrfs {what} sync: {error.stderr or 'it takes too long'}") from error
        there = os.statvfs(self._parameters.pool)
        return free_memory(Path("/proc/meminfo").read_text()), there.f_bfree * there.f_frsize

    def _create(self, side: Side, data: Json, progress: Progress) -> tuple[list[Target], SlicemgrError | None]:
        """The containers that started, in the order of their names; and the first error, which ends the creation."""
        begun, seconds, count = time.monotonic(), 0.0, self._parameters.count

        def done(made: int) -> None:
            nonlocal seconds
            seconds = time.monotonic() - begun
            progress.inside("create", made, count)
            self._watch.look()

        job = partial(self._one, side)
        found, trouble = slivers.side_by_side(job, range(count), self._parameters.parallel, self.interrupt, done)
        data.update(n=len(found), creates=[times for _, times in found.values()], seconds=seconds)
        return [target for target, _ in found.values()], trouble

    def _one(self, side: Side, index: int) -> tuple[Target, dict[str, float]]:
        slivers.check(self._stop)
        begun = time.monotonic()
        target = side.create(index, self._stop)
        times = {"made": time.monotonic() - begun}
        slivers.await_banner(target.name, lambda: answers(target), _BANNER, self._stop, why=lambda: side.why(target))
        times["banner"] = time.monotonic() - begun
        return target, times

    def _reached(self, made: Sequence[Target], progress: Progress) -> int:
        """The number of containers that answer again when all of them run."""
        reached = 0
        with ThreadPoolExecutor(self._parameters.parallel) as threads:
            for done, one in enumerate(threads.map(answers, made), 1):
                reached += one
                progress.inside("reach", done, len(made))
        return reached

    def _rates(
        self, side: Side, sandbox: Sandbox, target: Target, progress: Progress
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Of the plain link, into the container, and out of it: bits per second, and seconds of processor per GiB."""
        plain = Route(sandbox.words([]), (), PEER_SIDE, _PLAIN_PORT)
        route = side.route(target)
        rates: dict[str, float] = {}
        work: dict[str, float] = {}
        for name, way, reverse in (("plain", plain, False), ("in", route, False), ("out", route, True)):
            rates[name], work[name] = rate(way, self._parameters.seconds, reverse=reverse)
            progress.inside("throughput", len(rates), 3)
        return rates, work


def refuse_elsewhere(client: Client, node: str) -> wire.Node:
    """The node. Raises Refused if this process does not run as root on the node itself."""
    if os.geteuid() != 0:
        message = "peers are started as root: only root on the node may run them"
        raise Refused(Code.DENIED, message, hint="`sudo slicectl bench …` on the node itself")
    shown = client.nodes.get(node)
    if shown["facts"].get("boot_id") != Path("/proc/sys/kernel/random/boot_id").read_text().strip():
        raise Refused(Code.INVALID, f"{node} is another machine than this one", hint="run it there", field="--node")
    return shown


def base(client: Client, node: str, pool: Path, image: str) -> Path:
    """The directory of the image's files. Raises Refused if this process does not run where the pool is mounted."""
    refuse_elsewhere(client, node)
    path = names.base_dir(pool, client.images.get(image)["sha256"])
    if not path.is_dir():
        hint = "run it on the node, where the pool is mounted"
        raise Refused(Code.INVALID, f"{path} does not exist here", hint=hint)
    return path


def free_memory(meminfo: str) -> int:
    """Bytes of memory that are available without swapping plus bytes of free swap, from /proc/meminfo."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))


def busy(stat: str) -> float:
    """Seconds of work of all processors since the boot, from /proc/stat: neither idle nor waiting for disks."""
    user, nice, system, _, _, *interrupts = (int(one) for one in stat.partition("\n")[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def rate(route: Route, seconds: int, *, reverse: bool) -> tuple[float, float]:
    """Bits per second that arrived, and seconds of processor per GiB. Raises Failed with the error of iperf3.

    The processor time is that of the whole node, because the kernel forwards packets in the name of any program.
    """
    port, limit = str(route.port), seconds + _MARGIN
    server = [*route.server, *iperf.server_words(route.port)]
    client = [*route.client, "iperf3", "-c", route.address, "-p", port, "-t", str(seconds), "-i", "0", "-J"]
    client += ["-R"] if reverse else []
    reason = "no rate in its report"
    with tempfile.TemporaryFile() as output:
        worked = 0.0
        try:
            with command.converse(server, timeout=2 * limit) as listening:
                iperf.await_listening(listening)
                before = busy(_STAT.read_text())
                command.run(client, timeout=limit, stdout=output)
                worked = busy(_STAT.read_text()) - before
        except command.CommandFailed as error:
            reason = str(error)
        output.seek(0)
        report = output.read().decode(errors="replace")
    found = iperf.figures(report, 0, seconds)
    if found is None:
        raise Failed(f"iperf3 to {route.address}, port {port}: {iperf.complaint(report) or reason}")
    arrived = float(found["arrived"])
    return arrived, worked / max(1.0, arrived * seconds / 8) * _GIB


def _reason(key: str, count: int, data: Json, error: SlicemgrError) -> str:
    came = f"of {count} {data['n']} came up: " if data.get("n", count) < count else ""
    return f"{LABELS[key]}: {came}{error}" + (f" ({error.hint})" if error.hint else "")


def _cost(key: str) -> Cost:
    return PEERS[key].cost if key in PEERS else _OURS_COST
