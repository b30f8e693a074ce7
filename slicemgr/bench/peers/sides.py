"""The common interface of all compared systems: slicemgr through its REST interface, a peer by its programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slicemgr import names, ssh_banner, wire
from slicemgr.bench.frame import cleanup, slivers
from slicemgr.bench.frame.experiment import Progress
from slicemgr.bench.peers import namespaces, systems
from slicemgr.bench.peers.kinds import Peer
from slicemgr.bench.peers.namespaces import NODE_SIDE, PEER_SIDE, Sandbox
from slicemgr.client import Client

_CONNECT = 5.0  # timeout in seconds


@dataclass(frozen=True, slots=True)
class Target:
    """A created container, with the address and number of its lowest port as reached from the node."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Route:
    """Route of iperf3: the command prefixes of server and client, and the address of the server for the client."""

    server: Sequence[str]
    client: Sequence[str]
    address: str
    port: int


class Side(Protocol):
    """A system in the experiment. Each method raises SlicemgrError."""

    def begin(self) -> None:
        """Preparations, which are not measured."""

    def create(self, index: int, stop: threading.Event) -> Target:
        """Create a container. stop: set when the experiment is interrupted."""

    def delete(self, made: Sequence[Target], progress: Progress) -> None: ...

    def charged(self) -> int | None:
        """Bytes of memory charged to the control groups of all containers; None if they have none."""

    def route(self, target: Target) -> Route:
        """The route from outside through the second port of a container."""

    def why(self, target: Target) -> str:
        """The hint for a container that does not answer."""


class Ours:
    def __init__(self, connect: Callable[[], Client], request: wire.SliceRequest, sandbox: Sandbox) -> None:
        """request: of a slice, without its name."""
        self._connect, self._request, self._prefix, self._sandbox = connect, request, sandbox.prefix, sandbox
        self._slivers: dict[str, wire.Sliver] = {}

    def begin(self) -> None:
        """Nothing to prepare: the service runs."""

    def create(self, index: int, stop: threading.Event) -> Target:
        name = f"{self._prefix}{index:04}"
        request: wire.SliceRequest = {**self._request, "name": name}
        with self._connect() as client:
            created = slivers.ask(client, request)
            slivers.wait(client, created["operation"], stop)
        sliver = created["slice"]["slivers"][0]
        self._slivers[name] = sliver
        return Target(name, sliver["ssh"]["host"], sliver["ssh"]["port"])

    def delete(self, made: Sequence[Target], progress: Progress) -> None:
        with self._connect() as client:
            cleanup.delete(client, self._prefix, progress)

    def charged(self) -> int | None:
        with self._connect() as client:
            cleanup.next_look(client, self._request["node"])
            found = client.slices.list(prefix=self._prefix)
        known = [one["usage"]["memory"] for slice in found for one in slice["slivers"]]
        values = [one for one in known if one is not None]
        return sum(values) if len(values) == len(known) else None

    def route(self, target: Target) -> Route:
        pid = namespaces.inside(names.domain(self._slivers[target.name]["id"]))
        server = ["nsenter", "--target", str(pid), "--net", "--"]
        return Route(server, self._sandbox.words([]), NODE_SIDE, target.port + 1)

    def why(self, target: Target) -> str:
        return f"`slicectl console {target.name}` shows why"


class Theirs:
    def __init__(self, peer: Peer, work: systems.Work, base: Path, sandbox: Sandbox, parallel: int) -> None:
        self._work, self._base, self._sandbox, self._parallel = work, base, sandbox, parallel
        self._system = peer.make(sandbox, work)

    def begin(self) -> None:
        systems.pattern(self._sandbox, self._base)
        self._system.begin()

    def create(self, index: int, stop: threading.Event) -> Target:
        one = self._one(index)
        self._system.create(one)
        return Target(one.name, PEER_SIDE, one.first)

    def delete(self, made: Sequence[Target], progress: Progress) -> None:
        with ThreadPoolExecutor(self._parallel) as threads:
            for done, _ in enumerate(threads.map(lambda one: self._system.delete(self._of(one)), made), 1):
                progress.inside("delete", done, len(made))

    def charged(self) -> int | None:
        return namespaces.charged(self._sandbox.prefix)

    def route(self, target: Target) -> Route:
        within = self._system.within(self._of(target))
        return Route(self._sandbox.words(within), [], PEER_SIDE, target.port + 1)

    def why(self, target: Target) -> str:
        return self._sandbox.log(target.name)

    def _one(self, index: int) -> systems.One:
        return self._work.one(self._sandbox.prefix, index)

    def _of(self, target: Target) -> systems.One:
        return self._one(int(target.name.removeprefix(self._sandbox.prefix)))


def answers(target: Target) -> bool:
    """Whether sshd sends its banner through the lowest port of a container."""
    return ssh_banner.answers(target.host, target.port, _CONNECT)
