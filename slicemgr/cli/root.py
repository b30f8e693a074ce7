"""The tree of commands. A command's module is imported when the command is named, or all of them for the help."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "create": "create:create",
    "list": "slices:list_slices",
    "show": "slices:show",
    "start": "actions:start",
    "stop": "actions:stop",
    "restart": "actions:restart",
    "pause": "actions:pause",
    "resume": "actions:resume",
    "delete": "actions:delete",
    "renew": "slices:renew",
    "resize": "slices:resize",
    "ssh": "ssh:ssh",
    "console": "console:console",
    "wait": "wait:wait",
    "snapshot": "snapshot:snapshot",
    "top": "usage:top",
    "usage": "usage:usage",
    "image": "image:image",
    "node": "node:node",
    "user": "user:user",
    "project": "project:project",
    "request": "request:request",
    "key": "credentials:key",
    "token": "credentials:token",
    "session": "credentials:session",
    "op": "op:op",
    "clock": "leases:clock",
    "event": "event:event",
    "doctor": "doctor:doctor",
    "gc": "doctor:gc",
    "audit": "audit:audit",
    "bench": "bench:bench",
    "login": "login:login",
    "logout": "login:logout",
    "completion": "shell:completion",
    "version": "shell:version",
}


class LazyGroup(click.Group):
    """The commands of COMMANDS, in that order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(f"slicemgr.cli.{module}"), name)
        return command


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from slicemgr import __version__

        click.echo(f"slicectl {__version__}")
        context.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def root() -> None:
    """Manage slices of containers (lxc) and virtual machines (kvm) on a testbed.

    slicectl connects to the service given by SLICEMGR_URL and SLICEMGR_TOKEN (or SLICEMGR_TOKEN_FILE), or by
    ~/.config/slicemgr/client.json (written by `slicectl login URL`), or to the local service of `slicemgr up`.
    """
