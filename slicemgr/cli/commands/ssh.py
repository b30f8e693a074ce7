"""slicectl ssh: replaces itself by ssh, which verifies the host key that the service recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli.shared import project_option, replace_process, slice_names, sliver_name
from slicemgr.errors import Code, Refused

if TYPE_CHECKING:
    from slicemgr import wire

_ASLEEP = {"stopped": "start", "paused": "resume"}


@click.command(context_settings={"allow_interspersed_args": False})
@project_option
@click.option("-i", "--identity", metavar="FILE", help="Private key to log in with.")
@click.option("-l", "--login", default="root", show_default=True, help="User name inside the sliver.")
@click.argument("target", metavar="[PROJECT/]NAME[/N]", shell_complete=slice_names)
@click.argument("command", metavar="[-- COMMAND]", nargs=-1, type=click.UNPROCESSED)
def ssh(identity: str | None, login: str, target: str, command: tuple[str, ...]) -> None:
    """Log in to sliver N (0) of slice NAME, or run COMMAND there.

    The exit status and output are those of the command."""
    from slicemgr.client import Client
    from slicemgr.client.settings import find_settings
    from slicemgr.client.ssh import known_hosts, ssh_words

    if command and command[0].startswith("-") and command[0] != "--":
        raise click.UsageError(f"{command[0]} after NAME: put options before NAME, and the command after --")
    with Client.local() as client:
        name, index = sliver_name(target)
        sliver = find_sliver(client.slices.get(name), index)
    identity = identity or find_settings().identity
    command = command[1:] if command[:1] == ("--",) else command
    words = [*ssh_words(sliver, known_hosts(target, sliver), identity, login), *command]
    replace_process(words, "apt-get install openssh-client")


def find_sliver(slice: wire.Slice, wanted: int) -> wire.Sliver:
    """The sliver with that number. Refused if it does not exist, or is stopped or paused."""
    for sliver in slice["slivers"]:
        if sliver["index"] == wanted:
            if sliver["state"] in _ASLEEP:
                hint = f"`slicectl {_ASLEEP[sliver['state']]} {slice['name']}`"
                raise Refused(Code.CONFLICT, f"{slice['name']}/{wanted} is {sliver['state']}", hint=hint)
            return sliver
    raise Refused(
        Code.NOT_FOUND, f"slice {slice['name']} has no sliver {wanted}", hint="list them with `slicectl show`"
    )
