"""slicectl ssh-config."""

from __future__ import annotations

import re

import click

from slicemgr.cli.shared import project_option, slice_names
from slicemgr.errors import invalid

_LOGIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@click.command("ssh-config")
@click.argument("name", metavar="[[PROJECT/]NAME]", required=False, shell_complete=slice_names)
@project_option
@click.option("-i", "--identity", metavar="FILE", help="Private key to log in with.")
@click.option("-l", "--login", default="root", show_default=True, help="User name inside the slivers.")
@click.option("--ansible", is_flag=True, help="Print an inventory for Ansible (YAML) instead.")
def ssh_config(name: str | None, identity: str | None, login: str, ansible: bool) -> None:
    """Print entries of ssh's configuration for the slivers of a slice, or of all slices.

    The entries are for ssh, scp, rsync, git and editors: `slicectl ssh-config > ~/.ssh/slices`, then
    `ssh -F ~/.ssh/slices exp-0`. ssh accepts only the host keys that the service recorded; the command writes these to
    files in the user's cache folder. Run it again after slices were created, restored or deleted.
    """
    from pathlib import Path

    from slicemgr.cli.render.errors import say
    from slicemgr.cli.render.output import as_yaml, write
    from slicemgr.client import Client, find_settings
    from slicemgr.client.ssh_config import as_inventory, as_ssh_config, hosts

    if not _LOGIN.fullmatch(login):
        raise invalid("--login", f"{login!r} is not the name of a user", "such as root")
    key = identity or find_settings().identity
    with Client.local() as client:
        found = hosts([client.slices.get(name)] if name else client.slices.list(), key and str(Path(key).absolute()))
    for host in found:
        if host.options is None:
            say(f"{host.names[0]} has no host key yet: wait until it runs, then repeat the command")
    write(as_yaml(as_inventory(found, login)) if ansible else as_ssh_config(found, login))
