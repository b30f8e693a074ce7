"""Folders as `slicectl bench nodes` writes them, with invented measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scale_runs import NODE, TIMES

from slicemgr.bench.frame import folder
from slicemgr.bench.frame.folder import Run

OWN = 0.2  # seconds of a create on the local node
# Seconds by which a create takes longer, and seconds of the round trip.
NODES = {"n1": (0.03, 0.0005), "n2": (0.31, 0.1002)}


def made(
    path: Path,
    *,
    nodes: dict[str, tuple[float, float]] | None = None,
    rounds: int = 10,
    steps: bool = True,
    plans: bool = True,
    image: bool = True,
    copies: float | None = 1.2,
) -> Run:
    """Write a run. steps: whether the nodes reported their steps."""
    path.mkdir(parents=True)
    every = {"centre": (0.0, 0.00002), **(NODES if nodes is None else nodes)}
    found: dict[str, dict[str, Any]] = {}
    for number in range(1, rounds + 1):
        creates = {
            name: _create(more + 0.002 * (number * (place + 1) % 5), trip, steps=steps)
            for place, (name, (more, trip)) in enumerate(every.items())
        }
        found[f"create/{number}"] = {"order": list(creates), "creates": creates}
    if plans:
        kinds = {"named": 0.010, "placed": 0.012, "spread": 0.015}
        found["placement"] = {kind: [value, value + 0.001, value + 0.004] for kind, value in kinds.items()}
        found["placement"]["slivers"] = len(every)
    if rounds:
        found["resync"] = {name: [0.04 + trip, 0.05 + trip] for name, (_, trip) in every.items() if name != "centre"}
    if image:
        others = [one for one in every if one not in ("centre", "n1")]
        found["image"] = {
            "size": 450 << 20,
            "import": 60.0,
            "had": ["centre"],
            "alone": {"n1": {"seconds": 50.0, "fetch": 4.0}},
            "together": {one: {"seconds": 55.0, "fetch": 5.5} for one in others},
            "copies": copies,
        }
    head = {"title": "a step", "began": TIMES[0], "seconds": 1.0}
    lines = [{"step": name, "series": name.partition("/")[0], **head, "data": data} for name, data in found.items()]
    parameters = {
        "local": "centre",
        "image": "debian-12",
        "rounds": rounds,
        "placements": 3,
        "resyncs": 2,
        "memory": "256M",
        "seed": 1,
        "nodes": " ".join(one for one in every if one != "centre"),
        "file": "some.qcow2" if image else "",
    }
    info = {
        "format": folder.FORMAT,
        "experiment": "nodes",
        "parameters": parameters,
        "seed": 1,
        "slicemgr": "0.1.0",
        "commit": "0123456789ab",
        "command": "slicectl bench nodes",
        "started": TIMES[0],
        "finished": TIMES[1],
        "outcome": "done",
        "reason": "",
        "turns": [{"started": TIMES[0], "finished": TIMES[1]}],
        "planned": len(lines),
        "node": {**NODE, "name": "centre"},
        "noise": {"load": 0.4, "cpus": 2, "slivers": 0},
    }
    (path / "run.json").write_text(json.dumps(info))
    (path / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder.read(path)


def _create(more: float, trip: float, *, steps: bool) -> dict[str, Any]:
    own = {"node": OWN - 0.05} if steps else {}
    operation = OWN + more
    times = {"accepted": 0.02, "operation": operation, "banner": operation + 2 * trip, "delete": 0.1 + more}
    return {**times, **own, "trips": [trip, trip * 1.1, trip * 1.05]}
