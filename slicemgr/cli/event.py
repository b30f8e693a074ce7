"""slicectl event list."""

from __future__ import annotations

import click

from slicemgr.cli import tables
from slicemgr.cli.output import Output, output_options
from slicemgr.cli.shared import project_option, time_options


@click.group()
def event() -> None:
    """Who did what, and when."""


@event.command("list")
@click.option("--slice", "slice_name", help="Only those about this slice.")
@click.option("--user", help="Only what this user did.")
@click.option("--action", help="Only this, such as create.")
@time_options
@project_option
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most lines.")
@output_options(tables.EVENTS)
def list_events(slice_name: str | None, limit: int, output: Output, **filters: str | None) -> None:
    """The newest events."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.events(slice=slice_name, limit=limit, **filters))
