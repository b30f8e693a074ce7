"""Create, first word on the console, ssh banner through the DNAT port, delete: seconds beside the raw baseline.

One series after the other, each of one type (and of one way to boot), each with its own baseline right before it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from slicemgr import wire
from slicemgr.client import Client
from slicemgr.errors import Code, Failed, SlicemgrError

_BANNER_SECONDS = 300.0
_MEASURED_SECONDS = 60.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Series:
    """What is made. boot: of virtual machines, "" for containers."""

    kind: str
    image: str
    boot: str = ""

    @property
    def label(self) -> str:
        return f"{self.kind} {self.boot}".strip()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. connect: makes a client; each thread has its own."""

    connect: Callable[[], Client]
    series: Sequence[Series]
    count: int
    parallel: int
    ssh_key: str
    memory: str
    node: str
    name: str = "bench"


@dataclass(slots=True)
class Outcome:
    """Seconds of each sliver by phase, in the order of their creation, and of the whole; bytes for each sliver.

    memory: by which the node has less available; charged: what the sliver's own group is charged with.
    """

    baseline: wire.Baseline
    phases: dict[str, list[float]] = field(default_factory=dict)
    create: float = 0.0
    delete: float = 0.0
    memory: float | None = None
    charged: float | None = None
    disk: float | None = None


def run(plan: Plan, progress: Progress) -> dict[str, Outcome]:
    """Measure; by the series' labels. Deletes what it made, also when interrupted. Raises what the service refuses."""
    with plan.connect() as client:
        return {series.label: _series(plan, series, client, progress) for series in plan.series}


def _series(plan: Plan, series: Series, client: Client, progress: Progress) -> Outcome:
    names = [f"{plan.name}-{series.label.replace(' ', '-')}-{index}" for index in range(plan.count)]
    progress(f"{series.label}: baseline", 0, 1)
    outcome = Outcome(_baseline(plan, series, client))
    before = _next_look(client, plan.node)
    try:
        _create(plan, series, names, outcome, progress)
        _weigh(client, plan, names, before, outcome)
    finally:
        progress(f"{series.label}: delete", 0, 1)
        outcome.delete = _delete(client, names)
    return outcome


def _baseline(plan: Plan, series: Series, client: Client) -> wire.Baseline:
    request: wire.BaselineRequest = {
        "type": series.kind,
        "image": client.image(series.image)["sha256"],
        "memory": plan.memory,
        "count": plan.count,
        "parallel": plan.parallel,
    }
    if series.boot:
        request["boot"] = series.boot
    ended = client.wait(client.baseline(plan.node, request)["id"])
    if ended["state"] == "failed" or ended["result"] is None:
        raise Failed(f"the baseline: {ended['error']}", hint=ended["hint"] or "")
    return ended["result"]["baseline"]


def _create(plan: Plan, series: Series, names: Sequence[str], outcome: Outcome, progress: Progress) -> None:
    with ThreadPoolExecutor(plan.parallel) as threads:
        begun = time.monotonic()
        for done, times in enumerate(threads.map(lambda name: _one(plan, series, name), names), 1):
            for phase, seconds in times.items():
                outcome.phases.setdefault(phase, []).append(seconds)
            progress(f"{series.label}: create", done, plan.count)
        outcome.create = time.monotonic() - begun


def _one(plan: Plan, series: Series, name: str) -> dict[str, float]:
    """Seconds by phase; a phase that nobody saw is left out."""
    request: wire.SliceRequest = {"name": name, "type": series.kind, "image": series.image, "memory": plan.memory}
    request.update({"node": plan.node, "ssh_keys": [plan.ssh_key]})
    if series.boot:
        request["boot"] = series.boot
    with plan.connect() as client:
        begun, times = time.monotonic(), dict[str, float]()
        created = client.create_slice(request)
        times["accepted"] = time.monotonic() - begun

        def look(operation: wire.Operation) -> None:
            for phase in reached(operation):
                times.setdefault(phase, time.monotonic() - begun)

        ended = client.wait(created["operation"]["id"], on_progress=look)
        times["operation"] = time.monotonic() - begun
        if ended["state"] == "failed":
            raise Failed(f"{name}: {ended['error']}", hint=ended["hint"] or "")
        ssh = created["slice"]["slivers"][0]["ssh"]
        _wait_for_banner(ssh["host"], ssh["port"])
        times["banner"] = time.monotonic() - begun
        return times


def reached(operation: wire.Operation) -> set[str]:
    """What the steps of a create say has happened: `created`, the domain runs; `console`, the guest spoke there."""
    phases = set()
    for step in operation["steps"]:
        if step["name"] == "domain" and step["state"] == "done":
            phases.add("created")
        if step["name"] == "ssh" and step["state"] == "running" and step["detail"]:
            phases.add("console")
    return phases


def _wait_for_banner(host: str, port: int) -> None:
    end = time.monotonic() + _BANNER_SECONDS
    while True:
        try:
            with socket.create_connection((host, port), 5) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            time.sleep(0.005)
        if time.monotonic() > end:
            raise Failed(f"no ssh banner at {host}:{port} within {_BANNER_SECONDS:g} s", code=Code.TIMEOUT)


def _delete(client: Client, names: Iterable[str]) -> float:
    begun = time.monotonic()
    asked = []
    for name in names:
        try:
            asked.append(client.delete_slice(name)["id"])
        except SlicemgrError as error:
            if error.code is not Code.NOT_FOUND:
                raise
    for operation in asked:
        client.wait(operation)
    return time.monotonic() - begun


def _next_look(client: Client, node: str) -> float:
    """Bytes of memory that the node says are available when it looks at itself next."""
    end = time.monotonic() + _MEASURED_SECONDS
    first = shown = client.node(node)
    while shown["agent_seen_at"] == first["agent_seen_at"]:
        if time.monotonic() > end:
            raise Failed(f"the agent of {node} has not looked at its node for {_MEASURED_SECONDS:g} s")
        time.sleep(0.5)
        shown = client.node(node)
    value = shown["facts"].get("memory_available")
    if not isinstance(value, int):
        raise Failed(f"the agent of {node} does not say how much memory is available")
    return float(value)


def _weigh(client: Client, plan: Plan, names: Sequence[str], before: float, outcome: Outcome) -> None:
    """The node's next look at itself, taken after the last sliver was up, says what they cost."""
    outcome.memory = (before - _next_look(client, plan.node)) / plan.count
    usage = [client.slice(name)["slivers"][0]["usage"] for name in (names[0], names[-1])]
    outcome.charged = _mean([one["memory"] for one in usage])
    outcome.disk = _mean([one["disk"] for one in usage])


def _mean(values: Iterable[int | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None
