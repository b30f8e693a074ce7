"""Slices of one sliver for experiments: creation, waiting that can be interrupted, and login."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from slicemgr import wire
from slicemgr.bench.frame import guard
from slicemgr.bench.report import stats
from slicemgr.client import Client
from slicemgr.client.ssh import answers, known_hosts, ssh_words
from slicemgr.drivers import command
from slicemgr.errors import Code, Failed, Refused, SlicemgrError

ENOUGH = (Code.FAILED, Code.TIMEOUT, Code.QUOTA)  # errors that mean that the node has no capacity for more
BANNER_SECONDS = {"lxc": 120.0, "kvm": 600.0}
MIB = 1 << 20
_POLL = 2  # seconds that one request waits, which is also the longest delay of an interruption
_SAMPLED_WITHIN = 60.0  # seconds; the default interval of samples is 30 s
_BETWEEN_LOOKS = 1.0  # seconds between checks of the guard within a step

_known = threading.Lock()

Item = TypeVar("Item")
Result = TypeVar("Result")


class Over(Exception):
    """The result is no longer needed, because the experiment was interrupted."""


class Suffocates(Failed):
    """Within a step, the guard found too few free resources."""


class Key:
    """An ssh key in the memory of this process only. line: the public key; file: the path for `ssh -i`.

    Raises Refused on a system other than Linux.
    """

    def __init__(self, pair: tuple[str, bytes]) -> None:
        if not hasattr(os, "memfd_create"):
            raise Refused(Code.UNAVAILABLE, "experiments and audits run on Linux only", hint="start it on the node")
        self.line = pair[0]
        self._memory = os.fdopen(os.memfd_create("ssh key"), "wb", buffering=0)
        os.fchmod(self._memory.fileno(), 0o600)
        self._memory.write(pair[1])
        self.file = Path(f"/proc/{os.getpid()}/fd/{self._memory.fileno()}")

    def close(self) -> None:
        self._memory.close()


def login(name: str, sliver: wire.Sliver, key: Path) -> list[str]:
    """The command prefix that runs a command as root in the sliver of a slice. Thread-safe."""
    with _known:
        return ssh_words(sliver, known_hosts(name, sliver), str(key), "root")


def request(name: str, sliver_type: str, image: str, node: str, key: str, **more: Any) -> wire.SliceRequest:
    """The request of a slice that takes no spare. more: other fields of it; empty ones are omitted."""
    asked: wire.SliceRequest = {"name": name, "type": sliver_type, "image": image, "node": node, "ssh_keys": [key]}
    asked["warm"] = False
    asked.update({field: value for field, value in more.items() if value})  # type: ignore[typeddict-item]
    return asked


def dry_run(client: Client, asked: wire.SliceRequest) -> wire.Slice:
    """The slice that the service would create. Raises Refused if the quota does not allow it."""
    answer = client.slices.submit({**asked, "dry_run": True})
    if "request" in answer:
        raise Refused(Code.QUOTA, "the project's quota does not allow it", hint="an admin's project has none")
    return answer["plan"]


def ports_suffice(client: Client, node: str, one: wire.Slice, count: int, field: str) -> None:
    """Raises Refused if a node lacks the ports for `count` slices like this one."""
    ports = one["slivers"][0]["ports"]
    each, shown = ports["last"] - ports["first"] + 1, client.nodes.get(node)
    free = shown["capacity"]["ports"] - shown["used"]["ports"]
    if free < count * each:
        message = f"{count} slivers take {count * each} ports, and {node} has {free}"
        raise Refused(Code.QUOTA, message, hint=f"at most {free // each}, or more ports in [network]", field=field)


def ask(client: Client, asked: wire.SliceRequest) -> wire.Created:
    """Request a slice. Raises Refused if the quota does not allow it any more."""
    created = client.slices.submit(asked)
    if "request" in created:
        raise Refused(Code.QUOTA, "the project's quota does not allow more")
    return created


def wait(
    client: Client,
    operation: wire.Operation,
    stop: threading.Event,
    look: Callable[[wire.Operation], None] | None = None,
) -> wire.Operation:
    """Wait until an operation is done. look: called with each change.

    Raises Failed if the operation fails, Over if `stop` is set.
    """
    while operation["state"] not in ("done", "failed"):
        check(stop)
        seen = operation["version"] if look is not None else None
        operation = client.operations.get(operation["id"], wait=_POLL, seen=seen)
        if look is not None:
            look(operation)
    return succeeded(operation)


def succeeded(operation: wire.Operation) -> wire.Operation:
    """Raises Failed if the operation failed; returns it otherwise."""
    if operation["state"] == "failed":
        raise Failed(f"{operation['slice']}: {operation['error']}", hint=operation["hint"] or "")
    return operation


def enter(client: Client, created: wire.Created, key: Path, stop: threading.Event) -> tuple[str, list[str]]:
    """Wait until the sliver of a new slice answers. The name of the slice, and the command prefix of `login`.

    Raises Failed if it does not start, Over if `stop` is set.
    """
    check(stop)
    wait(client, created["operation"], stop)
    found = client.slices.get(created["slice"]["name"])
    title, sliver = found["name"], found["slivers"][0]
    wait_for_banner(title, found["type"], sliver, stop)
    return title, login(title, sliver, key)


def patience(node: wire.Node, sliver_type: str) -> float:
    """Seconds that the node's settings allow a sliver of this type to start; a default for older versions of a node."""
    said = node["facts"].get("start_wait")
    found = said.get(sliver_type) if isinstance(said, dict) else None
    return float(found) if isinstance(found, int | float) and found > 0 else BANNER_SECONDS[sliver_type]


def wait_for_banner(name: str, sliver_type: str, sliver: wire.Sliver, stop: threading.Event) -> None:
    """Wait for the banner of sshd. Raises Failed if there is none in time, Over if `stop` is set."""
    await_banner(name, lambda: answers(sliver, 5), BANNER_SECONDS[sliver_type], stop)


def await_banner(
    name: str,
    seen: Callable[[], bool],
    seconds: float,
    stop: threading.Event | None = None,
    *,
    why: Callable[[], str] | None = None,
    pause: float = 0.005,
) -> None:
    """Wait until `seen` reports the banner of sshd, called every `pause` seconds, for at most `seconds`.

    why: returns the hint of the error; the default is the console of the slice. Raises Failed if there is no banner in
    time, Over if `stop` is set.
    """
    end = time.monotonic() + seconds
    while not seen():
        if stop is not None:
            check(stop)
        if time.monotonic() > end:
            hint = f"`slicectl console {name}` shows why" if why is None else why()
            raise Failed(f"{name}: no ssh banner within {seconds:g} s", code=Code.TIMEOUT, hint=hint)
        time.sleep(pause)


def mean_usage(usage: Sequence[wire.Usage]) -> dict[str, float | None]:
    """Mean bytes per sliver; None for a value that is unknown. working: the working set of their control groups."""
    working = stats.mean_of_known([one.get("working", one["memory"]) for one in usage])
    return {
        "memory": working,  # the former name of `working`
        "working": working,
        "disk": stats.mean_of_known([one["disk"] for one in usage]),
    }


def next_usage(
    known: Sequence[wire.Usage], ask: Callable[[], Sequence[wire.Usage]], stop: threading.Event
) -> Sequence[wire.Usage]:
    """The usage after every sliver was sampled again since `known`, or the present usage after a minute.

    The usage of a service that does not report the time of samples is the one of its last observation of the node.
    """
    end, found = time.monotonic() + _SAMPLED_WITHIN, ask()
    while any("at" in now and now["at"] == before.get("at") for before, now in zip(known, found, strict=True)):
        check(stop)
        if time.monotonic() > end:
            break
        time.sleep(0.5)
        found = ask()
    return found


def check(stop: threading.Event) -> None:
    if stop.is_set():
        raise Over


def side_by_side(
    job: Callable[[Item], Result],
    items: Sequence[Item],
    parallel: int,
    interrupt: Callable[[], None],
    done: Callable[[int], None],
) -> tuple[dict[Item, Result], SlicemgrError | None]:
    """Run the job for all items, `parallel` at a time. Returns the results by item, and the first error or None.

    After an error, no more jobs are begun. done: called after each job with the count; an error that it raises counts
    as one of the jobs. interrupt: ends all jobs, called if this function is interrupted.
    """
    found: dict[Item, Result] = {}
    trouble: SlicemgrError | None = None
    failed = threading.Event()

    def unless_failed(item: Item) -> Result:  # the thread itself checks: this one may learn of an error late
        if failed.is_set():
            raise CancelledError
        try:
            return job(item)
        except SlicemgrError:
            failed.set()
            raise

    with ThreadPoolExecutor(parallel) as threads:
        asked: dict[Future[Result], Item] = {threads.submit(unless_failed, item): item for item in items}
        try:
            for count, future in enumerate(as_completed(asked), 1):
                try:
                    found[asked[future]] = future.result()
                    done(count)
                except SlicemgrError as error:
                    trouble = trouble or error
                    failed.set()
                except CancelledError:
                    continue
        except BaseException:
            interrupt()
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    return {item: found[item] for item in items if item in found}, trouble


class Watch:
    """Applies the guard within a step, at most once per `_BETWEEN_LOOKS`."""

    def __init__(self, state: Callable[[], guard.State]) -> None:
        self._state = state
        self._looked = 0.0

    def look(self) -> None:
        """Raises Suffocates if the node has too few free resources."""
        if time.monotonic() < self._looked + _BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        reason = guard.verdict(self._state(), guard.Need(), guard.Limits())
        if reason:
            raise Suffocates(f"the node has too little left: {reason}")


def cost(sliver_type: str, memory: int, count: int) -> guard.Need:
    """The estimated resources of `count` slivers. memory: the limit of a machine in bytes."""
    return guard.Need((12 * MIB + (memory if sliver_type == "kvm" else 0)) * count, MIB * count, 8 * count)


def inside(words: Sequence[str], argv: Sequence[str], timeout: float) -> bytes:
    """The output of a command that is run with the prefix `words`. timeout: seconds. Raises Failed."""
    try:
        return command.run([*words, *argv], timeout=timeout)
    except command.CommandFailed as error:
        raise Failed(str(error)) from error
