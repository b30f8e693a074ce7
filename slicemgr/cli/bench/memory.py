"""slicectl bench memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.keys import new_key
from slicemgr.cli.bench.options import IMAGES, SEEDS, WORKLOADS_HELP, Command, node_option, repeat_option, seed_option

if TYPE_CHECKING:
    from slicemgr.cli.bench.frame import Frame

_CONFIGURATIONS = ("kernel", "guarantee", "controller", "static")
_HOGS = ("stream", "rewrite", "update", "stress")


def _percent(name: str, default: int, help: str) -> Callable[[Command], Command]:
    return click.option(name, type=int, default=default, show_default=True, metavar="PERCENT", help=help)


@click.command()
@click.option(
    "--configuration",
    "configurations",
    type=click.Choice(_CONFIGURATIONS),
    multiple=True,
    metavar="NAME",
    help=f"Can be repeated ({', '.join(_CONFIGURATIONS)})  [default: all that differ on the node].",
)
@click.option("--type", type=click.Choice(["lxc", "kvm"]), default="lxc", show_default=True, help="Of all slivers.")
@click.option("--image", default=IMAGES["lxc"], show_default=True, help="Image of all slivers; it needs python3.")
@click.option(
    "--boot", type=click.Choice(["direct", "loader"]), help="How virtual machines boot  [default: as the image]."
)
@click.option(
    "--seconds",
    type=click.IntRange(5, 120),
    default=15,
    show_default=True,
    help="Duration alone, beside the further sliver, and after the pressure, which lasts twice as long.",
)
@click.option("--workload", default="file", show_default=True, metavar="NAME", help=WORKLOADS_HELP)
@click.option(
    "--hog",
    type=click.Choice(_HOGS),
    default="stream",
    show_default=True,
    help="What the further sliver does: read a file, write to its memory, write to a file, run stress-ng.",
)
@_percent("--usage", 80, "Part of its guarantee that each sliver uses.")
@_percent("--guarantee", 30, "Part of the node's memory that is promised in all.")
@_percent("--ceiling", 0, "Memory limit of each sliver, as a part of its guarantee; 0: all, or 200 for machines.")
@_percent("--pressure", 40, "Part of the node's memory that a program takes.")
@click.option(
    "--external",
    type=click.Choice(("process", "balloon")),
    default="process",
    show_default=True,
    help="What takes it: with a balloon below the node, the kernel cannot move it to swap.",
)
@click.option("--slivers", type=int, default=2, show_default=True, help="To which memory is promised.")
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="KNOB=VALUE,...",
    help="Measure also with other values of one of these options, such as usage=50,120. Can be repeated.",
)
@click.option("--rate", default="256M", show_default=True, help="Bytes each second that the further sliver uses.")
@seed_option("the data and the order of the configurations", SEEDS)
@repeat_option(5)
@node_option
@frame_options
def memory(
    configurations: tuple[str, ...], varied: tuple[str, ...], name: str | None, frame: Frame, **how: Any
) -> None:
    """Measure what slivers keep of their speed when the node's memory runs short.

    Two containers that were promised 10 and 20 percent of the node's memory use memory that fits into that: alone, then
    while a further container, which was promised nothing, works in little memory. Then a program takes memory on the
    node, and the further container uses ever more at the same rate.
    `kernel`: only the kernel decides what is taken from whom. `guarantee`: it knows what is guaranteed, which takes
    control groups of version 2. `controller`: the memory controller works (`memory.controller = "on"`). `static`:
    each container is limited to its share. The node must have at most 16 GiB of memory, or run in a group with such
    a limit. Run it while nothing else uses the node: other slivers lose memory, too. With --workload memory and
    --hog rewrite, the slivers use memory of programs instead of files, which the node can take only if it has swap.
    """
    from slicemgr.bench.experiments import memory as experiment
    from slicemgr.bench.experiments.memory_setting import KNOBS, Setting, variants
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client
    from slicemgr.config import parse_size
    from slicemgr.errors import invalid

    if parse_size(how["rate"], "--rate") < 1 << 20:
        raise invalid("--rate", f"{how['rate']} is too little", "at least 1M")
    if how["boot"] and how["type"] == "lxc":
        raise invalid("--boot", "is for virtual machines", "omit the option, or use --type kvm")
    how["boot"] = how["boot"] or ""
    chosen_variants = tuple(variants(Setting(**{knob: how.pop(knob) for knob in KNOBS}), varied))
    with Client.local() as client:
        node = name or the_node(client)
        key, chosen = new_key(), tuple(dict.fromkeys(configurations))
        chosen = chosen or experiment.configurations(client.nodes.get(node)["facts"].get("cgroup"))

        def parameters(prefix: str) -> experiment.MemoryParameters:
            return experiment.MemoryParameters(Client.local, node, key, prefix, chosen, variants=chosen_variants, **how)

        carry_out(
            frame,
            client,
            node,
            experiment.NAME,
            parameters("").recorded,
            lambda prefix: experiment.Memory(parameters(prefix)),
        )
