"""slicectl event list."""

from __future__ import annotations

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import project_option, time_options


@click.group(cls=Group)
def event() -> None:
    """Show the event log."""


@event.command("list")
@click.option("--slice", "slice_name", help="Only events of this slice.")
@click.option("--user", help="Only events of this user.")
@click.option("--action", help="Only this action, such as create.")
@time_options
@project_option
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most lines.")
@output_options(tables.EVENTS)
def list_events(slice_name: str | None, limit: int, output: Output, **filters: str | None) -> None:
    """List the newest events."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.events.list(slice=slice_name, limit=limit, **filters))
