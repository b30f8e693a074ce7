"""slicectl bench."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from slicemgr.cli import tables
from slicemgr.cli.human import printable
from slicemgr.cli.output import Output, as_table, output_options

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from slicemgr import wire

KINDS = click.Choice(["lxc", "kvm"])
BOOTS = click.Choice(["loader", "bios", "uefi", "direct"])
IMAGES = {"lxc": "debian-12", "kvm": "debian-12-small"}


@click.group()
def bench() -> None:
    """Measure this testbed, beside a baseline of the same run."""


def images(_context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Of each type; `NAME` is for all that are not named themselves."""
    found = dict(IMAGES)
    for value in sorted(values, key=lambda one: "=" in one):
        kind, named, image = value.rpartition("=")
        if named and kind not in IMAGES:
            raise click.BadParameter(f"{kind!r} is no type; write NAME, lxc=NAME or kvm=NAME", param=param)
        found.update({kind: image} if named else dict.fromkeys(IMAGES, image))
    return found


_TYPES = click.option(
    "--type", "kinds", type=KINDS, multiple=True, default=["lxc"], show_default=True, help="May be repeated."
)
_IMAGES = click.option(
    "--image",
    "images",
    callback=images,
    multiple=True,
    metavar="[TYPE=]NAME",
    help=f"Of all types, or of one; may be repeated ({', '.join(f'{kind}={name}' for kind, name in IMAGES.items())}).",
)


@bench.command()
@_TYPES
@_IMAGES
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
@click.option("--node", "name", help="Which node, if there are several.")
@output_options(tables.PHASES)
def lifecycle(
    kinds: tuple[str, ...],
    images: dict[str, str],
    boots: tuple[str, ...],
    count: int,
    parallel: int,
    memory: str,
    name: str | None,
    output: Output,
) -> None:
    """Create, wait for the ssh banner through the DNAT port, delete; the raw baseline is made first.

    created: libvirt has started it. console: the first byte on a virtual machine's serial console, which is its
    kernel's own when it boots directly, and otherwise the boot loader's; a container's kernel is the node's. Both are
    seen in the operation's steps, up to 0.3 s late.
    """
    from slicemgr.bench import lifecycle as experiment
    from slicemgr.bench import report
    from slicemgr.cli.node import the_node
    from slicemgr.client import Client

    with Client.local() as client:
        node = name or the_node(client)
    series = [
        experiment.Series(kind, images[kind], boot)
        for kind in dict.fromkeys(kinds)
        for boot in (dict.fromkeys(boots) if kind == "kvm" else ("",))
    ]
    plan = experiment.Plan(Client.local, series, count, parallel, _any_key(), memory, node)
    outcomes = experiment.run(plan, _progress)
    rows, totals = report.rows(outcomes), report.totals(outcomes)
    raw = {label: {"raw": one.baseline, "seconds": one.phases} for label, one in outcomes.items()}
    output.show(rows, {"phases": rows, "totals": totals, "series": raw})
    if output.for_people:
        click.echo("\n" + as_table(tables.TOTALS.columns, totals, header=True, rule=True), nl=False)


def _words(_context: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    import shlex

    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{error}: quote it as for a shell", param=param) from error


@bench.command()
@_TYPES
@_IMAGES
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
def throughput(kinds: tuple[str, ...], images: dict[str, str], name: str | None, output: Output, **how: Any) -> None:
    """iperf3 between a client and a sliver through its DNAT port, beside the plain link between client and node.

    The images must have iperf3. The client must not be the node itself. Slicectl on the node, the client on another
    machine: --client-exec 'ssh MACHINE'. Slicectl as the client: --node-exec 'ssh NODE', or 'tools/nodebox enter BOX
    --' for a node in a box.
    """
    from slicemgr.bench import throughput as experiment
    from slicemgr.cli.node import the_node
    from slicemgr.client import Client
    from slicemgr.client_ssh import known_hosts, ssh_words

    def login(name: str, sliver: wire.Sliver, identity: Path) -> list[str]:
        return ssh_words(sliver, known_hosts(name, sliver), str(identity), "root")

    with Client.local() as client:
        node = name or the_node(client)
    plan = experiment.Plan(Client.local, login, kinds, images, node, **how)
    rates = experiment.run(plan, _new_key(), _progress)
    rows = experiment.rows(rates)
    raw = [{"path": path, "direction": direction, "rates": values} for (path, direction), values in rates.items()]
    output.show(rows, {"paths": rows, "rounds": raw, "seconds": plan.seconds, "streams": plan.streams})


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
