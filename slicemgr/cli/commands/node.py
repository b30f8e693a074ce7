"""slicectl node: list, show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.errors import Code, Refused

if TYPE_CHECKING:
    from slicemgr.client import Client


@click.group(cls=Group)
def node() -> None:
    """Show the hosts that run slivers."""


@node.command("list")
@output_options(tables.NODES)
def list_nodes(output: Output) -> None:
    """List all nodes."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.nodes.list())


@node.command("show")
@click.argument("name", required=False)
@output_options(tables.NODES)
def show_node(name: str | None, output: Output) -> None:
    """Show the capacity and allocation of one node. NAME is optional if there is only one node."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.nodes.get(name or the_node(client))
        output.show([found], found)


def the_node(client: Client) -> str:
    """The name of the only node. Refused if there is none or more than one."""
    nodes = client.nodes.list()
    if len(nodes) != 1:
        names = ", ".join(one["name"] for one in nodes) or "no node has a running agent"
        raise Refused(Code.INVALID, "which node?", hint=names, field="NAME")
    return nodes[0]["name"]
