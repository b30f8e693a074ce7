"""slicectl request: list, show, grant, decline, withdraw."""

from __future__ import annotations

from typing import Any

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables_people as tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import each, seconds, time_options


@click.group(cls=Group)
def request() -> None:
    """Manage requests for slices and larger disk limits that exceed the quota of a project."""


@request.command("list")
@click.option(
    "--state", type=click.Choice(["waiting", "granted", "declined", "withdrawn"]), help="Only requests in this state."
)
@click.option("--project", help="Only requests of this project.")
@click.option("--user", help="Only requests of this user.")
@time_options
@output_options(tables.REQUESTS)
def list_requests(output: Output, **filters: str | None) -> None:
    """List your requests and those that you can decide."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.requests.list(**filters))


@request.command("show")
@click.argument("id")
@output_options(tables.REQUESTS)
def show_request(id: str, output: Output) -> None:
    """Show one request and its state."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.requests.get(id)
        output.show([found], found)


@request.command("grant")
@click.argument("id")
@click.option("--reason", default="", help="Message to the requester.")
@click.option("--count", type=int, help="Number of slivers, instead of the requested number.")
@click.option("--cpu", type=float, help="CPU cores per sliver.")
@click.option("--memory", help="Memory limit per sliver, such as 512M.")
@click.option("--memory-guarantee", help="Memory guarantee per sliver, such as 256M.")
@click.option("--disk", help="Disk limit per sliver, such as 4G.")
@click.option("--ports", type=int, help="Ports per sliver.")
@click.option("--lease", help="Lease, such as 7d.")
@click.option("--no-wait", is_flag=True, help="Return when the service has allocated the slice.")
@click.option("--timeout", callback=seconds, metavar="TIME", help="Maximum time to wait, such as 2m.")
@output_options(tables.REQUESTS)
def grant_request(id: str, reason: str, no_wait: bool, timeout: float | None, output: Output, **trimmed: Any) -> None:
    """Grant a request, with fewer resources if given (PIs within the ceiling, admins)."""
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    changes = {name: value for name, value in trimmed.items() if value is not None}
    with Client.local() as client:
        granted = client.requests.grant(id, reason=reason, **changes)
        if not no_wait:
            follow(client, granted["operation"], timeout)
        output.show([granted["request"]], granted["request"])


@request.command("decline")
@click.argument("id")
@click.option("--reason", required=True, help="Reason, shown to the requester.")
@output_options(tables.REQUESTS)
def decline_request(id: str, reason: str, output: Output) -> None:
    """Decline a request with a reason (PIs, admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        declined = client.requests.decline(id, reason)
        output.show([declined], declined)


@request.command("withdraw")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
def withdraw_requests(ids: tuple[str, ...]) -> int:
    """Withdraw your requests."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, client.requests.withdraw)
