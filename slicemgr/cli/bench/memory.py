"""slicectl bench memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.keys import new_key
from slicemgr.cli.bench.options import IMAGES, SEEDS, node_option, repeat_option, seed_option

if TYPE_CHECKING:
    from slicemgr.cli.bench.frame import Frame

_CONFIGURATIONS = ("kernel", "guarantee", "controller", "static")


@click.command()
@click.option(
    "--configuration",
    "configurations",
    type=click.Choice(_CONFIGURATIONS),
    multiple=True,
    metavar="NAME",
    help=f"Can be repeated ({', '.join(_CONFIGURATIONS)})  [default: all that differ on the node].",
)
@click.option("--image", default=IMAGES["lxc"], show_default=True, help="Image of all slivers; it needs python3.")
@click.option(
    "--seconds",
    type=click.IntRange(5, 120),
    default=15,
    show_default=True,
    help="Duration before the pressure, and after it; the pressure lasts twice as long.",
)
@click.option(
    "--pressure",
    type=click.IntRange(0, 50),
    default=40,
    show_default=True,
    metavar="PERCENT",
    help="Part of the node's memory that a program takes.",
)
@click.option("--rate", default="256M", show_default=True, help="Bytes each second that the third sliver reads.")
@seed_option("the data and the order of the configurations", SEEDS)
@repeat_option(5)
@node_option
@frame_options
def memory(configurations: tuple[str, ...], name: str | None, frame: Frame, **how: Any) -> None:
    """Measure what slivers keep of their speed when the node's memory runs short.

    Two containers that were promised 10 and 20 percent of the node's memory read files that fit into that. Then a
    program takes memory on the node, and a third container, which was promised nothing, fills the page cache.
    `kernel`: only the kernel decides what is taken from whom. `guarantee`: it knows what is guaranteed, which takes
    control groups of version 2. `controller`: the memory controller works (`memory.controller = "on"`). `static`:
    each container is limited to its share. The node must have at most 16 GiB of memory, or run in a group with such
    a limit. Run it while nothing else uses the node: other slivers lose memory, too.
    """
    from slicemgr.bench.experiments import memory as experiment
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client
    from slicemgr.config import parse_size
    from slicemgr.errors import invalid

    if parse_size(how["rate"], "--rate") < 1 << 20:
        raise invalid("--rate", f"{how['rate']} is too little", "at least 1M")
    with Client.local() as client:
        node = name or the_node(client)
        key, chosen = new_key(), tuple(dict.fromkeys(configurations))
        chosen = chosen or experiment.configurations(client.nodes.get(node)["facts"].get("cgroup"))

        def parameters(prefix: str) -> experiment.MemoryParameters:
            return experiment.MemoryParameters(Client.local, node, key, prefix, chosen, **how)

        carry_out(
            frame,
            client,
            node,
            experiment.NAME,
            parameters("").recorded,
            lambda prefix: experiment.Memory(parameters(prefix)),
        )
