"""slicectl snapshot: list, create, restore, delete, clone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slicemgr.cli import tables, tables_snapshots
from slicemgr.cli.output import Output, output_options
from slicemgr.cli.shared import each, project_option, seconds, slice_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _waiting(command: Callable[..., Any]) -> Callable[..., Any]:
    """--project, --no-wait and --timeout."""
    no_wait = click.option("--no-wait", is_flag=True, help="Return when the request is accepted.")
    timeout = click.option("--timeout", callback=seconds, metavar="TIME", help="Stop waiting after this, such as 2m.")
    return project_option(no_wait(timeout(command)))


@click.group()
def snapshot() -> None:
    """Snapshots: what a slice's disks were at a moment, to go back to or to make another slice of."""


@snapshot.command("list")
@click.argument("slice", shell_complete=slice_names)
@project_option
@output_options(tables_snapshots.SNAPSHOTS)
def list_snapshots(slice: str, output: Output) -> None:
    """The snapshots of SLICE, the newest first."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.snapshots(slice))


@snapshot.command("create")
@click.argument("slice", shell_complete=slice_names)
@click.argument("name")
@_waiting
@output_options(tables_snapshots.SNAPSHOTS)
def create_snapshot(slice: str, name: str, no_wait: bool, timeout: float | None, output: Output) -> None:
    """Keep the disks of SLICE as they are now, as NAME; it runs on.

    Each sliver's is of a moment of its own, and as after a power cut: what a program had not written is not in it.
    """
    from slicemgr.cli.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        operation = client.create_snapshot(slice, name)
        if not no_wait:
            follow(client, operation, timeout)
        made = client.snapshot(slice, name)
        output.show([made], made)


@snapshot.command("restore")
@click.argument("slice", shell_complete=slice_names)
@click.argument("name")
@_waiting
def restore_snapshot(slice: str, name: str, no_wait: bool, timeout: float | None) -> None:
    """Let SLICE go on as it was at snapshot NAME.

    What was written since is lost; what runs is ended at once, and started again.
    """
    from slicemgr.cli.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        operation = client.restore_snapshot(slice, name)
        if not no_wait:
            follow(client, operation, timeout)


@snapshot.command("delete")
@click.argument("slice", shell_complete=slice_names)
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@_waiting
def delete_snapshots(slice: str, names: tuple[str, ...], no_wait: bool, timeout: float | None) -> int:
    """Delete snapshots of SLICE; clones of them live on."""
    from slicemgr.cli.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:

        def remove(name: str) -> None:
            operation = client.delete_snapshot(slice, name)
            if not no_wait:
                follow(client, operation, timeout)

        return each(names, remove)


@snapshot.command("clone")
@click.argument("slice", shell_complete=slice_names)
@click.argument("name")
@click.argument("new")
@click.option("--lease", help="How long the new slice lives, such as 12h or 7d.")
@click.option("--disk", help="Of each sliver, with what the snapshot holds, such as 4G.")
@click.option(
    "--ssh-key", "key_files", multiple=True, metavar="FILE", help="Else those of `key list`, else the original's."
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
    """Make the slice NEW, which begins as SLICE was at snapshot NAME.

    It has addresses, ports, host keys and a lease of its own, and lives on without SLICE.
    """
    from slicemgr.cli.create import read_key
    from slicemgr.cli.progress import follow
    from slicemgr.client import Client

    keys = [read_key(Path(file).expanduser()) for file in key_files]
    wishes = {key: value for key, value in {"lease": lease, "disk": disk, "ssh_keys": keys}.items() if value}
    with Client.local() as client:
        created = client.clone_snapshot(slice, name, new, **wishes)
        if not no_wait:
            follow(client, created["operation"], timeout, cancel=f"slicectl delete {new}")
        made = client.slice(new)
        output.show(made["slivers"], made)
