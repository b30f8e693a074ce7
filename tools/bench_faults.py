"""Create slices over the nodes of a testbed of boxes while its programs are killed at random, and check what is left.

    tools/bench_faults.py [--creates 200] [--minutes 15] [--clients 4] [--seed N] [--json FILE]

Clients create slices of one to three containers, log in to each, and delete old ones. Meanwhile broker, hub,
PostgreSQL, web process, link, agent and libvirtd are killed with SIGKILL and started again, each at random times. After
each round of kills, the clients wait until their operations have ended. Then each accepted request must be in the rows
once, each node must have exactly what the rows name, and `slicectl node gc` must find nothing. A control at the end
makes a node differ, which the same check must show. The exit status is 1 if something is not as it should be, or if
too little was tried.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import boxed_faults
import demo
from boxed_node import BoxedNode
from boxed_testbed import RECIPE, BoxedTestbed
from nodebox_linux import BoxError

from slicemgr.client import Client
from slicemgr.errors import Code, SlicemgrError

ROUND = 40.0  # seconds in which programs are killed, before the next check
ENDS = 30.0  # seconds after the last repair in which operations must end
_LONGEST = 180.0  # seconds to wait for them
_SETTLES = 10.0  # seconds until hosts are as the rows say
_CLEAN = 90.0  # seconds until btrfs has freed what was deleted
_KEPT = 2  # slices of a client that are not deleted
_COUNTS, _WEIGHTS = (1, 2, 3), (6, 2, 2)  # of the slivers of a slice
_STRANGER = "zzzzzzzz-0"  # a sliver of no slice, for the control
T = TypeVar("T")


@dataclass(slots=True)
class Request:
    """What became of one accepted request. ended: seconds since 1970."""

    kind: str
    slice: str
    operation: str = ""
    state: str = ""
    error: str = ""
    asked_at: float = 0.0
    ended_at: float = math.inf


@dataclass(slots=True)
class Record:
    """For several threads. problems: what is not as it should be."""

    creates: int
    requests: list[Request] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    unavailable: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)  # names of slices that were created and not deleted
    after_healing: list[float] = field(default_factory=list)  # seconds until an operation ended
    logins: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)

    def problem(self, *found: str) -> None:
        for one in found:
            say(f"PROBLEM {one}")
        self.problems += found

    def patiently(self, call: Callable[[], T]) -> T:
        """The answer, also if the service is away meanwhile."""
        end = time.monotonic() + _LONGEST
        while True:
            try:
                return call()
            except SlicemgrError as error:
                if error.code not in (Code.UNAVAILABLE, Code.FAILED, Code.TIMEOUT) or time.monotonic() > end:
                    raise
                self.unavailable[error.message] += 1
                time.sleep(0.5)

    def next_name(self) -> str | None:
        """A name for a slice, while more are to be created."""
        with self.lock:
            if self.creates <= 0:
                return None
            self.creates -= 1
            return f"f{self.creates}"


class User(threading.Thread):
    """Creates, uses and deletes slices, one after the other. idle: waits for a round. well: has ended as it should."""

    def __init__(self, make: Callable[[], Client], record: Record, seed: int) -> None:
        super().__init__(name=f"user-{seed}", daemon=True)
        self._client, self._record, self._random = make(), record, random.Random(seed)
        self._mine: deque[str] = deque()
        self.idle, self.well = threading.Event(), False

    def run(self) -> None:
        try:
            self._work()
            self.well = True
        except (SlicemgrError, OSError, ValueError, KeyError):
            self._record.problem(f"{self.name} ended: {traceback.format_exc(limit=3)}")
        finally:
            self._client.close()
            self.idle.set()

    def _work(self) -> None:
        while not self._record.stopped.is_set():
            if not self._record.running.is_set():
                self.idle.set()
                self._record.running.wait(0.2)
                continue
            self.idle.clear()
            name = self._record.next_name()
            if name is None:
                return
            self._make(name)
            if len(self._mine) > _KEPT and self._record.running.is_set():
                self._remove(self._mine.popleft())

    def _make(self, name: str) -> None:
        count = self._random.choices(_COUNTS, _WEIGHTS)[0]
        key = Path(f"{demo.ensure_key()}.pub").read_text().strip()
        body = {"name": name, "type": "lxc", "image": RECIPE, "count": count, "ssh_keys": [key]}
        made, once = Request("create", name, asked_at=time.time()), uuid.uuid4().hex
        try:
            answer = self._record.patiently(lambda: self._client.connection.call("POST", "/slices", body, key=once))
        except SlicemgrError as error:
            self._record.refused[error.message] += 1
            return
        self._record.alive.add(name)
        self._mine.append(name)
        self._follow(made, answer["operation"])
        if made.state == "done":
            self._log_in(name, count)

    def _remove(self, name: str) -> None:
        gone = Request("delete", name, asked_at=time.time())
        try:
            operation = self._record.patiently(lambda: self._client.slices.delete(name))
        except SlicemgrError as error:
            if error.code is not Code.NOT_FOUND:  # the answer to a request that succeeded may have been lost
                raise
            self._record.alive.discard(name)
            return
        self._follow(gone, operation)
        if gone.state == "done":
            self._record.alive.discard(name)

    def _follow(self, one: Request, operation: Any) -> None:
        one.operation = str(operation["id"])
        self._record.requests.append(one)
        ended = self._record.patiently(lambda: self._client.operations.wait(one.operation, _LONGEST, patience=60))
        one.ended_at = datetime.fromisoformat(str(ended["finished_at"])).timestamp()
        one.state, one.error = ended["state"], ended["error"] or ""

    def _log_in(self, name: str, count: int) -> None:
        handle = self._record.patiently(lambda: self._client.slices.handle(name))
        for number in range(count):
            try:
                found = handle.ssh("hostname", number, timeout=30).strip()
            except SlicemgrError as error:
                found = f"{error.message}: {error.hint}"
            wanted = f"{name}-{number}"
            if found != wanted:
                self._record.problem(f"{name} is done, but a login to sliver {number} says {found!r}")
            self._record.logins += 1


class Trial:
    """One run over a testbed that is up."""

    def __init__(self, testbed: BoxedTestbed, creates: int, clients: int, seed: int) -> None:
        self.testbed, self.record = testbed, Record(creates)
        self._random = random.Random(seed)
        self._client = self.connect()
        self._users = [User(self.connect, self.record, seed * 1000 + number) for number in range(clients)]

    def connect(self) -> Client:
        found = self.testbed.centre.client()
        client = Client(found["url"], found["token"])
        client.identity = str(demo.ensure_key())
        return client

    def run(self, seconds: float) -> None:
        """Rounds until all slices were requested. Then delete everything."""
        self._delete_all()  # of an earlier run
        kept = {one for one in self._leftovers() if ": kept disk " in one}  # for a day, since before this run
        end = time.monotonic() + seconds
        for user in self._users:
            user.start()
        while any(user.is_alive() for user in self._users) and time.monotonic() < end:
            self._round()
        self.record.stopped.set()
        with self._step("control"):
            self._control()
        with self._step("delete all"):
            self._delete_all()
        self._check("at the end")
        self.record.problem(*_settled(lambda: [one for one in self._leftovers() if one not in kept], _CLEAN))
        for user in self._users:
            user.join(_LONGEST)
        self.record.problem(*shortfalls(self.record, [user.name for user in self._users if not user.well]))
        self._client.close()

    def _round(self) -> None:
        self.record.running.set()
        end = time.monotonic() + ROUND
        while time.monotonic() < end and any(user.is_alive() for user in self._users):
            time.sleep(self._random.uniform(1, 6))
            self._strike()
        healed_at = time.time()
        self.record.running.clear()
        for user in self._users:
            user.idle.wait(_LONGEST)
        for one in self.record.requests:
            if one.asked_at <= healed_at < one.ended_at:
                seconds = one.ended_at - healed_at
                self.record.after_healing.append(round(seconds, 1))
                if seconds > ENDS:
                    self.record.problem(f"{one.kind} {one.slice} ended {seconds:.0f} s after healing: {one.state}")
        self._check(f"after {len(self.record.requests)} requests")
        say(f"{self.record.creates} to create; {dict(self.record.kills)}; problems: {len(self.record.problems)}")

    def _strike(self) -> None:
        victim = self._random.choice((*boxed_faults.CENTRE, *boxed_faults.NODE))
        node = self._random.choice(sorted(self.testbed.nodes))
        boxed_faults.kill(self.testbed, victim, node)
        self.record.kills[victim] += 1
        time.sleep(self._random.uniform(0, 3))
        boxed_faults.heal(self.testbed, victim, node)

    def _check(self, when: str) -> None:
        """Compare requests, rows and hosts."""
        found = _settled(self._differences, _SETTLES)
        self.record.problem(*(f"{when}: {one}" for one in found))

    def _leftovers(self) -> list[str]:
        """What `slicectl gc` finds on the nodes."""
        found = []
        for name in sorted(self.testbed.nodes):
            asked = self._client.nodes.gc(name)
            ended: Any = self._client.operations.wait(asked["id"], _LONGEST)
            found += [f"gc of {name}: {one['what']} {one['name']}" for one in (ended["result"] or {}).get("items", ())]
            if ended["state"] != "done":
                found.append(f"gc of {name}: {ended['error']}")
        return found

    def _differences(self) -> list[str]:
        rows = self.record.patiently(self._client.slices.list)
        present, wanted = {one["name"] for one in rows}, self.record.alive
        failed = {one.slice for one in self.record.requests if one.kind == "create" and one.state == "failed"}
        slivers: dict[str, list[str]] = {}
        for row in rows:
            for sliver in row["slivers"]:
                slivers.setdefault(sliver["node"], []).append(sliver["id"])
        runs = [one["name"] for one in rows if one["name"] in failed and one["state"] == "running"]
        hosts = {name: boxed_faults.host(node) for name, node in self.testbed.nodes.items()}
        return [
            *(f"slice {one} was accepted and has no row" for one in sorted(wanted - present)),
            *(f"slice {one} has a row, but was not accepted or is deleted" for one in sorted(present - wanted)),
            *(f"slice {one} runs, but its operation says that it failed" for one in sorted(runs)),
            *boxed_faults.differences(slivers, hosts),
        ]

    def _control(self) -> None:
        """The check shows a domain that ended, and a subvolume, a link and a row that nobody requested."""
        node = self.testbed.nodes["n1"]
        boxed_faults.kill(self.testbed, "agent")
        try:
            self._expect_differences(node)
        finally:
            undo = f"rmdir /var/lib/slicemgr/pool/slivers/{_STRANGER}; ip link del sm{_STRANGER}"
            node.box.run(["sh", "-c", undo])
            boxed_faults.heal(self.testbed, "agent")
        self.record.problem(*(f"after the control: {one}" for one in _settled(self._differences, 60)))

    def _expect_differences(self, node: BoxedNode) -> None:
        running = sorted(boxed_faults.domains(node))
        script = f"mkdir /var/lib/slicemgr/pool/slivers/{_STRANGER}"
        script += f"; ip link add sm{_STRANGER} type veth peer name other"
        if running:
            script += f"; virsh -c lxc:///system destroy {running[0]}"
        node.box.run(["sh", "-ec", script], check=True)
        before = self.record.alive
        self.record.alive = before - {min(before)} if before else before
        found = self._differences()
        self.record.alive = before
        expected = 2 + bool(running) + bool(before)
        say(f"the control shows {found}")
        if len(found) < expected:
            self.record.problem(f"the control shows {len(found)} of {expected} differences: {found}")

    def _delete_all(self) -> None:
        asked = [self._client.slices.delete(one["name"]) for one in self._client.slices.list()]
        for one in asked:
            ended = self._client.operations.wait(one["id"], _LONGEST)
            if ended["state"] != "done":
                self.record.problem(f"delete of {ended['slice']}: {ended['error']}")
        self.record.alive.clear()

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        say(what)
        try:
            yield
        except (SlicemgrError, BoxError, OSError, subprocess.SubprocessError) as error:
            self.record.problem(f"{what}: {error or type(error).__name__}")


def _settled(look: Callable[[], list[str]], seconds: float) -> list[str]:
    """What is still found after a while."""
    end = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < end:
        time.sleep(1)
    return found


def shortfalls(record: Record, unfinished: Sequence[str]) -> list[str]:
    """What a run lacks to show something. Pure. unfinished: users that did not end as they should."""
    counts = {"kills": record.kills.total(), "logins": record.logins}  # a login is to a slice that was created
    return [
        *(f"{one} has not ended its work" for one in unfinished),
        *([f"{record.creates} slices were not requested in time"] if record.creates else []),
        *(f"there were no {what}" for what, number in counts.items() if not number),
    ]


def summary(record: Record) -> dict[str, Any]:
    """The counts of a run, and the times to the end of operations after healing, in seconds."""
    times = sorted(record.after_healing)
    states = Counter(f"{one.kind} {one.state or 'not ended'}" for one in record.requests)
    durations = sorted(one.ended_at - one.asked_at for one in record.requests if one.ended_at < math.inf)
    return {
        "requests": dict(states),
        "failed": [f"{one.kind} {one.slice}: {one.error}" for one in record.requests if one.state == "failed"],
        "logins": record.logins,
        "refused": dict(record.refused),
        "unavailable": dict(record.unavailable),
        "kills": dict(record.kills),
        "operations under way at healing": len(times),
        "seconds to end after healing": _spread(times),
        "seconds of an operation": _spread(durations),
        "problems": record.problems,
    }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    at = {"median": statistics.median(values), "p95": values[math.ceil(0.95 * len(values)) - 1], "most": values[-1]}
    return {name: round(value, 1) for name, value in at.items()}


def say(text: str) -> None:
    print(f"faults: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def work(testbed: BoxedTestbed, asked: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    testbed.create_slice(demo.ensure_key())  # each node has the image
    testbed.centre.slicectl("delete", "demo")
    os.environ["SSL_CERT_FILE"] = str(testbed.centre.authority)
    trial = Trial(testbed, asked.creates, asked.clients, asked.seed)
    trial.run(asked.minutes * 60)
    return summary(trial.record), not trial.record.problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creates", type=int, default=200, help="slices to request")
    parser.add_argument("--minutes", type=float, default=15, help="no new round begins later")
    parser.add_argument("--clients", type=int, default=4, help="users at the same time")
    parser.add_argument("--seed", type=int, default=1, help="of the kills and of the sizes of slices")
    boxed_faults.main("faults", parser, work)


if __name__ == "__main__":
    main()
