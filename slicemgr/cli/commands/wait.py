"""slicectl wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from slicemgr.cli.shared import project_option, seconds, slice_names
from slicemgr.errors import Code, Failed, SlicemgrError

if TYPE_CHECKING:
    from slicemgr.client import Client

GOALS = ("running", "stopped", "paused", "ssh", "gone")
_BETWEEN = 0.25  # seconds


@click.command()
@click.argument("name", metavar="[PROJECT/]NAME", shell_complete=slice_names)
@project_option
@click.option("--for", "goal", type=click.Choice(GOALS), default="ssh", show_default=True, help="State to wait for.")
@click.option(
    "--timeout",
    callback=seconds,
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Maximum time to wait; then exit with status 6.",
)
def wait(name: str, goal: str, timeout: float) -> None:
    """Wait until slice NAME reaches a state, accepts SSH logins, or is deleted."""
    from slicemgr.client import Client

    end = time.monotonic() + timeout
    with Client.local() as client:
        while not _reached(client, name, goal):
            if time.monotonic() > end:
                raise Failed(
                    f"{name} is not {goal} after {timeout:g} s", code=Code.TIMEOUT, hint=f"`slicectl show {name}`"
                )
            time.sleep(_BETWEEN)


def _reached(client: Client, name: str, goal: str) -> bool:
    try:
        slice = client.slices.get(name)
    except SlicemgrError as error:
        if goal == "gone" and error.code is Code.NOT_FOUND:
            return True
        raise
    if slice["state"] == "failed" and goal != "gone":
        reasons = [one["error"] for one in slice["slivers"] if one["error"]]
        raise Failed(f"{name} failed", hint=reasons[0] if reasons else "")
    if goal == "ssh":
        from slicemgr.client.ssh import greets

        return slice["state"] == "running" and all(map(greets, slice["slivers"]))
    return slice["state"] == goal
