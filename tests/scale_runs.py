"""Folders as `slicectl bench scale` writes them, with invented measurements that follow simple laws."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slicemgr.bench.frame import folder
from slicemgr.bench.frame.folder import Run

MIB, KIB, GIB = 1 << 20, 1 << 10, 1 << 30
TIMES = ("2026-11-21T10:00:00+00:00", "2026-11-21T10:10:00+00:00")
NODE = {
    "name": "node1",
    "cpu_model": "A Processor <2.66 GHz>",
    "cpus": 2,
    "memory": 24 * GIB,
    "swap_total": 4 * GIB,
    "kernel": "6.18.0",
    "libvirt_lxc": "libvirt 9.0.0",
    "filesystem": "btrfs",
    "disk_total": 40 * GIB,
    "quota": "squota",
    "cgroup": 2,
}


def made(
    path: Path,
    *,
    sliver_type: str = "lxc",
    to: int = 200,
    step: int = 5,
    repeat: int = 2,
    each: float = 5 * MIB,
    seconds: float = 0.1,
    memory: tuple[str, ...] = ("memory",),
    outcome: str = "done",
) -> Run:
    """Write a run. each: bytes of memory of a sliver. seconds: of the first creates; twice as long at a thousand.
    memory: the names of the working set; until 0.1.0 it was only `memory`.

    After the memory is used up, swap is used; when half of it is used, the guard stops the run.
    """
    path.mkdir(parents=True)
    lines, last = [], ""
    for turn in range(1, repeat + 1):
        for record in _series(str(turn), sliver_type, to, step, each * (1 + turn / 1000), seconds, memory):
            lines.append(json.dumps(record))
            last = record.get("stopped", last)
    parameters = {"node": "node1", "kind": sliver_type, "to": to, "step": step, "repeat": repeat, "boot": ""}
    info = {
        "format": folder.FORMAT,
        "experiment": "scale",
        "parameters": parameters,
        "seed": 1,
        "slicemgr": "0.1.0",
        "commit": "0123456789ab",
        "command": f"slicectl bench scale --type {sliver_type} --to {to}",
        "started": TIMES[0],
        "finished": TIMES[1],
        "outcome": "stopped" if last else outcome,
        "reason": last,
        "turns": [{"started": TIMES[0], "finished": TIMES[1]}],
        "planned": len(lines),
        "node": NODE,
        "noise": {"load": 0.4, "cpus": 2, "slivers": 0},
        "notes": ["resumed at 10 | 20: <made again>"],
    }
    (path / "run.json").write_text(json.dumps(info))
    (path / "steps.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder.read(path)


def _series(
    turn: str, sliver_type: str, to: int, step: int, each: float, seconds: float, memory: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    size = 0
    for n in range(0, to + 1, step):
        head = {"step": f"{turn}/{n}", "title": f"{n} {sliver_type}", "series": turn, "began": TIMES[0], "seconds": 2.0}
        node = _node(n, each)
        if node["swap_free"] < node["swap_total"] / 2:
            yield {**head, "stopped": "swap: more than half of it is in use", "data": {}}
            break
        size = n
        creates = [
            {"accepted": 0.01, "operation": 0.09, "banner": round(seconds * (1 + one / 1000) + one % 7 / 1000, 6)}
            for one in range(max(0, n - step), n)
        ]
        again = {"slivers": min(20, max(0, n - step)), "reached": min(20, max(0, n - step))}
        own = {**dict.fromkeys(memory, 2 * each), "disk": 130.0 * KIB}
        yield {**head, "data": {"n": n, "creates": creates, "seconds": 1.0, "node": node, "own": own, "again": again}}
    tail = {"title": "at the end", "series": turn, "began": TIMES[0], "seconds": 3.0}
    yield {**tail, "step": f"{turn}/check", "data": {"slivers": size, "reached": size}}
    yield {**tail, "step": f"{turn}/delete", "clock_jump": 3600.0, "data": {"slivers": size, "seconds": 0.02 * size}}


def _node(n: int, each: float) -> dict[str, Any]:
    taken = n * each + 2 * GIB
    most = 24 * GIB - 300 * MIB
    return {
        "memory_total": 24 * GIB,
        "memory_available": int(24 * GIB - min(taken, most)),
        "swap_total": 4 * GIB,
        "swap_free": int(4 * GIB - min(4 * GIB, max(0.0, taken - most))),
        "disk_total": 40 * GIB,
        "disk_used": int(2 * GIB + n * 280 * KIB),
        "disk_free": 38 * GIB,
        "pids": 200 + 3 * n,
        "pids_max": 32768,
        "load": 1.5,
        "cpus": 2,
    }
