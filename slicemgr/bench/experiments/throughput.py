"""The paper's table 2: iperf3 between two nodes, and between their slivers through NAT at one and DNAT at the other.

The client is at the far end, the peer, and connects to a port of the near node. If the peer has a service, too, both
ends have slivers; otherwise the client runs on the peer itself. A second part measures many pairs at once.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slicemgr import wire
from slicemgr.bench.frame import cleanup, guard, iperf, slivers
from slicemgr.bench.frame.endpoints import End, Link
from slicemgr.bench.frame.experiment import Json, Progress, StepOf, Stopped
from slicemgr.client import Client
from slicemgr.client.settings import read_settings
from slicemgr.config import parse_rate, parse_size
from slicemgr.errors import SlicemgrError, invalid

NAME = "throughput"
VANILLA = "vanilla"  # between the nodes themselves, as the paper calls it
UNLIMITED = "unlimited"
DIRECTIONS = ("in", "out")  # data to the near node, and from it
_RECORDED = {"types": "kinds"}  # the names in run.json of the fields of Workload that differ
_PARALLEL = 4  # slivers that are created at the same time
_TALKER = guard.Need(memory=24 * slivers.MIB, pids=18)  # the programs of one pair, on both ends


@dataclass(frozen=True, slots=True)
class Workload:
    """The parameters without the places.

    links: `unlimited` or a rate. talkers: the numbers of concurrent pairs, measured one after the other. seconds: of
    each measurement, of which the first `discard` do not count. plain: measure the talkers also between the nodes.
    """

    types: Sequence[str]
    images: Mapping[str, str]
    links: Sequence[str] = (UNLIMITED, "1Gbit")
    talkers: Sequence[int] = (1, 10, 50, 200)
    directions: Sequence[str] = ("in",)
    seconds: int = 420
    discard: int = 180
    interval: int = 10
    streams: int = 1
    congestion: str = ""
    plain: bool = False
    memory: str = "256M"
    port: int = 5201
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class ThroughputParameters:
    """The parameters of a run.

    near, far: the two nodes; far.connect is None if the peer has no service. address: of the near node. key: the line
    of the public key, and the content of the private key. prefix: of the names of all slices. peer: the path of the
    client.json of the peer's service.
    """

    workload: Workload
    near: End
    far: End
    address: str
    key: tuple[str, bytes]
    prefix: str
    peer: str = ""

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them, `clean` reads them."""
        words = {"node_exec": shlex.join(self.near.words), "peer_exec": shlex.join(self.far.words)}
        where = {"node": self.near.node, "peer": self.peer, "peer_node": self.far.node, "address": self.address}
        workload = {_RECORDED.get(name, name): value for name, value in asdict(self.workload).items()}
        workload["images"] = {sliver_type: self.workload.images[sliver_type] for sliver_type in self.workload.types}
        return {**where, **words, **workload}


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement. count: number of pairs; 0: one pair with all streams, for table 2."""

    link: str
    repeat: int
    direction: str
    way: str
    count: int

    @property
    def pairs(self) -> int:
        return self.count or 1


def turns(workload: Workload) -> dict[str, Turn]:
    """The measurements by the ids of the steps, such as `1Gbit/2/in/lxc`, or `1Gbit/2/in/lxc*50` for 50 pairs."""
    found: dict[str, Turn] = {}
    talking = ([VANILLA] if workload.plain else []) + [one for one in workload.types if one == "lxc"]
    for link in workload.links:
        for repeat in range(1, workload.repeat + 1):
            for direction in workload.directions:
                head = f"{link}/{repeat}/{direction}"
                for way in (VANILLA, *workload.types):
                    found[f"{head}/{way}"] = Turn(link, repeat, direction, way, 0)
                for way in talking:
                    for count in workload.talkers:
                        found[f"{head}/{way}*{count}"] = Turn(link, repeat, direction, way, count)
    return found


def steps(workload: Workload) -> list[StepOf[Turn]]:
    found = []
    for id_, one in turns(workload).items():
        about = f", {one.count} at once" if one.count else ""
        title = f"{one.way}{about}, {one.link}, {one.direction}" + (f" ({one.repeat})" if workload.repeat > 1 else "")
        series = f"{one.link}/{one.repeat}/{one.direction}/{one.way}" + ("*" if one.count else "")
        talks = iperf.How("", workload.seconds, interval=workload.interval).whole(one.pairs)
        found.append(StepOf(id_, title, one, talks + 5 + one.count / 2, series))
    return found


class Throughput:
    """The throughput experiment; see `experiment.Experiment`."""

    def __init__(self, parameters: ThroughputParameters) -> None:
        self._parameters = parameters
        self._key = slivers.Key(parameters.key)
        self._clients = {one: one.connect() for one in (parameters.near, parameters.far) if one.connect is not None}
        self._cpus: dict[End, int] = {}
        self._made: dict[tuple[End, str], list[tuple[str, wire.Sliver]]] = {}  # that answer, by node, type
        self._link = Link(parameters.near, parameters.far, parameters.address)
        self._rate: int | None = None
        self._stop = threading.Event()
        self._watch = slivers.Watch(self.state)

    def steps(self) -> list[StepOf[Turn]]:
        return steps(self._parameters.workload)

    def state(self) -> guard.State:
        """The state of the node with less free memory. Its load is set to 0, because the previous step caused it."""
        found = [guard.state(client.nodes.get(end.node)["facts"]) for end, client in self._clients.items()]
        return replace(min(found, key=lambda one: one.memory_available), load=0.0)

    def need(self, step: StepOf[Turn]) -> guard.Need:
        """The sum of both ends, because both may be on one host."""
        turn = step.work
        programs = guard.Need(memory=_TALKER.memory * turn.pairs, pids=_TALKER.pids * turn.pairs)
        if turn.way == VANILLA:
            return programs
        lacking = sum(turn.pairs - len(self._made.get((end, turn.way), ())) for end in self._clients)
        own = slivers.cost(turn.way, parse_size(self._parameters.workload.memory, "--memory"), max(0, lacking))
        return guard.Need(programs.memory + own.memory, own.disk, programs.pids + own.pids)

    def prepare(self, done: Mapping[str, Json], todo: Sequence[StepOf[Turn]], progress: Progress) -> list[str]:
        """Raises Refused if both ends are one, the link is down, or slivers do not fit. Deletes leftover slices."""
        parameters = self._parameters
        if parameters.near.words == parameters.far.words:
            hint = "words that start programs there, such as 'ssh HOST' or 'tools/nodebox enter BOX --'"
            raise invalid("--peer-exec", "both ends are in the same place", hint)
        iperf.make_room(max(one.work.pairs for one in todo))
        self._fits([one.work for one in todo])
        self._link.find()
        self.clean(progress)
        self._try()
        return [f"resumed at {todo[0].title}: slivers and link were made again, which is not measured"] if done else []

    def run(self, step: StepOf[Turn], progress: Progress) -> Json:
        turn, workload = step.work, self._parameters.workload
        pairs = self._pairs(turn, progress)
        rate = None if turn.link == UNLIMITED else parse_rate(turn.link, "--link")
        if rate != self._rate:
            self._link.shape(rate)
            self._rate = rate
        streams = 1 if turn.count else workload.streams
        counted = (workload.seconds, workload.discard, workload.interval, streams)
        how = iperf.How(self._parameters.address, *counted, turn.direction == "out", workload.congestion)
        found = iperf.measure(pairs, how, progress.inside)
        return {**asdict(turn), "pairs": found}

    def find(self) -> None:
        """Find the link, so that `clean` removes its limit. Raises Refused if there is none."""
        self._link.find()

    def interrupt(self) -> None:
        self._stop.set()

    def clean(self, progress: Progress) -> None:
        """Remove the limit of the link first, because it affects other users. Without `find` there is no limit."""
        try:
            if self._link.found:
                self._link.free()
            self._rate = None
        finally:
            for client in self._clients.values():
                cleanup.delete(client, self._parameters.prefix, progress)
            self._made = {}

    def close(self) -> None:
        """Remove the limit of the link, also if slices are kept, and close the connections."""
        with suppress(SlicemgrError):
            if self._rate is not None:
                self._link.free()
        for client in self._clients.values():
            client.close()
        self._key.close()

    # before the first step

    def _fits(self, todo: Sequence[Turn]) -> None:
        """Raises Refused if another experiment has slices, an image is missing, or ports do not suffice."""
        for end, client in self._clients.items():
            shown = client.nodes.get(end.node)
            guard.state(shown["facts"])
            self._cpus[end] = shown["capacity"]["cpus"]
            cleanup.refuse_others(client, self._parameters.prefix)
            for sliver_type in self._parameters.workload.types:
                most = max((one.pairs for one in todo if one.way == sliver_type), default=0)
                planned = slivers.dry_run(client, self._request(end, sliver_type, f"{self._parameters.prefix}try"))
                slivers.ports_suffice(client, end.node, planned, most, "--talkers")

    def _try(self) -> None:
        """Test the connection between the nodes and the limit of the link.

        Raises Refused, or Failed with the error of iperf3.
        """
        rates = [parse_rate(one, "--link") for one in self._parameters.workload.links if one != UNLIMITED]
        self._link.shape(min(rates, default=None))
        self._link.shape(None)
        how = iperf.How(self._parameters.address, 1, interval=1, congestion=self._parameters.workload.congestion)
        iperf.measure([self._plain(0)], how, lambda *_: None)

    # pairs

    def _plain(self, index: int) -> iperf.Pair:
        near, far = self._parameters.near, self._parameters.far
        return iperf.Pair(f"{VANILLA} {index + 1}", near.words, far.words, self._parameters.workload.port + index)

    def _pairs(self, turn: Turn, progress: Progress) -> list[iperf.Pair]:
        """The pairs of a measurement, whose slivers are created if missing. Raises Stopped if not all start."""
        if turn.way == VANILLA:
            return [self._plain(index) for index in range(turn.pairs)]
        for end in self._clients:
            self._ensure(end, turn.way, turn.pairs, progress)
        servers = self._made[self._parameters.near, turn.way][: turn.pairs]
        clients = self._made.get((self._parameters.far, turn.way), [])[: turn.pairs]
        found = []
        for index, (name, sliver) in enumerate(servers):
            words = tuple(self._login(clients[index])) if clients else self._parameters.far.words
            own = tuple(self._login((name, sliver)))
            found.append(iperf.Pair(f"{turn.way} {index + 1}", own, words, sliver["ports"]["first"] + 1))
        return found

    def _login(self, one: tuple[str, wire.Sliver]) -> list[str]:
        return slivers.login(*one, self._key.file)

    def _ensure(self, end: End, sliver_type: str, count: int, progress: Progress) -> None:
        made = self._made.setdefault((end, sliver_type), [])
        names = [f"{self._prefix(end, sliver_type)}{index:03}" for index in range(len(made), count)]
        if not names:
            return

        def done(count: int) -> None:
            progress.inside(f"create on {end.node}", count, len(names))
            self._watch.look()

        found, trouble = slivers.side_by_side(
            lambda name: self._one(end, sliver_type, name), names, _PARALLEL, self.interrupt, done
        )
        if trouble is None:
            made += [(name, found[name]) for name in names]
            return
        with suppress(SlicemgrError):  # the first error is reported; `clean` deletes all slices
            cleanup.delete(self._clients[end], self._prefix(end, sliver_type), progress, but={name for name, _ in made})
        if trouble.code not in slivers.ENOUGH:
            raise trouble
        raise Stopped(f"of {count} {sliver_type} slivers {len(made) + len(found)} came up on {end.node}: {trouble}")

    def _prefix(self, end: End, sliver_type: str) -> str:
        """The prefix of the slices of one end, because both ends may be nodes of one service."""
        return f"{self._parameters.prefix}{sliver_type}-{'n' if end == self._parameters.near else 'p'}"

    def _one(self, end: End, sliver_type: str, name: str) -> wire.Sliver:
        assert end.connect is not None
        with end.connect() as client:
            slivers.check(self._stop)
            created = slivers.ask(client, self._request(end, sliver_type, name))
            slivers.wait(client, created["operation"], self._stop)
            sliver = client.slices.get(name)["slivers"][0]
            slivers.wait_for_banner(name, sliver_type, sliver, self._stop)
            return sliver

    def _request(self, end: End, sliver_type: str, name: str) -> wire.SliceRequest:
        """The request of a sliver that may use every core, so that its CPU quota does not limit the rate."""
        workload, boot = self._parameters.workload, "direct" if sliver_type == "kvm" else ""
        more: dict[str, Any] = {"memory": workload.memory, "cpu": self._cpus[end], "ports": 2, "boot": boot}
        return slivers.request(name, sliver_type, workload.images[sliver_type], end.node, self._key.line, **more)


def from_recorded(
    recorded: Mapping[str, Any], connect: Callable[[], Client], key: tuple[str, bytes], prefix: str
) -> ThroughputParameters:
    """The parameters from run.json. Raises Refused."""
    names = {name: _RECORDED.get(name, name) for name in Workload.__dataclass_fields__}
    own = {name: recorded[there] for name, there in names.items() if there in recorded}
    near = End(connect, recorded["node"], tuple(shlex.split(recorded["node_exec"])))
    peer, node = str(recorded["peer"]), str(recorded["peer_node"])
    if node == near.node and not peer:
        raise invalid("--peer-node", f"{node} is the node itself", "another one of this service, or --peer FILE")
    there = peer_client(peer) if peer else connect if node else None
    far = End(there, node, tuple(shlex.split(recorded["peer_exec"])))
    return ThroughputParameters(Workload(**own), near, far, recorded["address"], key, prefix, peer)


def peer_client(file: str) -> Callable[[], Client]:
    """A function that makes clients of the service in a file like client.json. Raises Refused if it is invalid."""
    found = read_settings(Path(file), "--peer")
    return lambda: Client(found.url, found.token, source=found.source)


def clean(info: Mapping[str, Any], progress: Progress) -> None:
    """Delete what a killed run left in other places than this node: the slices of the peer, the limit of the link."""
    left = Throughput(from_recorded(info["parameters"], Client.local, ("", b""), info["prefix"]))
    with closing(left):
        try:
            left.find()
        finally:
            left.clean(progress)
