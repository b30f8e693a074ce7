"""slicectl list, show, renew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli import tables
from slicemgr.cli.output import Output, output_options
from slicemgr.cli.shared import slice_names

if TYPE_CHECKING:
    from slicemgr import wire


@click.command("list")
@click.option("--state", help="Only slices in this state.")
@click.option("--type", "kind", metavar="lxc|kvm", help="Only slices of this type.")
@click.option("--image", help="Only slices of this image.")
@output_options(tables.SLICES)
def list_slices(state: str | None, kind: str | None, image: str | None, output: Output) -> None:
    """All slices."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.slices(state=state, type=kind, image=image))


@click.command()
@click.argument("name", shell_complete=slice_names)
@output_options(tables.SLIVERS)
def show(name: str, output: Output) -> None:
    """One slice and its slivers."""
    from slicemgr.client import Client

    with Client.local() as client:
        _print(client.slice(name), output)


@click.command()
@click.argument("name", shell_complete=slice_names)
@click.option("--lease", required=True, help="From now on, such as 7d; policy may grant less.")
@output_options(tables.SLICES)
def renew(name: str, lease: str, output: Output) -> None:
    """Let a slice live on; prints the end that was granted."""
    from slicemgr.client import Client

    with Client.local() as client:
        renewed = client.renew_slice(name, lease)
        output.show([renewed], renewed)


def _print(slice: wire.Slice, output: Output) -> None:
    """For people, a line about the whole before its slivers."""
    if output.for_people and output.header and not output.chosen:
        from slicemgr.cli.human import text, when

        words = (
            f"{text(slice['name'])}: {text(slice['type'])} of {text(slice['image'])}, {text(slice['state'])}, "
            f"owner {text(slice['owner'])}, project {text(slice['project'])}, lease ends {when(slice['expires_at'])}"
        )
        click.echo(words)
    output.show(slice["slivers"], slice)
