"""slicectl bench lifecycle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.keys import new_key
from slicemgr.cli.bench.options import (
    BOOTS,
    default_images_option,
    memory_option,
    node_option,
    parallel_option,
    repeat_option,
    types_option,
)

if TYPE_CHECKING:
    from slicemgr.cli.bench.frame import Frame


@click.command()
@types_option
@default_images_option
@click.option(
    "--boot",
    "boots",
    type=BOOTS,
    multiple=True,
    default=["loader"],
    show_default=True,
    help="Boot method of virtual machines; can be repeated, one series for each.",
)
@click.option(
    "--count",
    type=click.IntRange(1, 500),
    default=20,
    show_default=True,
    help="Number of slices, with one sliver each.",
)
@parallel_option("slices")
@memory_option("sliver")
@repeat_option()
@click.option("--warm", is_flag=True, help="Measure slices that take a sliver the node keeps ready, too.")
@click.option(
    "--burst",
    type=click.IntRange(0, 500),
    default=0,
    help="With --warm: number of slices that then take such slivers at once, --parallel at a time.",
)
@click.option("--ping", default="", metavar="ADDRESS", help="Address that the slivers ping  [default: their gateway].")
@node_option
@frame_options
def lifecycle(
    types: tuple[str, ...],
    images: dict[str, str],
    boots: tuple[str, ...],
    name: str | None,
    frame: Frame,
    **how: Any,
) -> None:
    """Measure the life cycle of slices: create, wait for SSH, run a workload, delete.

    The raw baseline is measured first.

    prepared: the root exists. started: libvirt has started the sliver. console: the first byte on the serial console of
    a virtual machine, from its kernel with direct boot, else from the boot loader, measured up to 0.3 s late. Then each
    sliver runs a command over SSH, starts a web server that is requested through the next port, and sends pings.

    With --warm, --count further slices take a sliver that the node keeps ready, one after the other: spares.keep of the
    node must name slivers of this image and memory, for a burst as many as its slices.
    """
    from slicemgr.bench.experiments import lifecycle as experiment
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client

    series = [
        experiment.Series(sliver_type, images[sliver_type], boot)
        for sliver_type in dict.fromkeys(types)
        for boot in (dict.fromkeys(boots) if sliver_type == "kvm" else ("",))
    ]
    with Client.local() as client:
        node = name or the_node(client)

        def parameters(prefix: str) -> experiment.LifecycleParameters:
            return experiment.LifecycleParameters(Client.local, series, node, new_key(), prefix, **how)

        carry_out(
            frame,
            client,
            node,
            experiment.NAME,
            parameters("").recorded,
            lambda prefix: experiment.Lifecycle(parameters(prefix)),
        )
