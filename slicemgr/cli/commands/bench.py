"""slicectl bench."""

from __future__ import annotations

import click

from slicemgr.cli.bench import (
    consolidation,
    everything,
    guests,
    lifecycle,
    loads,
    memory,
    nodes,
    peers,
    publish,
    runs,
    throughput,
)
from slicemgr.cli.groups import Group


@click.group(cls=Group)
def bench() -> None:
    """Measure this testbed. Each experiment writes its data and report to a folder."""
    import logging

    logging.getLogger("slicemgr").addHandler(logging.NullHandler())  # the failed step reports errors of programs


for _one in (runs.scale, lifecycle.lifecycle, throughput.throughput):
    bench.add_command(_one)
for _one in (
    loads.io,
    loads.sysbench,
    peers.peers,
    nodes.nodes,
    guests.guests,
    memory.memory,
    consolidation.consolidation,
):
    bench.add_command(_one)
bench.add_command(everything.all_experiments)
for _one in (runs.report, runs.clean):
    bench.add_command(_one)
for _one in (publish.publish, publish.published, publish.unpublish):
    bench.add_command(_one)
