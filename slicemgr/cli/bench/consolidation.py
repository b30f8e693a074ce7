"""slicectl bench consolidation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.keys import new_key
from slicemgr.cli.bench.options import IMAGES, SEEDS, WORKLOADS_HELP, node_option, repeat_option, seed_option

if TYPE_CHECKING:
    from slicemgr.cli.bench.frame import Frame

_POLICIES = ("static", "elastic")


@click.command()
@click.option(
    "--policy",
    "policies",
    type=click.Choice(_POLICIES),
    multiple=True,
    default=_POLICIES,
    show_default=True,
    help="Can be repeated.",
)
@click.option("--image", default=IMAGES["lxc"], show_default=True, help="Image of all slivers; it needs python3.")
@click.option("--memory", default="128M", show_default=True, help="Limit of each sliver.")
@click.option(
    "--guarantee",
    type=click.IntRange(10, 90),
    default=50,
    show_default=True,
    metavar="PERCENT",
    help="Part of the limit that `elastic` promises.",
)
@click.option(
    "--usage",
    type=click.IntRange(10, 100),
    default=80,
    show_default=True,
    metavar="PERCENT",
    help="Part of that guarantee that each sliver uses.",
)
@click.option("--workload", default="memory", show_default=True, metavar="NAME", help=WORKLOADS_HELP)
@click.option(
    "--seconds", type=click.IntRange(2, 120), default=4, show_default=True, help="Duration of one measurement."
)
@click.option(
    "--step", type=click.IntRange(1, 20), default=1, show_default=True, help="Slivers that are added at a time."
)
@seed_option("the data and the order of the policies", SEEDS)
@repeat_option(3)
@node_option
@frame_options
def consolidation(policies: tuple[str, ...], name: str | None, frame: Frame, **how: Any) -> None:
    """Measure how many slivers fit on a node until a promise is broken.

    `static`: the whole limit of each container is guaranteed to it. `elastic`: a part of it, of which each uses most.
    One container after the other is added, until the node refuses the next, or until one is slower than 95 percent of
    the speed of the first ones in three measurements. While they are measured, the newest uses most of its limit. The
    memory controller works as the node is set. Run it while nothing else uses the node.
    """
    from slicemgr.bench.experiments import consolidation as experiment
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client

    with Client.local() as client:
        node = name or the_node(client)
        key = new_key()

        def parameters(prefix: str) -> experiment.ConsolidationParameters:
            chosen = tuple(dict.fromkeys(policies))
            return experiment.ConsolidationParameters(Client.local, node, key, prefix, chosen, **how)

        for policy in parameters("").policies:
            experiment.size(policy, parameters(""))
        carry_out(
            frame,
            client,
            node,
            experiment.NAME,
            parameters("").recorded,
            lambda prefix: experiment.Consolidation(parameters(prefix)),
        )
