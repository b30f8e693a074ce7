"""slicectl list, show, renew, resize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import project_option, seconds, slice_names

if TYPE_CHECKING:
    from slicemgr import wire


@click.command("list")
@click.option("--state", help="Only slices in this state.")
@click.option("--type", "sliver_type", metavar="lxc|kvm", help="Only slices of this type.")
@click.option("--image", help="Only slices with this image.")
@click.option("--owner", help="Only slices of this user.")
@click.option("--prefix", help="Only slices whose name starts with this text.")
@project_option
@output_options(tables.SLICES)
def list_slices(sliver_type: str | None, output: Output, **filters: str | None) -> None:
    """List slices."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.slices.list(type=sliver_type, **filters))


@click.command()
@click.argument("name", metavar="[PROJECT/]NAME", shell_complete=slice_names)
@project_option
@output_options(tables.SLIVERS)
def show(name: str, output: Output) -> None:
    """Show one slice and its slivers."""
    from slicemgr.client import Client

    with Client.local() as client:
        _print(client.slices.get(name), output)


@click.command()
@click.argument("name", metavar="[PROJECT/]NAME", shell_complete=slice_names)
@click.option("--lease", required=True, help="New lease, counted from now, such as 7d. The policy may grant less.")
@project_option
@output_options(tables.SLICES)
def renew(name: str, lease: str, output: Output) -> None:
    """Renew the lease of a slice and print the new end."""
    from slicemgr.cli.render.errors import say
    from slicemgr.client import Client

    with Client.local() as client:
        renewed = client.slices.renew(name, lease)
        if renewed.get("trimmed"):
            say(f"until {renewed['expires_at']}, not as requested: {renewed.get('trimmed')}")
        output.show([renewed], renewed)


@click.command()
@click.argument("name", metavar="[PROJECT/]NAME", shell_complete=slice_names)
@click.option("--disk", help="New disk limit per sliver, such as 8G. It must be larger than the current one.")
@click.option(
    "--memory",
    help="New memory limit per sliver, such as 1G. A running virtual machine gets more than it started with up to the "
    "--memory-max of `create`.",
)
@click.option("--memory-guarantee", help="New part of the memory that the node reserves for each sliver.")
@click.option("--memory-weight", type=int, help="New share of the memory between guarantee and limit, 1 to 10000.")
@click.option(
    "--reason",
    default="",
    help="Reason to exceed the quota. The request then waits for the decision of a PI or an admin.",
)
@click.option("--no-wait", is_flag=True, help="Return when the service has accepted the request.")
@click.option("--timeout", callback=seconds, metavar="TIME", help="Maximum time to wait, such as 2m.")
@project_option
@output_options(tables.SLIVERS)
def resize(name: str, reason: str, no_wait: bool, timeout: float | None, output: Output, **limits: Any) -> None:
    """Change limits of a slice while it runs. A virtual machine that was paused by a full disk resumes."""
    from slicemgr.cli.commands.create import print_waiting
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        made = client.slices.submit_resize(name, reason=reason, **limits)
        if "request" in made:
            print_waiting(made["request"])
            return
        if not no_wait:
            follow(client, made["operation"], timeout)
        resized = client.slices.get(name)
        output.show(resized["slivers"], resized)


def _how(slice: wire.Slice) -> str:
    """The type; with systemd as init; for a virtual machine its acceleration: an emulated one is ten times slower."""
    if slice.get("init") == "systemd":
        return f"{slice['type']} (with systemd)"
    by = {one["acceleration"] for one in slice["slivers"]} - {None}
    return f"{slice['type']} (by {', '.join(sorted(map(str, by)))})" if by else slice["type"]


def _print(slice: wire.Slice, output: Output) -> None:
    """For table and compact, a line about the slice before its slivers."""
    if output.for_people and output.header and not output.chosen:
        from slicemgr.cli.render.human import text, when

        words = (
            f"{text(slice['name'])}: {_how(slice)} of {text(slice['image'])}, {text(slice['state'])}, "
            f"owner {text(slice['owner'])}, project {text(slice['project'])}, lease ends {when(slice['expires_at'])}"
        )
        click.echo(words)
        if slice.get("notice"):
            click.echo(text(slice.get("notice")))
        for one in slice["slivers"]:
            if one.get("keys_missing"):
                click.echo(f"sliver {one['index']}: {text(one.get('keys_missing'))}")
            if one.get("oom_kills"):
                click.echo(
                    f"sliver {one['index']}: processes killed at the memory limit: {text(one.get('oom_kills'))}, "
                    f"the last one {when(one.get('oom_at'))}"
                )
    output.show(slice["slivers"], slice)
