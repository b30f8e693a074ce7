"""slicectl op: list, show, wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import seconds, time_options

if TYPE_CHECKING:
    from slicemgr import wire


@click.group(cls=Group)
def op() -> None:
    """Show operations and their progress."""


@op.command("list")
@click.option(
    "--state", type=click.Choice(["queued", "running", "done", "failed"]), help="Only operations in this state."
)
@click.option("--slice", "slice_name", help="Only operations on this slice.")
@click.option("--kind", help="Only operations of this kind, such as create.")
@click.option("--project", help="Only operations of this project.")
@click.option("--user", help="Only operations requested by this user.")
@time_options
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Most lines.")
@output_options(tables.OPERATIONS)
def list_operations(slice_name: str | None, limit: int, output: Output, **filters: str | None) -> None:
    """List the newest operations."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.operations.list(slice=slice_name, limit=limit, **filters))


@op.command("show")
@click.argument("id")
@output_options(tables.STEPS)
def show_operation(id: str, output: Output) -> None:
    """Show one operation with its steps."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.operations.get(id)
        if output.for_people and output.header and not output.chosen:
            from slicemgr.cli.render.human import text

            subject = found["slice"] or found["image"]
            error = f": {text(found['error'])}" if found["error"] else ""
            click.echo(f"{text(found['kind'])} {text(subject)} by {text(found['user'])}: {text(found['state'])}{error}")
            parts = found.get("parts", [])
            for part in parts if len(parts) > 1 else ():
                click.echo(f"  {_part(part)}")
        output.show(found["steps"], found)


def _part(part: wire.OperationPart) -> str:
    """One line for people about a part."""
    from slicemgr.cli.render.human import text

    done, total = part["progress"]["done"], part["progress"]["total"]
    counts = f", {done} of {total} slivers" if total else ""
    error = f": {text(part['error'])}" if part["error"] else ""
    waits = f", waits for the node: no report since {text(silent)}" if (silent := part.get("silent_since")) else ""
    return f"{text(part['node'])}: {text(part['state'])}{counts}{waits}{error}"


@op.command("wait")
@click.argument("id")
@click.option(
    "--timeout", callback=seconds, metavar="TIME", help="Maximum time to wait, such as 2m; then exit with status 6."
)
def wait_operation(id: str, timeout: float | None) -> None:
    """Wait until an operation has ended. The exit status is 1 if it failed."""
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        follow(client, client.operations.get(id), timeout)
