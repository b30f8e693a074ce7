"""iperf3 from a client into a sliver through its DNAT port and back, as a ratio to the plain link to the node.

The client is any command prefix (a namespace, another machine by ssh); the plain server runs on the node itself. Plain
link and slivers take turns in one run, each direction by itself, so that a ratio is made of neighbours in time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from slicemgr import wire
from slicemgr.bench.lifecycle import Progress
from slicemgr.client import Client
from slicemgr.drivers import command
from slicemgr.errors import Code, Failed, SlicemgrError

PLAIN = "plain"
DIRECTIONS = ("in", "out")  # towards node and sliver, and from them
_MARGIN = 60.0  # seconds beyond the measurement for starting and ending programs


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. login: words that run a command in a slice's sliver, with a private key's file.

    images: by type. client, server: words before iperf3 that start it where the client is and on the node. address:
    of the node as the client reaches it; "" for the one the node has announced. port: of the plain server.
    """

    connect: Callable[[], Client]
    login: Callable[[str, wire.Sliver, Path], list[str]]
    kinds: tuple[str, ...]
    images: Mapping[str, str]
    node: str
    client: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    address: str = ""
    port: int = 5201
    seconds: int = 5
    streams: int = 1
    rounds: int = 3
    name: str = "bench-throughput"


@dataclass(frozen=True, slots=True)
class Way:
    """One thing to measure: where the server is started, and the port that leads to it."""

    name: str
    server: tuple[str, ...]
    port: int


Rates = dict[tuple[str, str], list[float]]  # (way, direction) → bits per second, round by round


def run(plan: Plan, key: tuple[str, bytes], progress: Progress) -> Rates:
    """Measure; bits per second that arrived. key: public line and private file. Deletes the slices it made.

    Raises Failed if iperf3 does not get through, and what the service refuses.
    """
    with ExitStack() as stack:
        client = stack.enter_context(plan.connect())
        identity = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "key"
        identity.touch(mode=0o600)
        identity.write_bytes(key[1])
        node = client.node(plan.node)
        ways = [Way(PLAIN, plan.server, plan.port)]
        for kind in dict.fromkeys(plan.kinds):
            name = f"{plan.name}-{kind}"
            stack.callback(_delete, client, name)
            sliver = _create(client, plan, name, kind, key[0], node["capacity"]["cpus"])
            ways.append(Way(kind, tuple(plan.login(name, sliver, identity)), sliver["ports"]["first"] + 1))
        return _measure(plan, ways, plan.address or node["address"], progress)


def _create(client: Client, plan: Plan, name: str, kind: str, key: str, cpus: int) -> wire.Sliver:
    """A sliver that may use every core: its CPU quota is not what is measured."""
    request: wire.SliceRequest = {"name": name, "type": kind, "image": plan.images[kind], "ssh_keys": [key]}
    request.update({"node": plan.node, "cpu": cpus, "ports": 2})
    ended = client.wait(client.create_slice(request)["operation"]["id"])
    if ended["state"] == "failed":
        raise Failed(f"{name}: {ended['error']}", hint=ended["hint"] or "")
    return client.slice(name)["slivers"][0]


def _delete(client: Client, name: str) -> None:
    try:
        client.wait(client.delete_slice(name)["id"])
    except SlicemgrError as error:
        if error.code is not Code.NOT_FOUND:
            raise


def _measure(plan: Plan, ways: Sequence[Way], address: str, progress: Progress) -> Rates:
    rates: Rates = {(way.name, direction): [] for way in ways for direction in DIRECTIONS}
    turns = [(way, direction) for _ in range(plan.rounds) for direction in DIRECTIONS for way in ways]
    for done, (way, direction) in enumerate(turns):
        progress(f"{way.name} {direction}", done, len(turns))
        rates[way.name, direction].append(_one(plan, way, address, reverse=direction == "out"))
    progress("measured", len(turns), len(turns))
    return rates


def _one(plan: Plan, way: Way, address: str, *, reverse: bool) -> float:
    port, limit = str(way.port), plan.seconds + _MARGIN
    server = [*way.server, "iperf3", "-s", "-1", "-i", "0", "--forceflush", "-p", port]
    client = ["iperf3", "-c", address, "-p", port, "-t", str(plan.seconds), "-P", str(plan.streams), "-i", "0", "-J"]
    client += ["-R"] if reverse else []
    reason = "no rate in its report"
    with tempfile.TemporaryFile() as told:
        try:
            with command.converse(server, timeout=2 * limit) as listening:
                while "listening" not in listening.line():
                    pass
                command.run([*plan.client, *client], timeout=limit, stdout=told)
        except command.CommandFailed as error:
            reason = str(error)
        told.seek(0)
        report = told.read()
    rate = arrived(report)
    if rate is None:
        hint = f"does the client reach {address}, and is iperf3 installed at both ends?"
        raise Failed(f"iperf3 to port {port} ({way.name}): {complaint(report) or reason}", hint=hint)
    return rate


def arrived(report: bytes) -> float | None:
    """Bits per second that the receiving end counted, of `iperf3 -J`; None if it did not get that far."""
    try:
        return float(json.loads(report)["end"]["sum_received"]["bits_per_second"])
    except (ValueError, KeyError, TypeError):
        return None


def complaint(report: bytes) -> str:
    """What `iperf3 -J` says is wrong; "" if nothing."""
    try:
        return str(json.loads(report).get("error", "")).removeprefix("error - ")
    except (ValueError, AttributeError):
        return ""


def rows(rates: Rates) -> list[dict[str, Any]]:
    """A line for each way and direction: bits per second, and the median of each round's ratio to the plain link."""
    return [
        {
            "path": way,
            "direction": direction,
            "median": median(values),
            "least": min(values),
            "most": max(values),
            "ratio": None if way == PLAIN else median(map(_ratio, values, rates[PLAIN, direction])),
        }
        for (way, direction), values in rates.items()
    ]


def _ratio(value: float, plain: float) -> float:
    return value / plain if plain else 0.0
