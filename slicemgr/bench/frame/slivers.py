"""Slices of one sliver for experiments: made, waited for as long as somebody wants them, logged into."""

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

ENOUGH = (Code.FAILED, Code.TIMEOUT, Code.QUOTA)  # what a node says that holds no more
BANNER_SECONDS = {"lxc": 120.0, "kvm": 600.0}
MIB = 1 << 20
_POLL = 2  # seconds of one request that waits: as long as an interruption may take
_SAMPLED_WITHIN = 60.0  # seconds; a sample is taken each 30 s by default
_BETWEEN_LOOKS = 1.0  # seconds between looks of the guard within a step

_known = threading.Lock()

Item = TypeVar("Item")
Result = TypeVar("Result")


class Over(Exception):
    """Nobody wants the result any more."""


class Suffocates(Failed):
    """The guard says so within a step."""


class Key:
    """An ssh key of this process alone, in memory: it ends with it. line: its public half; file: for `ssh -i`."""

    def __init__(self, pair: tuple[str, bytes]) -> None:
        self.line = pair[0]
        self._memory = os.fdopen(os.memfd_create("ssh key"), "wb", buffering=0)
        os.fchmod(self._memory.fileno(), 0o600)
        self._memory.write(pair[1])
        self.file = Path(f"/proc/{os.getpid()}/fd/{self._memory.fileno()}")

    def close(self) -> None:
        self._memory.close()


def login(name: str, sliver: wire.Sliver, key: Path) -> list[str]:
    """Words that run a command as root in a slice's sliver. Thread-safe."""
    with _known:
        return ssh_words(sliver, known_hosts(name, sliver), str(key), "root")


def request(name: str, kind: str, image: str, node: str, key: str, **more: Any) -> wire.SliceRequest:
    """more: what else it says; what is empty is left out."""
    asked: wire.SliceRequest = {"name": name, "type": kind, "image": image, "node": node, "ssh_keys": [key]}
    asked.update({field: value for field, value in more.items() if value})  # type: ignore[typeddict-item]
    return asked


def dry_run(client: Client, asked: wire.SliceRequest) -> wire.Slice:
    """What the service would make. Refused if the quota does not allow it."""
    answer = client.slices.submit({**asked, "dry_run": True})
    if "request" in answer:
        raise Refused(Code.QUOTA, "the project's quota does not allow it", hint="an admin's project has none")
    return answer["plan"]


def ports_suffice(client: Client, node: str, one: wire.Slice, count: int, field: str) -> None:
    """Refused if a node has not the ports of so many slices like this one."""
    ports = one["slivers"][0]["ports"]
    each, shown = ports["last"] - ports["first"] + 1, client.nodes.get(node)
    free = shown["capacity"]["ports"] - shown["used"]["ports"]
    if free < count * each:
        message = f"{count} slivers take {count * each} ports, and {node} has {free}"
        raise Refused(Code.QUOTA, message, hint=f"at most {free // each}, or more ports in [network]", field=field)


def ask(client: Client, asked: wire.SliceRequest) -> wire.Created:
    """Refused if it is beyond the quota by now."""
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
    """Until it is done. look: is shown each change. Raises Failed if it fails, Over if nobody wants it any more."""
    while operation["state"] not in ("done", "failed"):
        check(stop)
        seen = operation["version"] if look is not None else None
        operation = client.operations.get(operation["id"], wait=_POLL, seen=seen)
        if look is not None:
            look(operation)
    return succeeded(operation)


def succeeded(operation: wire.Operation) -> wire.Operation:
    """Raises Failed if it did not."""
    if operation["state"] == "failed":
        raise Failed(f"{operation['slice']}: {operation['error']}", hint=operation["hint"] or "")
    return operation


def patience(node: wire.Node, kind: str) -> float:
    """Seconds that the node's settings give a sliver of this kind to start; a node of an older version does not say."""
    said = node["facts"].get("start_wait")
    found = said.get(kind) if isinstance(said, dict) else None
    return float(found) if isinstance(found, int | float) and found > 0 else BANNER_SECONDS[kind]


def wait_for_banner(name: str, kind: str, sliver: wire.Sliver, stop: threading.Event) -> None:
    """Raises Failed if it does not come, Over if nobody wants it any more."""
    await_banner(name, lambda: answers(sliver, 5), BANNER_SECONDS[kind], stop)


def await_banner(
    name: str,
    seen: Callable[[], bool],
    seconds: float,
    stop: threading.Event | None = None,
    *,
    why: Callable[[], str] | None = None,
    pause: float = 0.005,
) -> None:
    """Until ssh's banner is `seen`, looked for every `pause` seconds. why: the hint, a slice's console if left out.

    Raises Failed if it is not seen in time, Over if nobody wants it any more.
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
    """Bytes of slivers on the mean; None where none is known. working: the working set of their own groups."""
    working = stats.mean_of_known([one.get("working", one["memory"]) for one in usage])
    return {
        "memory": working,  # the former name
        "working": working,
        "disk": stats.mean_of_known([one["disk"] for one in usage]),
    }


def next_usage(
    known: Sequence[wire.Usage], ask: Callable[[], Sequence[wire.Usage]], stop: threading.Event
) -> Sequence[wire.Usage]:
    """The usage once every sliver was sampled after `known` was read; what there is after a minute.

    A service that does not say when it sampled has the usage of its last look at the node.
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
    """What the job gives for each item that it succeeds with; the first trouble, after which no more are begun.

    done: called with how many there are after each; if it raises, that is trouble, too. interrupt: ends all jobs, if
    this is ended.
    """
    found: dict[Item, Result] = {}
    trouble: SlicemgrError | None = None
    with ThreadPoolExecutor(parallel) as threads:
        asked: dict[Future[Result], Item] = {threads.submit(job, item): item for item in items}
        try:
            for count, future in enumerate(as_completed(asked), 1):
                try:
                    found[asked[future]] = future.result()
                    done(count)
                except SlicemgrError as error:
                    trouble = trouble or error
                    for other in asked:
                        other.cancel()
                except CancelledError:
                    continue
        except BaseException:
            interrupt()
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    return {item: found[item] for item in items if item in found}, trouble


class Watch:
    """The guard within a step, now and then."""

    def __init__(self, state: Callable[[], guard.State]) -> None:
        self._state = state
        self._looked = 0.0

    def look(self) -> None:
        """Raises Suffocates if the node has too little left."""
        if time.monotonic() < self._looked + _BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        reason = guard.verdict(self._state(), guard.Need(), guard.Limits())
        if reason:
            raise Suffocates(f"the node has too little left: {reason}")


def cost(kind: str, memory: int, count: int) -> guard.Need:
    """What so many slivers are guessed to take. memory: bytes that a machine may have."""
    return guard.Need((12 * MIB + (memory if kind == "kvm" else 0)) * count, MIB * count, 8 * count)


def inside(words: Sequence[str], argv: Sequence[str], timeout: float) -> bytes:
    """What a command prints where `words` lead. Raises Failed."""
    try:
        return command.run([*words, *argv], timeout=timeout)
    except command.CommandFailed as error:
        raise Failed(str(error)) from error
