"""slicectl key, token and session."""

from __future__ import annotations

from pathlib import Path

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables_people as tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import asks, confirm, each, yes_option

_user = click.option("--user", help="User name, if you are an admin.")


@click.group(cls=Group)
def key() -> None:
    """Manage your SSH keys. All your slices accept them, including running ones."""


@key.command("list")
@_user
@output_options(tables.KEYS)
def list_keys(user: str | None, output: Output) -> None:
    """List your keys with their fingerprints."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.keys.list(user))


@key.command("add")
@click.argument("file")
@output_options(tables.KEYS)
def add_key(file: str, output: Output) -> None:
    """Add the keys of a .pub FILE to your account and your slices."""
    from slicemgr.cli.commands.create import read_key
    from slicemgr.client import Client

    text = read_key(Path(file).expanduser(), "FILE")
    with Client.local() as client:
        added = client.keys.add(text)
        output.show(added)


@key.command("remove")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@_user
@yes_option
def remove_keys(ids: tuple[str, ...], user: str | None, yes: bool) -> int:
    """Remove keys from your account and your slices.

    On a terminal, the command asks before it removes a key that running slices accept."""
    from slicemgr.client import Client

    with Client.local() as client:
        keys = client.keys.list(user) if asks(yes) else []
        if used := sum(one.get("running_slices", 0) > 0 for one in keys if one["id"] in ids):
            which = "This key is" if used == 1 else f"{used} of these keys are"
            confirm(f"{which} accepted by running slices, to which you may lose access. Remove?", yes)
        return each(ids, lambda id: client.keys.remove(id, user))


@click.group(cls=Group)
def token() -> None:
    """Manage API tokens for scripts and other computers."""


@token.command("list")
@_user
@output_options(tables.TOKENS)
def list_tokens(user: str | None, output: Output) -> None:
    """List your tokens with their access, expiry and last use."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.tokens.list(user))


@token.command("create")
@click.argument("label")
@click.option(
    "--scope", type=click.Choice(["read", "write"]), default="write", show_default=True, help="Rights of the token."
)
@click.option("--expires", help="Validity, such as 30d.")
@output_options(tables.NEW_TOKEN)
def create_token(label: str, scope: str, expires: str | None, output: Output) -> None:
    """Create a token and print it. It is shown only once. LABEL describes its use."""
    from slicemgr.client import Client

    with Client.local() as client:
        made = client.tokens.create(label, scope=scope, expires=expires)
    if output.for_people and not output.chosen:
        click.echo(made["token"])
    else:
        output.show([made], made)


@token.command("revoke")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
def revoke_tokens(ids: tuple[str, ...]) -> int:
    """Revoke tokens."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, client.tokens.revoke)


@click.group(cls=Group)
def session() -> None:
    """Manage your browser sessions."""


@session.command("list")
@_user
@output_options(tables.SESSIONS)
def list_sessions(user: str | None, output: Output) -> None:
    """List your active sessions."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.sessions.list(user))


@session.command("revoke")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
def revoke_sessions(ids: tuple[str, ...]) -> int:
    """End sessions."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, client.sessions.revoke)
