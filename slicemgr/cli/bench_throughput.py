"""slicectl bench throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench_frame import carry_out, frame_options
from slicemgr.cli.bench_keys import images_option, new_key, types_option

if TYPE_CHECKING:
    from slicemgr.cli.bench_frame import Frame


_SLOWEST = 10**6  # bits per second


def _words(_context: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    import shlex

    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{error}: quote it as for a shell", param=param) from error


def _links(_context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from slicemgr.config import parse_rate
    from slicemgr.errors import Refused

    for value in values:
        try:
            slow = value != "unlimited" and parse_rate(value, "--link") < _SLOWEST
        except Refused as error:
            raise click.BadParameter(f"{error.message}; `unlimited`, or {error.hint}", param=param) from error
        if slow:
            raise click.BadParameter(f"{value!r} is too slow; at least 1Mbit", param=param)
    return tuple(dict.fromkeys(values))


_COUNT = click.IntRange(1, 1000)
_OPTIONS = (
    types_option,
    images_option,
    click.option(
        "--link",
        "links",
        callback=_links,
        multiple=True,
        default=["unlimited", "1Gbit"],
        show_default=True,
        metavar="RATE",
        help="The link between the nodes as it is, and held to a rate at both ends; may be repeated.",
    ),
    click.option(
        "--talkers",
        type=_COUNT,
        multiple=True,
        default=[1, 10, 50, 200],
        show_default=True,
        help="So many lxc slivers talk at once; may be repeated.",
    ),
    click.option("--no-talkers", is_flag=True, help="Only the table: one sliver of each type."),
    click.option("--plain-talkers", "plain", is_flag=True, help="As many connections from node to node beside them."),
    click.option(
        "--direction",
        "directions",
        type=click.Choice(["in", "out"]),
        multiple=True,
        default=["in"],
        show_default=True,
        help="Data to this node, or from it; connections always come from the peer. May be repeated.",
    ),
    click.option(
        "--seconds", type=click.IntRange(1, 7200), default=420, show_default=True, help="Of each measurement."
    ),
    click.option(
        "--discard",
        type=click.IntRange(0, 7200),
        help="Seconds of them that do not count (3/7, as in the paper).",
    ),
    click.option("--interval", type=click.IntRange(1, 60), default=10, show_default=True, help="Seconds of a sample."),
    click.option(
        "--streams", type=click.IntRange(1, 64), default=1, show_default=True, help="Connections of one pair."
    ),
    click.option(
        "--congestion",
        default="",
        metavar="NAME",
        help="TCP's congestion control, such as cubic; each end's own if left out.",
    ),
    click.option("--memory", default="256M", show_default=True, help="Hard limit of each sliver."),
    click.option(
        "--repeat", type=click.IntRange(1, 50), default=1, show_default=True, help="All of it, so many times."
    ),
    click.option(
        "--peer",
        default="",
        metavar="FILE",
        help="The other node's client.json: slivers there are the clients. Left out: the peer itself is.",
    ),
    click.option("--peer-node", default="", help="Which node of the peer's service; without --peer: of this one."),
    click.option(
        "--peer-exec",
        callback=_words,
        default="",
        metavar="WORDS",
        help="Starts programs on the peer, such as 'ssh HOST'; here if left out.",
    ),
    click.option(
        "--node-exec",
        callback=_words,
        default="",
        metavar="WORDS",
        help="Starts programs on the node; here if left out.",
    ),
    click.option("--address", default="", help="Where the peer reaches the node; its announced address if left out."),
    click.option("--port", type=click.IntRange(1, 64000), default=5201, show_default=True, help="Of plain servers."),
    click.option("--node", "name", help="Which node, if there are several."),
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
    """iperf3 between two nodes, and between slivers of them, through NAT at the one and DNAT at the other.

    The CoreLab paper's table 2: 7 minutes each, the first 3 not counted, in samples of 10 seconds; then as many slivers
    talk at once. slicectl on the node, as root: --peer-exec 'ssh PEER' --peer client-of-peer.json. Elsewhere:
    --node-exec 'ssh NODE', too. The images need iperf3. A rate is held by `tc` at both ends of the link and taken away
    at the end; where one is set already, it is refused. Ctrl-C deletes what was made and keeps what was measured.
    """
    from slicemgr.bench import throughput as experiment
    from slicemgr.cli.node import the_node
    from slicemgr.client import Client

    how["talkers"] = () if no_talkers else tuple(sorted(set(how["talkers"])))
    for several in ("kinds", "directions"):
        how[several] = tuple(dict.fromkeys(how[several]))
    how["discard"] = how["seconds"] * 3 // 7 if discard is None else discard
    _check_times(how["seconds"], how["discard"], how["interval"])
    with Client.local() as client:
        parameters: dict[str, Any] = {
            **how,
            "node": name or the_node(client),
            "peer": peer,
            "peer_exec": _joined(peer_exec),
            "node_exec": _joined(node_exec),
        }
        parameters["address"] = address or client.node(parameters["node"])["address"]
        if peer and not peer_node:
            with experiment.peer_client(peer)() as other:
                peer_node = the_node(other)
        parameters["peer_node"] = peer_node

        def plan(prefix: str) -> experiment.Plan:
            return experiment.plan_of(parameters, Client.local, new_key(), prefix)

        told = plan("").parameters
        carry_out(
            frame, client, parameters["node"], experiment.NAME, told, lambda prefix: experiment.Throughput(plan(prefix))
        )


def _check_times(seconds: int, discard: int, interval: int) -> None:
    """Refused if not even one sample counts."""
    from slicemgr.errors import invalid

    if discard >= seconds:
        raise invalid("--discard", f"{discard} s of {seconds} leave nothing to count", "fewer")
    if -(-discard // interval) * interval >= seconds:
        message = f"no sample of {interval} s begins between {discard} s and {seconds} s"
        raise invalid("--interval", message, "a shorter one")


def _joined(words: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(words)
