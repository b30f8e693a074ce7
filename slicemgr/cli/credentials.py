"""slicectl key, token and session: what lets you in."""

from __future__ import annotations

from pathlib import Path

import click

from slicemgr.cli import tables_people as tables
from slicemgr.cli.output import Output, output_options
from slicemgr.cli.shared import each

_user = click.option("--user", help="Whose, if you are an admin.")


@click.group()
def key() -> None:
    """Your ssh keys: your slices have them, also those that run."""


@key.command("list")
@_user
@output_options(tables.KEYS)
def list_keys(user: str | None, output: Output) -> None:
    """Your keys with their fingerprints."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.keys(user))


@key.command("add")
@click.argument("file")
@output_options(tables.KEYS)
def add_key(file: str, output: Output) -> None:
    """Add the keys of a .pub FILE; your running slices get them."""
    from slicemgr.cli.create import read_key
    from slicemgr.client import Client

    text = read_key(Path(file).expanduser(), "FILE")
    with Client.local() as client:
        added = client.add_key(text)
        output.show(added)


@key.command("remove")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@_user
def remove_keys(ids: tuple[str, ...], user: str | None) -> int:
    """Remove keys; they leave your running slices, too."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, lambda id: client.remove_key(id, user))


@click.group()
def token() -> None:
    """API tokens: for scripts and other machines."""


@token.command("list")
@_user
@output_options(tables.TOKENS)
def list_tokens(user: str | None, output: Output) -> None:
    """Your tokens: what they may do, until when, and when they were last used."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.tokens(user))


@token.command("create")
@click.argument("label")
@click.option(
    "--scope", type=click.Choice(["read", "write"]), default="write", show_default=True, help="Rights of the token."
)
@click.option("--expires", help="After this, such as 30d.")
@output_options(tables.NEW_TOKEN)
def create_token(label: str, scope: str, expires: str | None, output: Output) -> None:
    """Make a token and print it: this once. LABEL says where it is used."""
    from slicemgr.client import Client

    with Client.local() as client:
        made = client.create_token(label, scope=scope, expires=expires)
    if output.for_people and not output.chosen:
        click.echo(made["token"])
    else:
        output.show([made], made)


@token.command("revoke")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
def revoke_tokens(ids: tuple[str, ...]) -> int:
    """Revoke tokens; they open nothing from then on."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, client.revoke_token)


@click.group()
def session() -> None:
    """Where you are signed in with a browser."""


@session.command("list")
@_user
@output_options(tables.SESSIONS)
def list_sessions(user: str | None, output: Output) -> None:
    """Your sessions that have not ended."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.sessions(user))


@session.command("revoke")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
def revoke_sessions(ids: tuple[str, ...]) -> int:
    """End sessions."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, client.revoke_session)
