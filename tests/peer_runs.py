"""Folders as `slicectl bench peers` writes them, with invented measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scale_runs import KIB, MIB, NODE, TIMES

from slicemgr.bench.frame import folder
from slicemgr.bench.frame.folder import Run

# Seconds of a creation and a deletion, MiB of memory and KiB of disk per container.
COSTS = {"slicemgr": (0.08, 0.006, 4.9, 280), "docker": (0.8, 0.3, 37, 420), "podman-crun": (0.16, 0.13, 3.5, 260)}


def made(
    path: Path,
    *,
    count: int = 200,
    ports: int = 20,
    repeat: int = 2,
    costs: dict[str, tuple[float, float, float, float]] | None = None,
    stopped: str = "",
    work: float | None = 1.4,
) -> Run:
    """Write a run. costs: of the measured systems. stopped: why plain LXC failed; "": it is not installed.

    work: processor time of a byte into a slice, as the ratio to the plain link; None: it was not measured.
    """
    path.mkdir(parents=True)
    steps: dict[str, dict[str, Any]] = {
        "absent/lxd": {"data": {"system": "lxd", "missing": ["lxd"], "install": "apt-get install lxd (Debian 12)"}}
    }
    for turn in range(1, repeat + 1):
        for key, cost in (COSTS if costs is None else costs).items():
            steps[f"{turn}/{key}"] = {"data": _turn(key, count, turn, *cost)}
            if work is not None:
                into = 0.3 * (work if key == "slicemgr" else 1.5)
                steps[f"{turn}/{key}"]["data"]["work"] = {"plain": 0.3, "in": into, "out": 0.45}
    if stopped:
        steps["1/lxc"] = {"stopped": stopped, "data": {"system": "lxc", "version": "5.0.2"}}
    head = {"title": "a turn", "began": TIMES[0], "seconds": 60.0}
    lines = [{"step": name, "series": name.split("/")[1], **head, **one} for name, one in steps.items()]
    parameters = {"node": "node1", "count": count, "ports": ports, "repeat": repeat, "peers": "docker lxd"}
    info = {
        "format": folder.FORMAT,
        "experiment": "peers",
        "parameters": parameters,
        "seed": 1,
        "slicemgr": "0.1.0",
        "commit": "0123456789ab",
        "command": f"slicectl bench peers --count {count}",
        "started": TIMES[0],
        "finished": TIMES[1],
        "outcome": "stopped" if stopped else "done",
        "reason": stopped,
        "turns": [{"started": TIMES[0], "finished": TIMES[1]}],
        "planned": len(lines),
        "node": NODE,
        "noise": {"load": 0.4, "cpus": 2, "slivers": 0},
    }
    (path / "run.json").write_text(json.dumps(info))
    (path / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder.read(path)


def _turn(key: str, count: int, turn: int, create: float, delete: float, memory: float, disk: float) -> dict[str, Any]:
    wavers = 1 + turn / 100
    banners = [round(create * 4 * wavers * (1 + one % 5 / 50), 6) for one in range(count)]
    plain = 20e9
    return {
        "system": key,
        "version": "" if key == "slicemgr" else f"{key} 1.0",
        "n": count,
        "reached": count,
        "creates": [{"made": round(one * 0.9, 6), "banner": one} for one in banners],
        "seconds": round(create * count * wavers, 6),
        "memory": int(memory * MIB * count * wavers),
        "charged": None if key == "docker" else int(memory * 2 * MIB * count),
        "disk": int(disk * KIB * count * wavers),
        "delete_seconds": delete * count,
        "rates": {"plain": plain, "in": plain * (0.97 if key == "slicemgr" else 0.93), "out": plain * 0.9},
    }
