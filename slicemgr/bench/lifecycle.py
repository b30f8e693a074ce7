"""Create, ssh banner through the DNAT port, delete: seconds and slivers per second beside the raw baseline."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from slicemgr.client import Client
from slicemgr.errors import Code, Failed, SlicemgrError

_BANNER_SECONDS = 120.0
_MEASURED_SECONDS = 60.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. connect: makes a client; each thread has its own."""

    connect: Callable[[], Client]
    kind: str
    image: str
    count: int
    parallel: int
    ssh_key: str
    memory: str
    node: str
    name: str = "bench"


@dataclass(slots=True)
class Outcome:
    """Seconds of each sliver by phase, in the order of their creation, and of the whole; bytes for each sliver."""

    phases: dict[str, list[float]] = field(default_factory=lambda: {"accepted": [], "operation": [], "banner": []})
    create: float = 0.0
    delete: float = 0.0
    memory: float | None = None
    disk: float | None = None
    baseline: dict[str, Any] = field(default_factory=dict)


def run(plan: Plan, progress: Progress) -> Outcome:
    """Measure. Deletes what it made, also when interrupted. Raises what the service refuses."""
    outcome = Outcome()
    names = [f"{plan.name}-{index}" for index in range(plan.count)]
    with plan.connect() as client:
        sha256 = client.image(plan.image)["sha256"]
        progress("baseline", 0, 1)
        asked = client.baseline(plan.node, image=sha256, count=plan.count, parallel=plan.parallel)
        ended = client.wait(asked["id"])
        if ended["state"] == "failed":
            raise Failed(f"the baseline: {ended['error']}")
        outcome.baseline = dict((ended["result"] or {})["baseline"])
        before = _next_look(client, plan.node)
        try:
            _create(plan, names, outcome, progress)
            _weigh(client, plan, names, before, outcome)
        finally:
            outcome.delete = _delete(plan, client, names, progress)
    return outcome


def _create(plan: Plan, names: Sequence[str], outcome: Outcome, progress: Progress) -> None:
    done = 0
    with ThreadPoolExecutor(plan.parallel) as threads:
        begun = time.monotonic()
        for times in threads.map(lambda name: _one(plan, name), names):
            for phase, seconds in zip(outcome.phases.values(), times, strict=True):
                phase.append(seconds)
            done += 1
            progress("create", done, plan.count)
        outcome.create = time.monotonic() - begun


def _one(plan: Plan, name: str) -> tuple[float, float, float]:
    with plan.connect() as client:
        begun = time.monotonic()
        created = client.create_slice(
            {
                "name": name,
                "type": plan.kind,
                "image": plan.image,
                "ssh_keys": [plan.ssh_key],
                "memory": plan.memory,
            }
        )
        accepted = time.monotonic()
        ended = client.wait(created["operation"]["id"])
        operation = time.monotonic()
        if ended["state"] == "failed":
            raise Failed(f"{name}: {ended['error']}", hint=ended["hint"] or "")
        ssh = created["slice"]["slivers"][0]["ssh"]
        _wait_for_banner(ssh["host"], ssh["port"])
        return accepted - begun, operation - begun, time.monotonic() - begun


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


def _delete(plan: Plan, client: Client, names: Iterable[str], progress: Progress) -> float:
    progress("delete", 0, 1)
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
    disks = [client.slice(name)["slivers"][0]["usage"]["disk"] for name in (names[0], names[-1])]
    known = [one for one in disks if one is not None]
    outcome.disk = sum(known) / len(known) if known else None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    """A line for each phase: seconds, and the ratio to the raw baseline's same point where there is one."""
    raw = outcome.baseline
    lines = [("raw: started", raw["started"], None), ("raw: ssh banner", raw["answered"], None)]
    lines += [
        ("request accepted", outcome.phases["accepted"], None),
        ("operation done", outcome.phases["operation"], None),
        ("ssh banner", outcome.phases["banner"], raw["answered"]),
    ]
    return [
        {
            "phase": name,
            "p50": percentile(values, 0.5),
            "p95": percentile(values, 0.95),
            "max": max(values),
            "ratio": None if beside is None else percentile(values, 0.5) / percentile(beside, 0.5),
        }
        for name, values, beside in lines
    ]


def summary(outcome: Outcome, count: int) -> dict[str, Any]:
    """The whole run in numbers: per second, and as ratios to the baseline."""
    banner = outcome.phases["banner"]
    edge = max(1, min(50, count // 4))
    return {
        "count": count,
        "create_seconds": outcome.create,
        "create_per_second": count / outcome.create,
        "create_ratio": outcome.create / outcome.baseline["create"],
        "last_to_first": percentile(banner[-edge:], 0.5) / percentile(banner[:edge], 0.5),
        "delete_seconds": outcome.delete,
        "delete_per_second": count / outcome.delete,
        "delete_ratio": outcome.delete / outcome.baseline["delete"],
        "memory_each": outcome.memory,
        "disk_each": outcome.disk,
    }
