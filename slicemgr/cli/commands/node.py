"""slicectl node: list, show, add, remove, rename, drain, undrain, resync, evacuate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import confirm, yes_option
from slicemgr.errors import Code, Refused

if TYPE_CHECKING:
    from slicemgr.client import Client


@click.group(cls=Group)
def node() -> None:
    """Show and manage the hosts that run slivers."""


@node.command("list")
@output_options(tables.NODES)
def list_nodes(output: Output) -> None:
    """List all nodes."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.nodes.list())


@node.command("show")
@click.argument("name", required=False)
@output_options(tables.NODE)
def show_node(name: str | None, output: Output) -> None:
    """Show the capacity and allocation of one node. NAME is optional if there is only one node."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.nodes.get(name or the_node(client))
        output.show([found], found)


@node.command("add")
@click.argument("name")
@click.option("--site", default="", help="Where the node is, such as tuebingen.")
def add_node(name: str, site: str) -> None:
    """Add a node, and print the command that its host runs as root, once and within an hour (admins).

    Until the host has joined, repeating this prints a new command and makes the old one invalid.
    """
    from slicemgr.client import Client

    with Client.local() as client:
        click.echo(client.nodes.add(name, site)["command"])


@node.command("remove")
@click.argument("name")
@yes_option
def remove_node(name: str, yes: bool) -> None:
    """Remove a node without slivers, and revoke its certificate (admins)."""
    from slicemgr.client import Client

    confirm(f"Remove node {name}?", yes)
    with Client.local() as client:
        client.nodes.remove(name)


@node.command("rename")
@click.argument("name")
@click.argument("new")
def rename_node(name: str, new: str) -> None:
    """Rename a node that joined with a command of `slicectl node add` (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        client.nodes.rename(name, new)


@node.command("drain")
@click.argument("name")
def drain_node(name: str) -> None:
    """Place no new slivers on a node; those on it are not changed (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        client.nodes.drain(name)


@node.command("undrain")
@click.argument("name")
def undrain_node(name: str) -> None:
    """Place new slivers on a node again (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        client.nodes.undrain(name)


@node.command("resync")
@click.argument("name")
def resync_node(name: str) -> None:
    """Send a node that has joined all its rows again (admins). Its slivers are not changed."""
    from slicemgr.client import Client

    with Client.local() as client:
        client.nodes.resync(name)


@node.command("evacuate")
@click.argument("name")
@click.option("--lost", is_flag=True, help="Confirm that the host does not return; do not wait for 5 minutes.")
@yes_option
@output_options(tables.OPERATIONS)
def evacuate_node(name: str, lost: bool, yes: bool, output: Output) -> None:
    """Make the slivers of a lost node again from their images, on other nodes (admins).

    The data on the lost node is lost. If its host returns, it stops these slivers and keeps their disks for a day.
    """
    from slicemgr.cli.render.errors import say
    from slicemgr.client import Client

    confirm(f"Make all slivers of node {name} again from their images, without their data?", yes)
    with Client.local() as client:
        made = client.nodes.evacuate(name, lost=lost)
    output.show(made["operations"], made)
    for one in made["left"]:
        say(f"slice {one['project']}/{one['slice']} remains on node {name}: {one['reason']}")


def the_node(client: Client) -> str:
    """The name of the only node. Refused if there is none or more than one."""
    nodes = client.nodes.list()
    if len(nodes) != 1:
        names = ", ".join(one["name"] for one in nodes) or "no node has a running agent"
        raise Refused(Code.INVALID, "which node?", hint=names, field="NAME")
    return nodes[0]["name"]
