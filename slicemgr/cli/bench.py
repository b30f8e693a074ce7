"""slicectl bench."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from slicemgr.cli import tables
from slicemgr.cli.human import printable, size
from slicemgr.cli.output import Output, output_options

if TYPE_CHECKING:
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
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PrivateKey.generate().public_key()
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
