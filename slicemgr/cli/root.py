"""The tree of commands. A command's module is imported when the command is named, or all of them for the help."""

from __future__ import annotations

import importlib

import click

from slicemgr.cli.groups import Group

COMMANDS = {
    "create": "commands.create:create",
    "list": "commands.slices:list_slices",
    "show": "commands.slices:show",
    "start": "commands.actions:start",
    "stop": "commands.actions:stop",
    "restart": "commands.actions:restart",
    "pause": "commands.actions:pause",
    "resume": "commands.actions:resume",
    "delete": "commands.actions:delete",
    "renew": "commands.slices:renew",
    "resize": "commands.slices:resize",
    "ssh": "commands.ssh:ssh",
    "ssh-config": "commands.ssh_config:ssh_config",
    "console": "commands.console:console",
    "wait": "commands.wait:wait",
    "snapshot": "commands.snapshot:snapshot",
    "top": "commands.usage:top",
    "usage": "commands.usage:usage",
    "image": "commands.image:image",
    "node": "commands.node:node",
    "user": "commands.user:user",
    "project": "commands.project:project",
    "request": "commands.request:request",
    "key": "commands.credentials:key",
    "token": "commands.credentials:token",
    "session": "commands.credentials:session",
    "op": "commands.op:op",
    "clock": "commands.leases:clock",
    "event": "commands.event:event",
    "doctor": "commands.doctor:doctor",
    "gc": "commands.doctor:gc",
    "backup": "commands.backup:backup",
    "audit": "commands.audit:audit",
    "bench": "commands.bench:bench",
    "login": "commands.login:login",
    "logout": "commands.login:logout",
    "completion": "commands.shell:completion",
    "version": "commands.shell:version",
}


class LazyGroup(Group):
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
