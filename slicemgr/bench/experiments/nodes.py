"""Creates on nodes that have joined, compared with creates on the service's own node, in turns.

Besides, the time of the placement of slivers, until a node has all its rows again, and until all nodes have an image. A
round creates one slice on each node, in an order that is derived from the seed. The round trip to a node is the
shortest time to open a TCP connection to the port of its sliver, from where slicectl runs: run it on the machine of the
service. An image is pushed to one node alone, then to all others at once; the service counts what it uploads
(`slicemgr_web_image_bytes_total`).
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicemgr import wire
from slicemgr.bench.frame import cleanup, guard, slivers
from slicemgr.bench.frame.experiment import Json, Progress, Step, StepOf
from slicemgr.client import Client
from slicemgr.errors import Code, Failed, Refused

NAME = "nodes"
CREATE, PLACEMENT, RESYNC, IMAGE = "create", "placement", "resync", "image"
IMAGE_BYTES = "slicemgr_web_image_bytes"  # the counter of the service
FETCH = "fetch"  # the step in which a node fetches an image
_CONNECTIONS = 5  # that measure a round trip
_TIMEOUT = 5.0  # seconds of one of them
_IMAGE_SECONDS = 3600.0
_RESYNC_SECONDS = 120.0
_LOOK = 0.02  # seconds between two queries of a node
_GUESS = 0.6  # estimated seconds of a create and a delete, for the dry run


@dataclass(frozen=True, slots=True)
class NodesParameters:
    """The parameters of a run.

    connect: makes a client. local: the node to compare with. remote: the others. key: the line of the public key.
    rounds: of creates. placements: plans of each kind. resyncs: of each node. file: an image to spread; None: none.
    """

    connect: Callable[[], Client]
    local: str
    remote: tuple[str, ...]
    key: str
    prefix: str
    image: str = "debian-12"
    rounds: int = 20
    placements: int = 50
    resyncs: int = 5
    memory: str = "256M"
    seed: int = 1
    file: Path | None = None

    @property
    def recorded(self) -> Json:
        """The parameters as run.json stores them; --resume compares them."""
        names = ("local", "image", "rounds", "placements", "resyncs", "memory", "seed")
        found = {name: getattr(self, name) for name in names}
        return {**found, "nodes": " ".join(self.remote), "file": self.file.name if self.file else ""}

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.local, *self.remote)


@dataclass(frozen=True, slots=True)
class Work:
    """kind: CREATE, PLACEMENT, RESYNC or IMAGE. nodes: of a round, in its order."""

    kind: str
    nodes: tuple[str, ...] = ()


def steps(parameters: NodesParameters) -> list[StepOf[Work]]:
    """The steps. Example of an id: `create/3`, the third round."""
    found = []
    for number in range(1, parameters.rounds + 1):
        order = random.Random(f"{parameters.seed}/{number}").sample(parameters.nodes, len(parameters.nodes))
        title = f"a create on each node ({number} of {parameters.rounds})"
        found.append(StepOf(f"{CREATE}/{number}", title, Work(CREATE, tuple(order)), _GUESS * len(order), CREATE))
    if parameters.placements:
        title = f"{parameters.placements} plans with and without placement"
        found.append(StepOf(PLACEMENT, title, Work(PLACEMENT), 0.05 * parameters.placements, PLACEMENT))
    if parameters.resyncs:
        title = f"{parameters.resyncs} times all rows for each node"
        found.append(StepOf(RESYNC, title, Work(RESYNC), 0.5 * parameters.resyncs, RESYNC))
    if parameters.file is not None:
        found.append(StepOf(IMAGE, f"{parameters.file.name} to all nodes", Work(IMAGE), 300.0, IMAGE))
    return found


def local_node(nodes: Sequence[wire.Node]) -> str:
    """The node whose agent uses the database of the service. Raises Refused if there is not exactly one."""
    found = [one["name"] for one in nodes if one.get("beat_at") is None and one["agent_seen_at"] is not None]
    if len(found) != 1:
        why = "no node uses the database of the service" if not found else f"several nodes use it: {', '.join(found)}"
        hint = "--local NODE names the node to compare with"
        raise Refused(Code.CONFLICT, f"there is no node to compare with: {why}", hint=hint, field="--local")
    return found[0]


def joined_nodes(nodes: Sequence[wire.Node]) -> tuple[str, ...]:
    """The nodes that have joined and report. Raises Refused if there is none."""
    found = tuple(one["name"] for one in nodes if one.get("beat_at") is not None and one.get("liveness") == "alive")
    if not found:
        hint = "`slicectl node add NAME` adds one; `make testbed` makes a testbed of boxes"
        raise Refused(Code.CONFLICT, "no node has joined this testbed, or none reports", hint=hint, field="--node")
    return found


class Nodes:
    """The experiment of many nodes; see `experiment.Experiment`."""

    def __init__(self, parameters: NodesParameters) -> None:
        self._parameters = parameters
        self._client = parameters.connect()
        self._stop = threading.Event()
        self._number = 0

    def steps(self) -> list[StepOf[Work]]:
        return steps(self._parameters)

    def state(self) -> guard.State:
        """The state of the node with the least memory."""
        states = [guard.state(self._client.nodes.get(name)["facts"]) for name in self._parameters.nodes]
        return min(states, key=lambda one: one.memory_available)

    def need(self, step: StepOf[Work]) -> guard.Need:
        return slivers.cost("lxc", 0, 1) if step.work.kind == CREATE else guard.Need()

    def prepare(self, done: Mapping[str, Json], todo: Sequence[Step], progress: Progress) -> list[str]:
        """Create and delete a slice on each node, which then has the image, also in its page cache."""
        parameters, client = self._parameters, self._client
        cleanup.refuse_others(client, parameters.prefix)
        cleanup.delete(client, parameters.prefix, progress)
        for place, node in enumerate(parameters.nodes):
            progress.inside("first create on each node", place, len(parameters.nodes))
            self._create(node)
        return []

    def run(self, step: StepOf[Work], progress: Progress) -> Json:
        match step.work.kind:
            case "create":
                return {
                    "order": list(step.work.nodes),
                    "creates": {node: self._create(node) for node in step.work.nodes},
                }
            case "placement":
                return self._placements(progress)
            case "resync":
                return {node: self._resyncs(node, progress) for node in self._parameters.remote}
            case _:
                return self._spread(progress)

    def interrupt(self) -> None:
        self._stop.set()

    def clean(self, progress: Progress) -> None:
        """Delete the slices and the image of the run."""
        cleanup.delete(self._client, self._parameters.prefix, progress)
        delete_images(self._client, self._parameters.prefix)

    def close(self) -> None:
        self._client.close()

    # creates

    def _create(self, node: str) -> Json:
        """Seconds since the request until it was accepted, done, and the banner read; of the node; of the deletion."""
        slivers.check(self._stop)
        self._number += 1
        name, client = f"{self._parameters.prefix}{self._number:04}", self._client
        begun, times = time.monotonic(), dict[str, float]()
        created = slivers.ask(client, self._request(name, node))
        times["accepted"] = time.monotonic() - begun
        ended = slivers.wait(client, created["operation"], self._stop)
        times["operation"] = time.monotonic() - begun
        sliver = created["slice"]["slivers"][0]
        slivers.wait_for_banner(name, "lxc", sliver, self._stop)
        times["banner"] = time.monotonic() - begun
        times |= node_times(ended)
        trips = round_trips(sliver["ssh"]["host"], sliver["ssh"]["port"])
        begun = time.monotonic()
        slivers.wait(client, client.slices.delete(name), self._stop)
        return {**times, "delete": time.monotonic() - begun, "trips": trips}

    def _request(self, name: str, node: str = "", **more: Any) -> wire.SliceRequest:
        parameters = self._parameters
        return slivers.request(name, "lxc", parameters.image, node, parameters.key, memory=parameters.memory, **more)

    # placement

    def _placements(self, progress: Progress) -> Json:
        """Seconds of plans (`dry_run`) that name the node, and of those that the service places, in turns."""
        names = self._parameters.nodes
        found: dict[str, list[float]] = {"named": [], "placed": [], "spread": []}
        for number in range(self._parameters.placements):
            slivers.check(self._stop)
            progress.inside("plans", number, self._parameters.placements)
            kinds = {
                "named": self._request(f"{self._parameters.prefix}plan", names[number % len(names)]),
                "placed": self._without_node(),
                "spread": self._without_node(count=len(names), spread="node"),
            }
            for kind in sorted(kinds, reverse=bool(number % 2)):
                begun = time.monotonic()
                slivers.dry_run(self._client, kinds[kind])
                found[kind].append(time.monotonic() - begun)
        return {**found, "slivers": len(names)}

    def _without_node(self, **more: Any) -> wire.SliceRequest:
        request = self._request(f"{self._parameters.prefix}plan", **more)
        del request["node"]
        return request

    # rows

    def _resyncs(self, node: str, progress: Progress) -> list[float]:
        """Seconds from each request that a node gets all its rows until it has them."""
        found = []
        for number in range(self._parameters.resyncs):
            progress.inside(f"rows of {node}", number, self._parameters.resyncs)
            begun = time.monotonic()
            shown = self._client.nodes.resync(node)
            while shown.get("resync_at") is not None:
                slivers.check(self._stop)
                if time.monotonic() - begun > _RESYNC_SECONDS:
                    hint = "does its link run? `slicectl node list`"
                    message = f"{node} lacks its rows after {_RESYNC_SECONDS:g} s"
                    raise Failed(message, code=Code.TIMEOUT, hint=hint)
                time.sleep(_LOOK)
                shown = self._client.nodes.get(node)
            found.append(time.monotonic() - begun)
        return found

    # image

    def _spread(self, progress: Progress) -> Json:
        """Seconds until each node has an image that is new to the testbed, after its import."""
        client, file = self._client, self._parameters.file
        assert file is not None
        name, size = f"{self._parameters.prefix}image", file.stat().st_size
        progress.say(f"uploading and importing {file}")
        before, begun = uploaded(client), time.monotonic()
        with file.open("rb") as opened:
            form = "qcow2" if opened.read(4) == b"QFI\xfb" else "raw"
            opened.seek(0)
            imported = client.images.upload(opened, size, name=name, format=form)
        if "operation" not in imported:
            hint = "use another image file, or delete the image first"
            raise Refused(Code.CONFLICT, f"the testbed already has {file.name}", hint=hint, field="--image-file")
        slivers.wait(client, imported["operation"], self._stop)
        took = time.monotonic() - begun
        had = [one["node"] for one in client.images.nodes(name) if one["state"] == "ready"]
        rest = [node for node in (*self._parameters.remote, self._parameters.local) if node not in had]
        alone, together = self._push(name, rest[:1], progress), self._push(name, rest[1:], progress)
        after = uploaded(client)
        copies = None if before is None or after is None else (after - before) / size
        return {"size": size, "import": took, "had": had, "alone": alone, "together": together, "copies": copies}

    def _push(self, name: str, nodes: Sequence[str], progress: Progress) -> Json:
        """Seconds until nodes have an image that is pushed to all of them at once, and seconds of the fetch."""
        begun = time.monotonic()
        waiting = {node: self._client.images.push(name, node)["id"] for node in nodes}
        found: Json = {}
        while waiting:
            for node, operation in list(waiting.items()):
                now = self._client.operations.get(operation)
                if now["state"] not in ("done", "failed"):
                    continue
                slivers.succeeded(now)
                del waiting[node]
                fetch = [one.get("seconds") or 0.0 for one in now["steps"] if one["name"] == FETCH]
                found[node] = {"seconds": time.monotonic() - begun, "fetch": sum(fetch) if fetch else None}
                progress.inside("image on nodes", len(found), len(nodes))
            slivers.check(self._stop)
            if time.monotonic() - begun > _IMAGE_SECONDS:
                raise Failed(f"{name} is not on all nodes after {_IMAGE_SECONDS:g} s", code=Code.TIMEOUT)
            time.sleep(0.05)
        return found


def node_times(operation: wire.Operation) -> dict[str, float]:
    """`node`: seconds from the first step of a creation to the end of the last one; empty if there are no steps."""
    times = [(one["began"], one.get("seconds")) for one in operation["steps"] if one.get("began") is not None]
    ends = [began + seconds for began, seconds in times if seconds is not None]
    return {"node": max(ends) - min(began for began, _ in times)} if ends else {}


def round_trips(host: str, port: int) -> list[float]:
    """Seconds that each of several TCP connections took to open. Raises Failed."""
    found = []
    for _ in range(_CONNECTIONS):
        begun = time.monotonic()
        try:
            socket.create_connection((host, port), timeout=_TIMEOUT).close()
        except OSError as error:
            raise Failed(f"port {port} of {host} cannot be reached: {error}") from error
        found.append(time.monotonic() - begun)
    return found


def uploaded(client: Client) -> float | None:
    """Bytes of images that the service has sent to nodes since its start; None if it does not count them."""
    lines = client.connection.text("/metrics").splitlines()
    found = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{IMAGE_BYTES}_total")]
    return float(found[0]) if found else None


def delete_images(client: Client, prefix: str) -> None:
    """Delete the image of a run. prefix: of its name."""
    for one in client.images.list(prefix=prefix):
        ended = client.operations.wait(client.images.delete(one["sha256"])["id"], _IMAGE_SECONDS)
        if ended["state"] == "failed":
            raise Failed(f"the image {one['name']} could not be deleted: {ended['error']}")
