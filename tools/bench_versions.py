"""Compare how long two versions of slicemgr need to create and delete a slice, on one node each, in turns.

    git worktree add ../before v1.0 && (cd ../before && make demo) && make demo
    .venv/bin/python tools/bench_versions.py ../before [--count 40]

Both nodes are those of `make demo`. A turn creates and deletes a container of the same image on each of them; the order
within a turn changes. It prints the medians, and the median of the ratios within a turn with its 95 % confidence
interval (bootstrap).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import demo

from slicemgr.bench.report import stats
from slicemgr.client import Client

_NAME = "bench-versions"


def client(clone: Path) -> Client:
    found = json.loads((clone / ".venv/etc/slicemgr/client.json").read_text())
    return Client(found["url"], found["token"])


def turn(node: Client, key: str) -> tuple[float, float]:
    """Seconds for a create and a delete, from the request until the operation has ended."""
    started = time.monotonic()
    made = node.slices.create(_NAME, image=demo.RECIPE, ssh_keys=[key])
    made.wait()
    created = time.monotonic()
    made.delete()
    return created - started, time.monotonic() - created


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the clone with the version to compare with")
    parser.add_argument("--count", type=int, default=40, help="turns (default: 40)")
    asked = parser.parse_args()
    clones = {"before": asked.before, "now": demo.REPO}
    key = demo.ensure_key().with_suffix(".pub").read_text().strip()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in clones}
    nodes = {name: client(clone) for name, clone in clones.items()}
    for node in nodes.values():
        turn(node, key)  # reads the image into the page cache
    for number in range(asked.count):
        order = list(nodes) if number % 2 else list(nodes)[::-1]
        for name in order:
            seconds[name].append(turn(nodes[name], key))
    for index, what in enumerate(("create", "delete")):
        before, now = ([one[index] for one in seconds[name]] for name in clones)
        ratios = [later / earlier for earlier, later in zip(before, now, strict=True)]
        low, high = stats.bootstrap(ratios, statistics.median) or (ratios[0], ratios[0])
        medians = " → ".join(f"{statistics.median(one) * 1000:.0f} ms" for one in (before, now))
        print(f"{what}: {medians}, ratio {statistics.median(ratios):.3f} ({low:.3f}–{high:.3f}, n = {len(ratios)})")


if __name__ == "__main__":
    main()
