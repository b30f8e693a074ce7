"""slicectl audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli.bench.keys import new_key
from slicemgr.cli.bench.options import default_images_option
from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicemgr.client import Client


@click.command()
@click.option(
    "--type",
    "types",
    type=click.Choice(["lxc", "kvm"]),
    multiple=True,
    help="Can be repeated.  [default: all supported types]",
)
@default_images_option
@click.option(
    "--init",
    type=click.Choice(["minimal", "systemd"]),
    default="minimal",
    show_default=True,
    help="First process of the lxc slivers.",
)
@click.option("--node", "name", help="Node to audit, if there are several.")
@click.option(
    "--patience", default="5m", show_default=True, help="Time limit for each thing that the node creates for the audit."
)
@click.option(
    "--rest/--no-rest",
    "with_rest",
    default=True,
    show_default=True,
    help="Request the REST routes as a member of another project, too; this imports two small disk images.",
)
@click.option("--last", is_flag=True, help="Show the last audit of the node without running one.")
@output_options(tables.AUDIT)
def audit(
    types: tuple[str, ...],
    images: dict[str, str],
    init: str,
    name: str | None,
    patience: str,
    with_rest: bool,
    last: bool,
    output: Output,
) -> int:
    """Attempt forbidden operations inside temporary slivers. The exit status is 1 if a check fails.

    It creates slivers of each type in two temporary projects and deletes them. Probes stop a small margin above a
    sliver's limits. A check that does not apply to a type is `not applicable`, and the row gives the reason. The result
    is stored: `slicectl audit --last` and the page of the node show it.
    """
    from datetime import UTC, datetime

    from slicemgr.audit import run
    from slicemgr.cli.commands.node import the_node
    from slicemgr.cli.render.errors import say
    from slicemgr.client import Client, find_settings
    from slicemgr.config import parse_duration

    seconds = parse_duration(patience, "--patience").total_seconds()
    with Client.local() as client:
        node = name or the_node(client)
        if last:
            known = client.audits.get(node)
        else:
            from contextlib import closing

            from slicemgr.bench.frame.slivers import Key

            chosen = {sliver_type: images[sliver_type] for sliver_type in dict.fromkeys(types or _able(client, node))}
            began = datetime.now(UTC)
            with closing(Key(new_key())) as key:
                task = run.Audit(client, node, chosen, key, find_settings().token, say, init=init)
                found = task.run(seconds, with_rest=with_rest)
            known = client.audits.put(node, run.report(found, began))
    rows = [dict(one) for one in known["rows"]]
    output.show(rows, known)
    return 1 if known["failed"] else 0


def _able(client: Client, node: str) -> Sequence[str]:
    """The types that the node can run."""
    can = client.nodes.get(node)["facts"].get("kinds") or {}
    return [sliver_type for sliver_type in ("lxc", "kvm") if isinstance(can, dict) and can.get(sliver_type)]
