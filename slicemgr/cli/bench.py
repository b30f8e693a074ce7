"""slicectl bench."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from slicemgr.cli import tables
from slicemgr.cli.human import printable, size
from slicemgr.cli.output import Output, output_options

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from slicemgr import wire
    from slicemgr.bench.lifecycle import Outcome


@click.group()
def bench() -> None:
    """Measure this testbed, beside a baseline of the same run."""


@bench.command()
@click.option("--type", "kind", type=click.Choice(["lxc"]), default="lxc", show_default=True)
@click.option("--image", default="debian-12", show_default=True)
@click.option("--count", type=click.IntRange(1, 500), default=20, show_default=True, help="Slices of one sliver each.")
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Made side by side.")
@click.option("--memory", default="256M", show_default=True, help="Hard limit of each.")
@click.option("--node", "name", help="Which node, if there are several.")
@output_options(tables.PHASES)
def lifecycle(kind: str, image: str, count: int, parallel: int, memory: str, name: str | None, output: Output) -> None:
    """Create, wait for the ssh banner through the DNAT port, delete; the raw baseline is made first."""
    from slicemgr.bench import lifecycle as experiment
    from slicemgr.cli.node import the_node
    from slicemgr.client import Client

    with Client.local() as client:
        node = name or the_node(client)
    plan = experiment.Plan(Client.local, kind, image, count, parallel, _any_key(), memory, node)
    outcome = experiment.run(plan, _progress)
    summary = experiment.summary(outcome, count)
    rows = experiment.rows(outcome)
    output.show(rows, {"phases": rows, "summary": summary, "raw": outcome.baseline, "seconds": outcome.phases})
    if output.for_people:
        click.echo(_tell(summary, outcome))


def _words(_context: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    import shlex

    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{error}: quote it as for a shell", param=param) from error


@bench.command()
@click.option(
    "--type",
    "kinds",
    type=click.Choice(["lxc", "kvm"]),
    multiple=True,
    default=["lxc"],
    show_default=True,
    help="May be repeated.",
)
@click.option("--image", default="debian-12", show_default=True, help="Must have iperf3.")
@click.option("--seconds", type=click.IntRange(1, 600), default=5, show_default=True, help="Of each measurement.")
@click.option("--streams", type=click.IntRange(1, 64), default=1, show_default=True, help="Connections at once.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Of all measurements.")
@click.option(
    "--client-exec",
    "client",
    callback=_words,
    default="",
    metavar="WORDS",
    help="Starts iperf3 where the client is, such as 'ssh host'; here if left out.",
)
@click.option(
    "--node-exec",
    "server",
    callback=_words,
    default="",
    metavar="WORDS",
    help="Starts the plain link's iperf3 on the node; here if left out.",
)
@click.option("--address", default="", help="Where the client reaches the node; its announced address if left out.")
@click.option("--port", type=click.IntRange(1, 65535), default=5201, show_default=True, help="Of the plain server.")
@click.option("--node", "name", help="Which node, if there are several.")
@output_options(tables.THROUGHPUT)
def throughput(kinds: tuple[str, ...], image: str, name: str | None, output: Output, **how: Any) -> None:
    """iperf3 between a client and a sliver through its DNAT port, beside the plain link between client and node.

    The client must not be the node itself. Slicectl on the node, the client on another machine: --client-exec 'ssh
    MACHINE'. Slicectl as the client: --node-exec 'ssh NODE', or 'tools/nodebox enter BOX --' for a node in a box.
    """
    from slicemgr.bench import throughput as experiment
    from slicemgr.cli.node import the_node
    from slicemgr.cli.ssh import known_hosts, ssh_words
    from slicemgr.client import Client

    def login(name: str, sliver: wire.Sliver, identity: Path) -> list[str]:
        return ssh_words(sliver, known_hosts(name, sliver), str(identity), "root")

    with Client.local() as client:
        node = name or the_node(client)
    plan = experiment.Plan(Client.local, login, kinds, image, node, **how)
    rates = experiment.run(plan, _new_key(), _progress)
    rows = experiment.rows(rates)
    raw = [{"path": path, "direction": direction, "rates": values} for (path, direction), values in rates.items()]
    output.show(rows, {"paths": rows, "rounds": raw, "seconds": plan.seconds, "streams": plan.streams})


def _tell(summary: dict[str, float], outcome: Outcome) -> str:
    return (
        f"create: {summary['count']} in {summary['create_seconds']:.1f} s, "
        f"{summary['create_per_second']:.1f} a second, "
        f"{summary['create_ratio']:.2f} × raw; last to first: {summary['last_to_first']:.2f}\n"
        f"delete: {summary['delete_seconds']:.1f} s, {summary['delete_ratio']:.2f} × raw\n"
        f"each:   {size(outcome.memory)} of host memory, {size(outcome.disk)} of disk"
    )


def _progress(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{printable(what)} {done}/{total}   " + ("\n" if done == total else ""))


def _any_key() -> str:
    """The slices need a key that nobody will use: its private half is thrown away."""
    return _new_key()[0]


def _new_key() -> tuple[str, bytes]:
    """The line of the public half, and the private half as ssh reads it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return public, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
