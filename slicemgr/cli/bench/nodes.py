"""slicectl bench nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.keys import any_key
from slicemgr.cli.bench.options import IMAGES, memory_option, seed_option

if TYPE_CHECKING:
    from slicemgr.cli.bench.frame import Frame
    from slicemgr.client import Client


@click.command("nodes")
@click.option(
    "--local", metavar="NODE", help="Node to compare with  [default: the one that uses the database of the service]."
)
@click.option(
    "--node",
    "remote",
    metavar="NODE",
    multiple=True,
    help="Node to measure; can be repeated  [default: all that have joined and report].",
)
@click.option("--image", default=IMAGES["lxc"], show_default=True, help="Image of all slivers.")
@click.option(
    "--rounds",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    help="Number of creates on each node.",
)
@click.option(
    "--placements",
    type=click.IntRange(0, 10_000),
    default=50,
    show_default=True,
    help="Number of plans of each kind, which measure the placement.",
)
@click.option(
    "--resyncs",
    type=click.IntRange(0, 1000),
    default=5,
    show_default=True,
    help="Number of times that each node gets all its rows again.",
)
@click.option(
    "--image-file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Disk image that the testbed does not have, to measure its spread to all nodes.",
)
@memory_option("sliver")
@seed_option("the order of the nodes in each round")
@frame_options
def nodes(local: str | None, remote: tuple[str, ...], frame: Frame, **how: Any) -> None:
    """Compare creates on nodes that have joined with creates on the service's own node, in turns.

    Run it on the machine of the service: the round trip to each node is measured from here, and its aim depends on it.
    Half of the creates should take at most 50 ms longer than on the local node without a round trip, and 0.5 s longer
    at one of 100 ms. The report also has the time of placement, that until a node has all its rows again and, with
    --image-file, how an image spreads.
    """
    from slicemgr.bench.experiments import nodes as experiment
    from slicemgr.client import Client

    with Client.local() as client:
        near, others = chosen(client, local, remote)
        key = any_key()

        def parameters(prefix: str) -> experiment.NodesParameters:
            return experiment.NodesParameters(Client.local, near, others, key, prefix, **how)

        carry_out(
            frame,
            client,
            near,
            experiment.NAME,
            parameters("").recorded,
            lambda prefix: experiment.Nodes(parameters(prefix)),
        )


def chosen(client: Client, local: str | None, remote: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The node to compare with, and the others. Raises Refused."""
    from slicemgr.bench.experiments import nodes as experiment
    from slicemgr.errors import invalid

    found = client.nodes.list()
    near = local or experiment.local_node(found)
    others = tuple(dict.fromkeys(remote)) or tuple(one for one in experiment.joined_nodes(found) if one != near)
    known = [one["name"] for one in found]
    for field, name in (("--local", near), *(("--node", one) for one in others)):
        if name not in known:
            raise invalid(field, f"there is no node {name!r}", f"one of {', '.join(known)}")
    if near in others:
        raise invalid("--node", f"{near} is the node to compare with", "other nodes")
    if not others:
        raise invalid("--node", "no other node has joined this testbed", "`slicectl node add NAME`")
    return near, others


def clean(client: Client, _node: str, prefix: str) -> None:
    """Delete the image of a run."""
    from slicemgr.bench.experiments import nodes as experiment

    experiment.delete_images(client, prefix)
