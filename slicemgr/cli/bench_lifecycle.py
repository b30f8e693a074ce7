"""slicectl bench lifecycle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench_frame import carry_out, frame_options
from slicemgr.cli.bench_keys import images_option, new_key, types_option

if TYPE_CHECKING:
    from slicemgr.cli.bench_frame import Frame

BOOTS = click.Choice(["loader", "bios", "uefi", "direct"])


@click.command()
@types_option
@images_option
@click.option(
    "--boot",
    "boots",
    type=BOOTS,
    multiple=True,
    default=["loader"],
    show_default=True,
    help="How virtual machines start; may be repeated, and each way is a series of its own.",
)
@click.option("--count", type=click.IntRange(1, 500), default=20, show_default=True, help="Slices of one sliver each.")
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Made side by side.")
@click.option("--memory", default="256M", show_default=True, help="Hard limit of each.")
@click.option("--repeat", type=click.IntRange(1, 50), default=1, show_default=True, help="All of it, so many times.")
@click.option("--ping", default="", metavar="ADDRESS", help="Whom the slivers ping; their gateway if left out.")
@click.option("--node", "name", help="Which node, if there are several.")
@frame_options
def lifecycle(
    kinds: tuple[str, ...],
    images: dict[str, str],
    boots: tuple[str, ...],
    name: str | None,
    frame: Frame,
    **how: Any,
) -> None:
    """Create, wait for the ssh banner through the DNAT port, work inside, delete; the raw baseline is made first.

    prepared: the root is made. started: libvirt has started it. console: the first byte on a virtual machine's serial
    console, its kernel's own when it boots directly, else the boot loader's, seen up to 0.3 s late. Then each sliver
    runs a command by ssh, starts a web server that is asked through the next port, and pings.
    """
    from slicemgr.bench import lifecycle as experiment
    from slicemgr.cli.node import the_node
    from slicemgr.client import Client

    series = [
        experiment.Series(kind, images[kind], boot)
        for kind in dict.fromkeys(kinds)
        for boot in (dict.fromkeys(boots) if kind == "kvm" else ("",))
    ]
    with Client.local() as client:
        node = name or the_node(client)

        def plan(prefix: str) -> experiment.Plan:
            return experiment.Plan(Client.local, series, node, new_key(), prefix, **how)

        carry_out(
            frame, client, node, experiment.NAME, plan("").parameters, lambda prefix: experiment.Lifecycle(plan(prefix))
        )
