"""slicectl doctor and gc."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import seconds
from slicemgr.errors import Code, SlicemgrError

if TYPE_CHECKING:
    from slicemgr.client import Client

_timeout = click.option(
    "--timeout", callback=seconds, default="3m", show_default=True, metavar="TIME", help="Maximum time to wait."
)


@click.command()
@click.option("--node", "name", help="Node to use, if there are several.")
@_timeout
@output_options(tables.CHECKS)
def doctor(name: str | None, timeout: float, output: Output) -> int:
    """Check the requirements of the node and print remedies. The exit status is 1 if a check fails."""
    from slicemgr.cli.commands.node import the_node
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    try:
        with Client.local() as client:
            result = follow(client, client.nodes.doctor(name or the_node(client)), timeout)["result"] or {}
            checks = [*result.get("checks", []), _clock(client)]
    except SlicemgrError as error:
        if error.code in (Code.UNAVAILABLE, Code.TIMEOUT):
            error.hint = f"{error.hint}; `slicemgr doctor` as root checks the node without the service"
        raise
    output.show(checks, checks)
    return 1 if any(one["ok"] is False for one in checks) else 0


def _clock(client: Client) -> dict[str, object]:
    """The check of the clock that leases use, which the service does: the agent does not know it."""
    clock = client.leases.clock()
    remedy = "run `slicectl clock confirm` if the clock is right, else set the clock" if clock["doubt"] else ""
    detail = f"{clock['doubt']}; leases on hold: {clock['held']}" if clock["doubt"] else clock["says"]
    return {"name": "clock", "ok": None if clock["doubt"] else True, "detail": detail, "remedy": remedy}


@click.command()
@click.option("--node", "name", help="Node to use, if there are several.")
@click.option("--yes", is_flag=True, help="Remove the leftovers.")
@_timeout
@output_options(tables.LEFTOVERS)
def gc(name: str | None, yes: bool, timeout: float, output: Output) -> int:
    """List leftovers on the node: objects of slicemgr that belong to no slice or image. --yes removes them."""
    from slicemgr.cli.commands.node import the_node
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        result = follow(client, client.nodes.gc(name or the_node(client), apply=yes), timeout)["result"] or {}
    items = result.get("items", [])
    output.show(items, items)
    return 1 if yes and not all(one["removed"] or one["what"] == "kept disk" for one in items) else 0
