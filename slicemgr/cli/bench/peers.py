"""slicectl bench peers, and how to remove what a killed run left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.options import memory_option, node_option, parallel_option, repeat_option, seed_option

if TYPE_CHECKING:
    from slicemgr.cli.bench.frame import Frame
    from slicemgr.client import Client

_NAMES = ("docker", "podman-crun", "podman-runc", "lxd", "incus", "lxc", "nspawn")


@click.command()
@click.option(
    "--with",
    "chosen",
    type=click.Choice(_NAMES),
    multiple=True,
    help="Peer to measure; can be repeated  [default: all]. The report lists peers that are not installed.",
)
@click.option("--image", default="debian-12", show_default=True, help="Image of all systems. It needs sshd.")
@click.option(
    "--count", type=click.IntRange(1, 1000), default=50, show_default=True, help="Number of containers of each system."
)
@click.option(
    "--ports", type=click.IntRange(2, 22), default=20, show_default=True, help="Ports forwarded to each container."
)
@parallel_option("containers")
@memory_option("container")
@click.option(
    "--seconds",
    type=click.IntRange(0, 600),
    default=5,
    show_default=True,
    help="Duration of each iperf3 run; 0 for none.",
)
@repeat_option()
@seed_option("the order of the systems")
@node_option
@frame_options
def peers(chosen: tuple[str, ...], name: str | None, frame: Frame, **how: Any) -> None:
    """Compare slicemgr with Docker, Podman, LXD, Incus, plain LXC and systemd-nspawn where they are installed.

    For each system it measures the time from create to the SSH banner through a forwarded port, memory and disk of the
    node, iperf3 through a port, and delete, with the same image and pool and in the same run. Run it as root on the
    node. Peers run in their own namespaces, which end with slicectl. Existing daemons are neither used nor changed.
    """
    from slicemgr import config
    from slicemgr.bench.experiments import peers as experiment
    from slicemgr.cli.bench.keys import any_key
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client
    from slicemgr.errors import invalid

    if frame.keep:
        raise invalid("--keep", "the containers of a peer are removed at the end of its step", "omit the option")
    config.parse_size(how["memory"], "--memory")
    _quiet()
    with Client.local() as client:
        node = name or the_node(client)
        pool = config.load().node.pool
        wanted = tuple(one for one in _NAMES if one in chosen or not chosen)

        def parameters(prefix: str) -> experiment.PeersParameters:
            return experiment.PeersParameters(Client.local, node, any_key(), prefix, pool, wanted, **how)

        carry_out(
            frame,
            client,
            node,
            experiment.NAME,
            parameters("").recorded,
            lambda prefix: experiment.Peers(parameters(prefix)),
        )


def clean(client: Client, node: str, prefix: str) -> None:
    """Remove what the peers of a killed run left on this node. Refused unless it runs as root on the node."""
    from slicemgr import config
    from slicemgr.bench.experiments.peers import refuse_elsewhere
    from slicemgr.bench.peers import namespaces

    _quiet()
    refuse_elsewhere(client, node)
    namespaces.remove(config.load().node.pool, prefix)


def _quiet() -> None:
    """Do not log the errors of programs: the step that they belong to reports them."""
    import logging

    logging.getLogger("slicemgr").addHandler(logging.NullHandler())
