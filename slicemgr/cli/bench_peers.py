"""slicectl bench peers, and what such a run leaves when it is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench_frame import carry_out, frame_options

if TYPE_CHECKING:
    from slicemgr.cli.bench_frame import Frame
    from slicemgr.client import Client

_NAMES = ("docker", "podman-crun", "podman-runc", "lxd", "incus", "lxc", "nspawn")


@click.command()
@click.option(
    "--with",
    "chosen",
    type=click.Choice(_NAMES),
    multiple=True,
    help="A peer; may be repeated. All if left out; what is not installed is listed as not measured.",
)
@click.option("--image", default="debian-12", show_default=True, help="Of all; it must have sshd.")
@click.option("--count", type=click.IntRange(1, 1000), default=50, show_default=True, help="Containers of each.")
@click.option("--ports", type=click.IntRange(2, 22), default=20, show_default=True, help="Forwarded to each.")
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Made side by side.")
@click.option("--memory", default="256M", show_default=True, help="Hard limit of each.")
@click.option(
    "--seconds", type=click.IntRange(0, 600), default=5, show_default=True, help="Of each iperf3 run; 0 for none."
)
@click.option("--repeat", type=click.IntRange(1, 50), default=1, show_default=True, help="All of it, so many times.")
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses in which order the systems take turns.")
@click.option("--node", "name", help="Which node, if there are several.")
@frame_options
def peers(chosen: tuple[str, ...], name: str | None, frame: Frame, **how: Any) -> None:
    """The same work by slicemgr and by Docker, Podman, LXD, Incus, plain LXC, systemd-nspawn, as far as installed.

    For each: create to ssh's banner through a forwarded port, memory and disk of the node, iperf3 through a port,
    delete; of the same image, on the same pool, in the same run. Run it as root on the node itself. Peers run in
    namespaces of their own that end with slicectl; daemons that run already are neither used nor disturbed.
    """
    from slicemgr import config
    from slicemgr.bench import peers as experiment
    from slicemgr.cli.bench import any_key
    from slicemgr.cli.node import the_node
    from slicemgr.client import Client
    from slicemgr.errors import invalid

    if frame.keep:
        raise invalid("--keep", "a peer's containers do not outlive its step", "leave it out")
    config.parse_size(how["memory"], "--memory")
    _quiet()
    with Client.local() as client:
        node = name or the_node(client)
        pool = config.load().node.pool
        wanted = tuple(one for one in _NAMES if one in chosen or not chosen)

        def plan(prefix: str) -> experiment.Plan:
            return experiment.Plan(Client.local, node, any_key(), prefix, pool, wanted, **how)

        carry_out(
            frame, client, node, experiment.NAME, plan("").parameters, lambda prefix: experiment.Peers(plan(prefix))
        )


def clean(client: Client, node: str, prefix: str) -> None:
    """Whatever peers of a killed run left on this node. Refused elsewhere than as root on it."""
    from slicemgr import config
    from slicemgr.bench import peer_place
    from slicemgr.bench.peers import refuse_elsewhere

    _quiet()
    refuse_elsewhere(client, node)
    peer_place.remove(config.load().node.pool, prefix)


def _quiet() -> None:
    """What a program complains of is told with the step that it belongs to, and once."""
    import logging

    logging.getLogger("slicemgr").addHandler(logging.NullHandler())
