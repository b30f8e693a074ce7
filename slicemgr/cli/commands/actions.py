"""slicectl start, stop, restart, pause, resume, delete: for several slices at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.shared import FAILED, each, project_option, seconds, slice_names

if TYPE_CHECKING:
    from slicemgr import wire
    from slicemgr.client import Client


def _act(names: tuple[str, ...], action: str, no_wait: bool, timeout: float | None) -> int:
    """Request all operations first, so that they run at the same time, then wait for each."""
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    operations: dict[str, wire.Operation] = {}
    with Client.local() as client:

        def request(name: str) -> None:
            operations[name] = _request(client, name, action)

        refused = each(names, request)
        failed = 0 if no_wait else each(operations, lambda name: follow(client, operations[name], timeout))
    return FAILED if refused and failed else refused or failed


def _request(client: Client, name: str, action: str) -> wire.Operation:
    return client.slices.delete(name) if action == "delete" else client.slices.act(name, action)


def _command(action: str, help: str) -> click.Command:
    @click.argument("names", metavar="[PROJECT/]NAME…", nargs=-1, required=True, shell_complete=slice_names)
    @project_option
    @click.option("--no-wait", is_flag=True, help="Return when the service has accepted the requests.")
    @click.option("--timeout", callback=seconds, metavar="TIME", help="Maximum time to wait, such as 2m.")
    def command(names: tuple[str, ...], no_wait: bool, timeout: float | None) -> Any:
        return _act(names, action, no_wait, timeout)

    command.__doc__ = help
    return click.command(action)(command)


start = _command("start", "Start stopped slices.")
stop = _command("stop", "Shut down slices, and force them to stop after a timeout. Their files remain.")
restart = _command("restart", "Restart slices.")
pause = _command("pause", "Freeze all processes of slices. Their memory remains allocated.")
resume = _command("resume", "Resume paused slices.")
delete = _command("delete", "Delete slices and all their files.")
