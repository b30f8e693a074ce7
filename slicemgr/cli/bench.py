"""slicectl bench."""

from __future__ import annotations

import click

from slicemgr.cli import bench_lifecycle, bench_loads, bench_peers, bench_publish, bench_runs, bench_throughput
from slicemgr.cli.bench_keys import IMAGES, any_key

__all__ = ["IMAGES", "any_key", "bench"]


@click.group()
def bench() -> None:
    """Measure this testbed. Each experiment writes its data and report to a folder."""
    import logging

    logging.getLogger("slicemgr").addHandler(logging.NullHandler())  # what a program complains of is told as an error


for _one in (bench_runs.scale, bench_lifecycle.lifecycle, bench_throughput.throughput):
    bench.add_command(_one)
for _one in (bench_loads.io, bench_loads.sysbench, bench_peers.peers):
    bench.add_command(_one)
for _one in (bench_runs.report, bench_runs.clean):
    bench.add_command(_one)
for _one in (bench_publish.publish, bench_publish.published, bench_publish.unpublish):
    bench.add_command(_one)
