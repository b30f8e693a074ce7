"""slicectl user: list, show, invite, link, accept, set, enable, disable, delete, password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables_people as tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import ask_password, confirm, yes_option

if TYPE_CHECKING:
    from slicemgr import wire


_ADMIN = "Make {} an admin? Admins see and change everything in the testbed, including its admins."


@click.group(cls=Group)
def user() -> None:
    """Manage the users of the testbed."""


@user.command("list")
@output_options(tables.USERS)
def list_users(output: Output) -> None:
    """List the users of your projects. Admins see all users."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.users.list())


@user.command("show")
@click.argument("name", required=False)
@output_options(tables.USERS)
def show_user(name: str | None, output: Output) -> None:
    """Show one user, or yourself without NAME."""
    from slicemgr.client import Client

    with Client.local() as client:
        found: wire.User = client.users.get(name) if name else client.account.get()
        output.show([found], found)


@user.command("invite")
@click.argument("name")
@click.option("--full-name", default="", help="Full name.")
@click.option("--email", default="", help="Email address.")
@click.option("--admin", is_flag=True, help="Admin of the whole testbed.")
@yes_option
@output_options(tables.USERS)
def invite(name: str, full_name: str, email: str, admin: bool, yes: bool, output: Output) -> None:
    """Create the account NAME and print an invitation link to set its password (admins)."""
    from slicemgr.client import Client

    if admin:
        confirm(_ADMIN.format(name), yes)
    with Client.local() as client:
        _print_link(client.users.invite(name, full_name=full_name, email=email, admin=admin), output)


@user.command("link")
@click.argument("name")
@output_options(tables.USERS)
def link(name: str, output: Output) -> None:
    """Print a new invitation link for a user who lost the link or the password (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        _print_link(client.users.invite_again(name), output)


def _print_link(invited: wire.Invited, output: Output) -> None:
    """For table and compact, the link alone: the admin sends it to the user."""
    if output.for_people and not output.chosen:
        click.echo(invited["invitation"]["link"])
    else:
        output.show([invited["user"]], invited)


@user.command("accept")
@click.argument("link")
@click.option("--name", help="User name of the account that an invitation to a project creates.")
@click.option("--full-name", default="", help="Full name in that account.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
def accept(link: str, name: str | None, full_name: str, password_stdin: bool) -> None:
    """Set your first password with an invitation link.

    The link in the mail of an invitation to a project creates an account: give --name.
    """
    from slicemgr.client import Client
    from slicemgr.errors import invalid

    url, found, token = link.strip().partition("/invitation/")
    if not found:
        raise invalid("LINK", f"{link!r} is not an invitation link", "https://…/invitation/…")
    if full_name and name is None:
        raise invalid("--full-name", "is given without a user name", "give --name, too")
    with Client(url, "") as client:
        password = ask_password("New password", twice=True, from_stdin=password_stdin)
        if name is None:
            name = client.account.accept_invitation(token, password)
        else:
            name = client.account.create(token, password, name, full_name)
    click.echo(f"{name} can now sign in: slicectl login {url} --user {name}")


@user.command("set")
@click.argument("name")
@click.option("--full-name", help="Full name.")
@click.option("--email", help="Email address.")
@click.option("--admin/--no-admin", default=None, help="Admin of the whole testbed (admins).")
@click.option("--default-project", help="Default project, for yourself only. Empty for none.")
@yes_option
@output_options(tables.USERS)
def set_user(
    name: str,
    full_name: str | None,
    email: str | None,
    admin: bool | None,
    default_project: str | None,
    yes: bool,
    output: Output,
) -> None:
    """Change the profile of a user. On a terminal, the command asks before it makes a user an admin."""
    if admin:
        confirm(_ADMIN.format(name), yes)
    fields = {"full_name": full_name, "email": email, "admin": admin, "default_project": default_project}
    _change(name, {key: value for key, value in fields.items() if value is not None}, output)


@user.command("enable")
@click.argument("name")
@output_options(tables.USERS)
def enable(name: str, output: Output) -> None:
    """Enable users again (admins)."""
    _change(name, {"enabled": True}, output)


@user.command("disable")
@click.argument("name")
@output_options(tables.USERS)
def disable(name: str, output: Output) -> None:
    """Disable users. Their slices continue to run (admins)."""
    _change(name, {"enabled": False}, output)


@user.command("delete")
@click.argument("name")
@yes_option
def delete_user(name: str, yes: bool) -> None:
    """Delete a user who owns no slices, with keys, tokens, memberships and requests (admins).

    The log keeps the name, and no other account gets it afterwards. `user disable` keeps the account."""
    from slicemgr.client import Client

    confirm(f"Delete the account {name}? This cannot be undone.", yes)
    with Client.local() as client:
        client.users.delete(name)


def _change(name: str, fields: dict[str, object], output: Output) -> None:
    from slicemgr.client import Client

    with Client.local() as client:
        changed = client.users.change(name, **fields)
        output.show([changed], changed)


@user.command("password")
def password() -> None:
    """Change your password and end your other sessions."""
    from slicemgr.client import Client

    with Client.local() as client:
        client.account.change_password(ask_password("Old password"), ask_password("New password", twice=True))
