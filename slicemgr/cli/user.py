"""slicectl user: list, show, invite, link, accept, set, enable, disable, password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli import tables_people as tables
from slicemgr.cli.output import Output, output_options
from slicemgr.cli.shared import ask_password

if TYPE_CHECKING:
    from slicemgr import wire


@click.group()
def user() -> None:
    """People: who may use the testbed."""


@user.command("list")
@output_options(tables.USERS)
def list_users(output: Output) -> None:
    """Those you share a project with; an admin sees all."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.users())


@user.command("show")
@click.argument("name", required=False)
@output_options(tables.USERS)
def show_user(name: str | None, output: Output) -> None:
    """One user; without NAME yourself."""
    from slicemgr.client import Client

    with Client.local() as client:
        found: wire.User = client.user(name) if name else client.me()
        output.show([found], found)


@user.command("invite")
@click.argument("name")
@click.option("--full-name", default="", help="As people write it.")
@click.option("--email", default="", help="Where to reach the user.")
@click.option("--admin", is_flag=True, help="Of the whole testbed.")
@output_options(tables.USERS)
def invite(name: str, full_name: str, email: str, admin: bool, output: Output) -> None:
    """Make an account NAME and print the link by which its user sets a password (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        _tell(client.invite_user(name, full_name=full_name, email=email, admin=admin), output)


@user.command("link")
@click.argument("name")
@output_options(tables.USERS)
def link(name: str, output: Output) -> None:
    """Print a new link for who lost it, or forgot the password (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        _tell(client.invite_again(name), output)


def _tell(invited: wire.Invited, output: Output) -> None:
    """For people, the link alone: it is what they pass on."""
    if output.for_people and not output.chosen:
        click.echo(invited["invitation"]["link"])
    else:
        output.show([invited["user"]], invited)


@user.command("accept")
@click.argument("link")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
def accept(link: str, password_stdin: bool) -> None:
    """Set the first password, by the link you were sent."""
    from slicemgr.client import Client
    from slicemgr.errors import invalid

    url, found, token = link.strip().partition("/invitation/")
    if not found:
        raise invalid("LINK", f"{link!r} is not such a link", "https://…/invitation/…")
    with Client(url, "") as client:
        name = client.accept_invitation(token, ask_password("New password", twice=True, from_stdin=password_stdin))
    click.echo(f"{name} may now sign in: slicectl login {url} --user {name}")


@user.command("set")
@click.argument("name")
@click.option("--full-name", help="As people write it.")
@click.option("--email", help="Where to reach the user.")
@click.option("--admin/--no-admin", default=None, help="Of the whole testbed (admins).")
@click.option("--default-project", help="Where what names no project goes; only your own. Empty for none.")
@output_options(tables.USERS)
def set_user(
    name: str,
    full_name: str | None,
    email: str | None,
    admin: bool | None,
    default_project: str | None,
    output: Output,
) -> None:
    """Change what is known of a user."""
    fields = {"full_name": full_name, "email": email, "admin": admin, "default_project": default_project}
    _change(name, {key: value for key, value in fields.items() if value is not None}, output)


@user.command("enable")
@click.argument("name")
@output_options(tables.USERS)
def enable(name: str, output: Output) -> None:
    """Let a user in again (admins)."""
    _change(name, {"enabled": True}, output)


@user.command("disable")
@click.argument("name")
@output_options(tables.USERS)
def disable(name: str, output: Output) -> None:
    """Let a user no longer in; slices go on (admins)."""
    _change(name, {"enabled": False}, output)


def _change(name: str, fields: dict[str, object], output: Output) -> None:
    from slicemgr.client import Client

    with Client.local() as client:
        changed = client.change_user(name, **fields)
        output.show([changed], changed)


@user.command("password")
def password() -> None:
    """Change your own password; your other sessions end."""
    from slicemgr.client import Client

    with Client.local() as client:
        client.change_password(ask_password("Old password"), ask_password("New password", twice=True))
