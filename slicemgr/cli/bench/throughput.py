"""slicectl bench throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.keys import new_key
from slicemgr.cli.bench.options import default_images_option, memory_option, node_option, repeat_option, types_option

if TYPE_CHECKING:
    from slicemgr.cli.bench.frame import Frame


_SLOWEST = 10**6  # bits per second


def _words(_context: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    import shlex

    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{error}; quote it as in a shell", param=param) from error


def _links(_context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from slicemgr.config import parse_rate
    from slicemgr.errors import Refused

    for value in values:
        try:
            slow = value != "unlimited" and parse_rate(value, "--link") < _SLOWEST
        except Refused as error:
            raise click.BadParameter(f"{error.message}; use `unlimited`, or {error.hint}", param=param) from error
        if slow:
            raise click.BadParameter(f"{value!r} is too low; use at least 1Mbit", param=param)
    return tuple(dict.fromkeys(values))


_COUNT = click.IntRange(1, 1000)
_OPTIONS = (
    types_option,
    default_images_option,
    click.option(
        "--link",
        "links",
        callback=_links,
        multiple=True,
        default=["unlimited", "1Gbit"],
        show_default=True,
        metavar="RATE",
        help="Rate of the link between the nodes, limited at both ends; can be repeated.",
    ),
    click.option(
        "--talkers",
        type=_COUNT,
        multiple=True,
        default=[1, 10, 50, 200],
        show_default=True,
        help="Number of lxc slivers that transfer at the same time; can be repeated.",
    ),
    click.option("--no-talkers", is_flag=True, help="Measure the table only, with one sliver of each type."),
    click.option("--plain-talkers", "plain", is_flag=True, help="Also measure as many connections from node to node."),
    click.option(
        "--direction",
        "directions",
        type=click.Choice(["in", "out"]),
        multiple=True,
        default=["in"],
        show_default=True,
        help="Direction of the data: to or from this node. The peer always opens the connections. Can be repeated.",
    ),
    click.option(
        "--seconds", type=click.IntRange(1, 7200), default=420, show_default=True, help="Duration of each measurement."
    ),
    click.option(
        "--discard",
        type=click.IntRange(0, 7200),
        help="Seconds at the start that are discarded (3/7, as in the paper).",
    ),
    click.option("--interval", type=click.IntRange(1, 60), default=10, show_default=True, help="Duration of a sample."),
    click.option(
        "--streams", type=click.IntRange(1, 64), default=1, show_default=True, help="Number of connections of one pair."
    ),
    click.option(
        "--congestion",
        default="",
        metavar="NAME",
        help="TCP congestion control, such as cubic  [default: the setting of each end].",
    ),
    memory_option("sliver"),
    repeat_option(),
    click.option(
        "--peer",
        default="",
        metavar="FILE",
        help="client.json of the other node, whose slivers become the clients  [default: the peer itself].",
    ),
    click.option(
        "--peer-node", default="", help="Node of the service of the peer, or without --peer, of this service."
    ),
    click.option(
        "--peer-exec",
        callback=_words,
        default="",
        metavar="WORDS",
        help="Command that runs programs on the peer, such as 'ssh HOST'  [default: run them here].",
    ),
    click.option(
        "--node-exec",
        callback=_words,
        default="",
        metavar="WORDS",
        help="Command that runs programs on the node  [default: run them here].",
    ),
    click.option("--address", default="", help="Address of the node for the peer  [default: its announced address]."),
    click.option(
        "--port", type=click.IntRange(1, 64000), default=5201, show_default=True, help="Ports of the plain servers."
    ),
    node_option,
)


def _options(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@_options
@frame_options
def throughput(
    name: str | None,
    peer: str,
    peer_node: str,
    peer_exec: tuple[str, ...],
    node_exec: tuple[str, ...],
    address: str,
    no_talkers: bool,
    discard: int | None,
    frame: Frame,
    **how: Any,
) -> None:
    """Measure iperf3 between two nodes and between their slivers, through NAT and DNAT.

    The experiment reproduces table 2 of the CoreLab paper: 7 minutes each with the first 3 discarded, in samples of
    10 seconds, then with several slivers at the same time. On the node, run it as root with --peer-exec 'ssh PEER'
    --peer client-of-peer.json. Elsewhere, add --node-exec 'ssh NODE'. The images need iperf3. `tc` limits the rate at
    both ends of the link and is removed at the end; an existing rate limit is an error. Ctrl-C deletes the slices and
    keeps the measurements.
    """
    from slicemgr.bench.experiments import throughput as experiment
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client

    how["talkers"] = () if no_talkers else tuple(sorted(set(how["talkers"])))
    for several in ("types", "directions"):
        how[several] = tuple(dict.fromkeys(how[several]))
    how["kinds"] = how.pop("types")  # its name in run.json
    how["discard"] = how["seconds"] * 3 // 7 if discard is None else discard
    _check_times(how["seconds"], how["discard"], how["interval"])
    with Client.local() as client:
        recorded: dict[str, Any] = {
            **how,
            "node": name or the_node(client),
            "peer": peer,
            "peer_exec": _joined(peer_exec),
            "node_exec": _joined(node_exec),
        }
        recorded["address"] = address or client.nodes.get(recorded["node"])["address"]
        if peer and not peer_node:
            with experiment.peer_client(peer)() as other:
                peer_node = the_node(other)
        recorded["peer_node"] = peer_node

        def parameters(prefix: str) -> experiment.ThroughputParameters:
            return experiment.from_recorded(recorded, Client.local, new_key(), prefix)

        complete = parameters("").recorded
        carry_out(
            frame,
            client,
            recorded["node"],
            experiment.NAME,
            complete,
            lambda prefix: experiment.Throughput(parameters(prefix)),
        )


def _check_times(seconds: int, discard: int, interval: int) -> None:
    """Refused if not even one sample counts."""
    from slicemgr.errors import invalid

    if discard >= seconds:
        raise invalid("--discard", f"discarding {discard} s of {seconds} s leaves no samples", "fewer")
    if -(-discard // interval) * interval >= seconds:
        message = f"no sample of {interval} s begins between {discard} s and {seconds} s"
        raise invalid("--interval", message, "use a shorter interval")


def _joined(words: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(words)
