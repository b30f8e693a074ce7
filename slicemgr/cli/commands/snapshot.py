"""slicectl snapshot: list, create, restore, delete, clone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables, tables_snapshots
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import each, project_option, seconds, slice_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _waiting(command: Callable[..., Any]) -> Callable[..., Any]:
    """--project, --no-wait and --timeout."""
    no_wait = click.option("--no-wait", is_flag=True, help="Return when the service has accepted the request.")
    timeout = click.option("--timeout", callback=seconds, metavar="TIME", help="Maximum time to wait, such as 2m.")
    return project_option(no_wait(timeout(command)))


@click.group(cls=Group)
def snapshot() -> None:
    """Manage snapshots of the disks of slices, to restore or clone them."""


@snapshot.command("list")
@click.argument("slice", metavar="[PROJECT/]SLICE", shell_complete=slice_names)
@project_option
@output_options(tables_snapshots.SNAPSHOTS)
def list_snapshots(slice: str, output: Output) -> None:
    """List the snapshots of SLICE, newest first."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.snapshots.list(slice))


@snapshot.command("create")
@click.argument("slice", metavar="[PROJECT/]SLICE", shell_complete=slice_names)
@click.argument("name")
@_waiting
@output_options(tables_snapshots.SNAPSHOTS)
def create_snapshot(slice: str, name: str, no_wait: bool, timeout: float | None, output: Output) -> None:
    """Create the snapshot NAME of the disks of SLICE while it runs.

    The snapshots of the slivers are not taken at the same instant. They are crash-consistent: data that a program has
    not written yet is not included.
    """
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        operation = client.snapshots.create(slice, name)
        if not no_wait:
            follow(client, operation, timeout)
        made = client.snapshots.get(slice, name)
        output.show([made], made)


@snapshot.command("restore")
@click.argument("slice", metavar="[PROJECT/]SLICE", shell_complete=slice_names)
@click.argument("name")
@_waiting
def restore_snapshot(slice: str, name: str, no_wait: bool, timeout: float | None) -> None:
    """Restore SLICE to its snapshot NAME.

    All later changes are lost. Running slivers are stopped by force and started again.
    """
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        operation = client.snapshots.restore(slice, name)
        if not no_wait:
            follow(client, operation, timeout)


@snapshot.command("delete")
@click.argument("slice", metavar="[PROJECT/]SLICE", shell_complete=slice_names)
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@_waiting
def delete_snapshots(slice: str, names: tuple[str, ...], no_wait: bool, timeout: float | None) -> int:
    """Delete snapshots of SLICE. Clones remain."""
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:

        def remove(name: str) -> None:
            operation = client.snapshots.delete(slice, name)
            if not no_wait:
                follow(client, operation, timeout)

        return each(names, remove)


@snapshot.command("clone")
@click.argument("slice", metavar="[PROJECT/]SLICE", shell_complete=slice_names)
@click.argument("name")
@click.argument("new")
@click.option("--lease", help="Lease of the new slice, such as 12h or 7d.")
@click.option("--disk", help="Disk limit per sliver, including the data of the snapshot, such as 4G.")
@click.option(
    "--ssh-key",
    "key_files",
    multiple=True,
    metavar="FILE",
    help="Public key file. Default: the keys of `key list`, or else those of the original.",
)
@_waiting
@output_options(tables.SLIVERS)
def clone_snapshot(
    slice: str,
    name: str,
    new: str,
    lease: str | None,
    disk: str | None,
    key_files: tuple[str, ...],
    no_wait: bool,
    timeout: float | None,
    output: Output,
) -> None:
    """Create the slice NEW from snapshot NAME of SLICE.

    NEW gets its own addresses, ports, host keys and lease, and does not depend on SLICE.
    """
    from slicemgr.cli.commands.create import full_name, read_key
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    keys = [read_key(Path(file).expanduser()) for file in key_files]
    wishes = {key: value for key, value in {"lease": lease, "disk": disk, "ssh_keys": keys}.items() if value}
    with Client.local() as client:
        created = client.snapshots.clone(slice, name, new, **wishes)
        if not no_wait:
            follow(client, created["operation"], timeout, cancel=f"slicectl delete {new}")
        made = client.slices.get(full_name(created, new))
        output.show(made["slivers"], made)
