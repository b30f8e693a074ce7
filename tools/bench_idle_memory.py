#!/usr/bin/env python3
"""Measure what a program gains if the memory controller takes idle memory slowly, before anyone wants it.

    tools/bench_idle_memory.py [--workload file] [--want 10] [--seconds 60] [--repeat 5]

Run it as root on a node with at most 16 GiB of memory, such as a node box, while nothing else uses it. A container
fills the node's memory and then does not use it any more, and another one works in little memory. After a while, a
program of the node takes memory as fast as it can: once with the controller, and once while only the kernel decides,
in turn. Nothing is guaranteed, so that the controller takes nothing fast.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slicemgr.bench.experiments.memory_loads import WORKLOADS, Sliver
from slicemgr.bench.frame import cleanup, slivers
from slicemgr.cli.bench.keys import new_key
from slicemgr.cli.bench.progress import Lines
from slicemgr.cli.commands.node import the_node
from slicemgr.client import Client
from slicemgr.client.nodes import MemoryRequest
from slicemgr.model import MIB

PREFIX = cleanup.prefix("idle")
MODES = {"off": "the kernel alone", "on": "the controller"}
_WORKS = 0.08  # of the node's memory, which the working container uses
_MOST = 16 << 30  # bytes of the node's memory
_AFTER = 10  # seconds in which the program takes and keeps memory
_PAUSE = 300.0  # seconds that filling may last
_LEFT = 0.04  # of the node's memory, which the idle container leaves free

# Prints the seconds in which it got memory, and keeps it for as many seconds as its second argument.
_TAKE = """
import mmap, sys, time
size = int(sys.argv[1])
begun = time.perf_counter()
with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
    for at in range(0, size, 4096):
        memory[at] = 1
    print(time.perf_counter() - begun, flush=True)
    time.sleep(float(sys.argv[2]))
"""
# Holds memory of its own that does not compress to nothing, or a file, and does nothing.
_IDLE = """
import mmap, random, sys, time
size, chunk = int(sys.argv[2]), random.Random(1).randbytes(1 << 20)
if sys.argv[1] == "file":
    with open("/var/tmp/idle", "wb") as file:
        for at in range(0, size, len(chunk)):
            file.write(chunk[: size - at])
        file.flush()
        __import__("os").fsync(file.fileno())
else:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, size, len(chunk)):
        memory[at : at + len(chunk)] = chunk[: size - at]
print("ready", flush=True)
time.sleep(float(sys.argv[3]))
"""


@dataclass(frozen=True, slots=True)
class Found:
    """seconds: in which the program got its memory. free: bytes that were free before. taken: bytes that the controller
    had taken. p99: microseconds of the working container's reads before, and at worst while the program took memory.
    """

    seconds: float
    free: int
    taken: int
    p99: tuple[float, float]


class Bench:
    def __init__(self, client: Client, node: str, options: argparse.Namespace) -> None:
        self._client, self._node, self._options = client, node, options
        self._memory = int(str(client.nodes.get(node)["facts"]["memory"]))
        self._key = slivers.Key(new_key())
        if self._memory > _MOST:
            raise SystemExit(f"the node has {self._memory >> 30} GiB of memory; at most {_MOST >> 30} can be filled")

    def measure(self, mode: str) -> Found:
        """Once. mode: of the controller. Raises Failed or Refused."""
        self.clean()
        seconds = self._options.seconds
        idle, works = self._create("idle"), self._create("works")
        sliver = Sliver("works", works, int(_WORKS * self._memory), 1)
        workload, series = WORKLOADS[self._options.workload], seconds + _AFTER
        workload.prepare(sliver)
        with workload.load(sliver, series) as load, self._fill(idle, series + 60):
            load.wait()
            watched = self._watch(mode, series)
            load.begin()
            begun = time.monotonic()
            time.sleep(seconds)
            took = take(self._memory * self._options.want // 100, _AFTER / 2)
            at = int(time.monotonic() - begun - _AFTER / 2 - took)
            p99 = load.series(series)["p99"]
        measured = self._measured(watched)
        worst = max(p99[at : at + int(took) + 2])
        return Found(took, measured["free"][at - 2], measured["taken"][at - 2], (statistics.median(p99[2:at]), worst))

    def clean(self) -> None:
        cleanup.delete(self._client, PREFIX, Lines())

    def close(self) -> None:
        self.clean()
        self._key.close()

    def _create(self, name: str) -> Sequence[str]:
        memory = f"{self._memory // MIB}M"
        asked = slivers.request(
            f"{PREFIX}{name}", "lxc", self._options.image, self._node, self._key.line, memory=memory
        )
        return slivers.enter(self._client, slivers.ask(self._client, asked), self._key.file, threading.Event())[1]

    def _fill(self, words: Sequence[str], seconds: int) -> Idle:
        """Have a container fill what is available but for a little: the page cache of the node, too."""
        available = self._measured(self._watch("off", 1))["available"][0]
        size = max(MIB, available - int(_LEFT * self._memory))
        return Idle(words, self._options.workload, size, seconds)

    def _watch(self, mode: str, seconds: int) -> int | str:
        """An operation that has the controller work in this mode, and records the memory of the node.

        The kernel alone may use swap for slivers meanwhile, or it could take nothing of their programs.
        """
        request: MemoryRequest = {"bytes": 0, "before": seconds, "controller": mode, "swap": mode == "off"}
        return self._client.nodes.measure_memory(self._node, request)["id"]

    def _measured(self, operation: int | str) -> dict[str, Any]:
        ended = self._client.operations.wait(operation, _PAUSE)
        if ended["state"] == "failed" or ended["result"] is None:
            raise SystemExit(f"on the node: {ended['error']}")
        return dict(ended["result"]["measured"])


class Idle:
    """A container that holds memory and does nothing, from when it is entered."""

    def __init__(self, words: Sequence[str], workload: str, size: int, seconds: int) -> None:
        line = f"exec python3 -I - {workload} {size} {seconds}"
        self._process = subprocess.Popen([*words, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(_IDLE.encode())
        self._process.stdin.close()
        if self._process.stdout.readline() != b"ready\n":
            raise SystemExit("the idle container did not get its memory")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_PAUSE)


def take(size: int, keep: float) -> float:
    """Seconds in which a program got so many bytes. keep: seconds for which it has them."""
    words = [sys.executable, "-I", "-c", _TAKE, str(size), str(keep)]
    return float(subprocess.run(words, check=True, capture_output=True, timeout=_PAUSE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", choices=("file", "memory"), default="file", help="what containers use")
    parser.add_argument("--want", type=int, default=10, help="percentage of the node's memory that the program takes")
    parser.add_argument("--seconds", type=int, default=60, help="before the program takes memory")
    parser.add_argument("--repeat", type=int, default=5, help="of both")
    parser.add_argument("--image", default="debian-12", help="of the containers; it needs python3")
    options = parser.parse_args()
    found: dict[str, list[Found]] = {mode: [] for mode in MODES}
    with Client.local() as client:
        bench = Bench(client, the_node(client), options)
        try:
            for turn in range(options.repeat):
                for mode in random.Random(turn).sample(list(MODES), len(MODES)):
                    found[mode].append(one := bench.measure(mode))
                    print(f"{turn + 1} {MODES[mode]:<18} {row(one)}", flush=True)
        finally:
            bench.close()
    before, after = (statistics.median(one.seconds for one in found[mode]) for mode in ("off", "on"))
    print(f"with the controller, the program gets its memory in {after / before:.2f} of the time (medians)")


def row(one: Found) -> str:
    before, worst = one.p99
    free = f"{one.free // MIB} MiB free, {one.taken // MIB} MiB taken"
    return f"{one.seconds * 1000:7.0f} ms  {free}, p99 {before:.1f} -> {worst:.1f} us"


if __name__ == "__main__":
    main()
