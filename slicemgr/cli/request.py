"""slicectl request: list, show, grant, decline, withdraw."""

from __future__ import annotations

from typing import Any

import click

from slicemgr.cli import tables_people as tables
from slicemgr.cli.output import Output, output_options
from slicemgr.cli.shared import each, seconds, time_options


@click.group()
def request() -> None:
    """Requests for slices beyond a project's quota."""


@request.command("list")
@click.option("--state", type=click.Choice(["waiting", "granted", "declined", "withdrawn"]), help="Only those.")
@click.option("--project", help="Only of this project.")
@click.option("--user", help="Only of this user.")
@time_options
@output_options(tables.REQUESTS)
def list_requests(output: Output, **filters: str | None) -> None:
    """Yours, and those you may decide."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.requests(**filters))


@request.command("show")
@click.argument("id")
@output_options(tables.REQUESTS)
def show_request(id: str, output: Output) -> None:
    """One request, and what became of it."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.request(id)
        output.show([found], found)


@request.command("grant")
@click.argument("id")
@click.option("--reason", default="", help="A word to who asked.")
@click.option("--count", type=int, help="Slivers, instead of what was asked for.")
@click.option("--cpu", type=float, help="Cores of each.")
@click.option("--memory", help="Of each, such as 512M.")
@click.option("--disk", help="Of each, such as 4G.")
@click.option("--ports", type=int, help="Of each.")
@click.option("--lease", help="Such as 7d.")
@click.option("--no-wait", is_flag=True, help="Return when the slice is allocated.")
@click.option("--timeout", callback=seconds, metavar="TIME", help="Stop waiting after this, such as 2m.")
@output_options(tables.REQUESTS)
def grant_request(id: str, reason: str, no_wait: bool, timeout: float | None, output: Output, **trimmed: Any) -> None:
    """Make the slice that was asked for, or less of it (PIs within the ceiling, admins)."""
    from slicemgr.cli.progress import follow
    from slicemgr.client import Client

    changes = {name: value for name, value in trimmed.items() if value is not None}
    with Client.local() as client:
        granted = client.grant_request(id, reason=reason, **changes)
        if not no_wait:
            follow(client, granted["operation"], timeout)
        output.show([granted["request"]], granted["request"])


@request.command("decline")
@click.argument("id")
@click.option("--reason", required=True, help="Why; who asked reads it.")
@output_options(tables.REQUESTS)
def decline_request(id: str, reason: str, output: Output) -> None:
    """Say no, with the reason (PIs, admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        declined = client.decline_request(id, reason)
        output.show([declined], declined)


@request.command("withdraw")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
def withdraw_requests(ids: tuple[str, ...]) -> int:
    """Take back requests of yours."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, client.withdraw_request)
