#!/usr/bin/env python3
"""Measure the processor time of the memory controller's steps beside many slivers, while the node is short of memory.

    tools/bench_memory_controller.py [--slivers 10 200 1000] [--inner 8] [--steps 40]

Each sliver is a row, a pid file, and a memory group with a process and empty inner groups, as an image's systemd makes
them. The groups are made below `/sys/fs/cgroup` and removed at the end, so run this only in a node box or in a virtual
machine. The node seems to be short of memory in each step, but nothing is taken: that is the kernel's work. The
baseline reads all groups in each step, but rows and pid files as seldom.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import sqlalchemy as sa
from bench_lists import fill, service

from slicemgr.agent.chores import sliver_groups
from slicemgr.agent.chores.memory import MemoryController
from slicemgr.config import Config
from slicemgr.drivers.kernel import cgroup, memory_groups
from slicemgr.drivers.kernel.counters import Memory
from slicemgr.drivers.libvirt import processes
from slicemgr.model import GIB, MIB
from slicemgr.names import domain
from slicemgr.store import Store, tables

HELD = 2 * MIB  # by each sliver
NODE = Memory(64 * GIB, 3 * GIB, 3 * GIB)
STEPS_A_SECOND = 4


@contextlib.contextmanager
def group(path: Path, inner: int) -> Iterator[int]:
    """A group with a process that holds memory; its id."""
    path.mkdir()
    inside = [path / f"inner-{number}" for number in range(inner)]
    try:
        for one in inside:
            one.mkdir()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                (path / "cgroup.procs").write_text(str(os.getpid()))
                held = mmap.mmap(-1, HELD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                held.write(b"\1" * HELD)
                signal.pause()
            os._exit(0)
        try:
            yield child
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    finally:
        for one in (*inside, path):
            one.rmdir()


@contextlib.contextmanager
def groups(slivers: list[str], pids: Path, inner: int) -> Iterator[None]:
    """The groups of slivers, and their pid files, as libvirt names them."""
    base = cgroup.MOUNT / ("" if cgroup.version() == "v2" else "memory") / f"bench-{os.getpid()}"
    base.mkdir()
    if cgroup.version() == "v2":
        (base / "cgroup.subtree_control").write_text("+memory")
    with ExitStack() as stack:
        stack.callback(base.rmdir)
        for sliver in slivers:
            pid = stack.enter_context(group(base / sliver, inner))
            (pids / f"{domain(sliver)}.pid").write_text(str(pid))
        time.sleep(0.5)
        with mock.patch.object(memory_groups, "group", lambda sliver, pid: base / sliver):
            yield


def measure(config: Config, store: Store, steps: int) -> float:
    """Seconds of processor time of a step: the mean, since not every step reads the same."""
    controller = MemoryController(config, store, lambda: NODE, mode="on", throttle=mock.Mock())
    found = []
    for number in range(steps):
        begun = time.thread_time()
        assert controller.step(number / STEPS_A_SECOND) is not None
        found.append(time.thread_time() - begun)
    return statistics.mean(found[1:])  # the first reads all


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--slivers", type=int, nargs="+", default=[10, 200, 1000], help="numbers of slivers")
    parser.add_argument("--inner", type=int, default=8, help="groups inside of each")
    parser.add_argument("--steps", type=int, default=40, help="steps of each")
    options = parser.parse_args()
    nothing: dict[str, object] = {"take": {}, "protect": None, "take_first": None, "reach_inner_groups": False}
    with ExitStack() as stack:
        for name, value in nothing.items():
            stack.enter_context(mock.patch.object(memory_groups, name, return_value=value))
        run(options)


def run(options: argparse.Namespace) -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), 1, "") as (config, store):
        pids, there = Path(folder) / "pids", 0
        pids.mkdir()
        print(f"{'slivers':>8} {'a step':>10} {'of a core':>10} {'baseline':>10} {'ratio':>6}")
        for wanted in sorted(options.slivers):
            fill(config, store, there, wanted, 1)
            there = wanted
            with store.write() as c:
                c.execute(tables.slivers.update().values(node="node1", memory=64 * MIB, memory_guarantee=MIB))
                slivers = list(c.scalars(sa.select(tables.slivers.c.id)))
            with mock.patch.object(processes, "LXC_DIR", pids), groups(slivers, pids, options.inner):
                with mock.patch.object(sliver_groups, "FEW", wanted):
                    baseline = measure(config, store, options.steps)
                own = measure(config, store, options.steps)
            part = own * STEPS_A_SECOND
            print(
                f"{wanted:8} {own * 1000:7.2f} ms {part:9.2%} {baseline * 1000:7.2f} ms {own / baseline:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
