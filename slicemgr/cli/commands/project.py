"""slicectl project: list, show, create, set, delete, add, remove; invite, invitations, withdraw, accept, decline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from slicemgr.cli.commands.leases import lease
from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables_people as tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import asks, confirm, yes_option
from slicemgr.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicemgr import wire
    from slicemgr.client import Client

Command = TypeVar("Command", bound="Callable[..., Any]")

_RESOURCES = ("slices", "slivers", "vcpus", "memory", "memory_guarantee", "disk", "ports", "lease")
_SIZES = ("memory", "memory_guarantee", "disk")  # in bytes
_AS_WRITTEN = (*_SIZES, "lease")  # sent as the user wrote them
_NO_LIMIT = "none"


@click.group(cls=Group)
def project() -> None:
    """Manage projects, their members and quotas."""


project.add_command(lease)


@project.command("list")
@output_options(tables.PROJECTS)
def list_projects(output: Output) -> None:
    """List your projects and their usage. Admins see all projects."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.projects.list())


@project.command("show")
@click.argument("name")
@output_options(tables.LIMITS)
def show_project(name: str, output: Output) -> None:
    """Show the usage, quota, ceiling and members of one project."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.projects.get(name)
    if output.for_people and output.header and not output.chosen:
        from slicemgr.cli.render.human import text

        members = ", ".join(f"{one['user']} ({one['role']})" for one in found["members"])
        click.echo(f"{text(found['name'])}: {text(found['description'])}; members: {text(members)}")
    output.show(_rows(found, output.for_people), found)


def _rows(found: wire.Project, for_people: bool) -> list[dict[str, object]]:
    from slicemgr.cli.render.human import number, size, span

    levels: dict[str, Any] = {"used": found["used"], "quota": found["quota"], "ceiling": found["ceiling"]}

    def shown(level: str, name: str) -> object:
        value = levels[level].get(name)
        if value is None or not for_people:
            return value
        return size(value) if name in _SIZES else span(value) if name == "lease" else number(value)

    return [{"resource": name, **{level: shown(level, name) for level in levels}} for name in _RESOURCES]


def _limit_options(command: Command) -> Command:
    """--slices and so on for the quota, --ceiling-slices and so on for the ceiling."""
    for level, prefix in (("ceiling", "ceiling-"), ("quota", "")):
        for name in reversed(_RESOURCES):
            what = "that a PI can grant" if prefix else "granted immediately"
            text = f"Maximum {name.replace('_', ' ')} {what}, or `{_NO_LIMIT}`."
            command = click.option(f"--{prefix}{name.replace('_', '-')}", f"{level}_{name}", metavar="N", help=text)(
                command
            )
    return command


def _limits(given: dict[str, Any]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for option, value in given.items():
        level, _, name = option.partition("_")
        if value is not None:
            found.setdefault(level, {})[name] = _value(name, level, value)
    return found


def _value(name: str, level: str, value: str) -> object:
    if value == _NO_LIMIT:
        return None
    if name in _AS_WRITTEN:
        return value
    try:
        return float(value) if name == "vcpus" else int(value)
    except ValueError as error:
        option = f"--{'ceiling-' if level == 'ceiling' else ''}{name}"
        raise invalid(option, f"{value!r} is not a number", f"such as 10, or {_NO_LIMIT}") from error


@project.command("create")
@click.argument("name")
@click.option("--description", help="Description.")
@click.option("--pi", help="User name of the PI.")
@_limit_options
@output_options(tables.PROJECTS)
def create_project(name: str, description: str | None, pi: str | None, output: Output, **limits: Any) -> None:
    """Create a project. Omitted limits use the defaults of the testbed (admins)."""
    from slicemgr.client import Client

    fields = {key: value for key, value in {"description": description, "pi": pi}.items() if value is not None}
    with Client.local() as client:
        made = client.projects.create(name, **fields, **_limits(limits))
        output.show([made], made)


@project.command("set")
@click.argument("name")
@click.option("--description", help="Description.")
@_limit_options
@output_options(tables.PROJECTS)
def set_project(name: str, description: str | None, output: Output, **limits: Any) -> None:
    """Change the description of a project, or the quota within the ceiling (PIs), or any limit (admins)."""
    from slicemgr.client import Client

    fields = {} if description is None else {"description": description}
    with Client.local() as client:
        changed = client.projects.change(name, **fields, **_limits(limits))
        output.show([changed], changed)


@project.command("delete")
@click.argument("name")
def delete_project(name: str) -> None:
    """Delete a project without slices and images (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        client.projects.delete(name)


@project.command("add")
@click.argument("name")
@click.argument("user")
@click.option(
    "--role", type=click.Choice(["member", "pi"]), default="member", show_default=True, help="In the project."
)
@output_options(tables.PROJECTS)
def add_member(name: str, user: str, role: str, output: Output) -> None:
    """Invite USER to project NAME (PIs), or make USER a member and change the role (admins)."""
    from slicemgr.cli.render.human import text
    from slicemgr.client import Client

    with Client.local() as client:
        changed = client.projects.set_member(name, user, role)
    if output.for_people and user not in {one["user"] for one in changed["members"]}:
        click.echo(_sent(text(user), text(name)), err=True)
    output.show([changed], changed)


def _sent(invitee: str, project: str) -> str:
    return f"{invitee} was invited and becomes a member with `slicectl project accept {project}`"


@project.command("invite")
@click.argument("name")
@click.argument("invitee")
@click.option(
    "--role", type=click.Choice(["member", "pi"]), default="member", show_default=True, help="In the project."
)
@output_options(tables.INVITATIONS)
def invite(name: str, invitee: str, role: str, output: Output) -> None:
    """Invite INVITEE, a user name or an email address, to project NAME (PIs).

    An address without an account gets a link that creates one, if the testbed sends mail and the setting
    people.invited_accounts permits it. The result does not reveal whether the account exists.
    """
    from slicemgr.client import Client

    with Client.local() as client:
        made = client.projects.invite(name, invitee, role)
        output.show([made], made)


@project.command("invitations")
@click.argument("name", required=False)
@output_options(tables.INVITATIONS)
def invitations(name: str | None, output: Output) -> None:
    """List the invitations that you can accept, or with NAME, those of this project (PIs)."""
    from slicemgr.client import Client

    with Client.local() as client:
        output.show(client.projects.invitations(name) if name else client.invitations.list())


@project.command("withdraw")
@click.argument("name")
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
def withdraw(name: str, ids: tuple[str, ...]) -> int:
    """Withdraw open invitations to project NAME (PIs)."""
    from slicemgr.cli.shared import each
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, lambda id: client.projects.withdraw_invitation(name, id))


@project.command("accept")
@click.argument("invitation")
@output_options(tables.USERS)
def accept(invitation: str, output: Output) -> None:
    """Accept INVITATION, given by its id or project."""
    from slicemgr.client import Client

    with Client.local() as client:
        me = client.invitations.accept(_own(client, invitation))
        output.show([me], me)


@project.command("decline")
@click.argument("invitation")
def decline(invitation: str) -> None:
    """Decline INVITATION, given by its id or project. Its sender is not notified."""
    from slicemgr.client import Client

    with Client.local() as client:
        client.invitations.decline(_own(client, invitation))


def _own(client: Client, given: str) -> str:
    """The id of an invitation that is given by its id or its project."""
    return next((one["id"] for one in client.invitations.list() if one["project"] == given), given)


@project.command("remove")
@click.argument("name")
@click.argument("user")
@yes_option
def remove_member(name: str, user: str, yes: bool) -> None:
    """Remove USER from project NAME (PIs), leave it, or withdraw an invitation.

    The slices of the user remain in the project. On a terminal, the command asks before you leave a project. The only
    PI cannot leave a project that has slices."""
    from slicemgr.client import Client

    with Client.local() as client:
        if asks(yes) and client.account.get()["name"] == user:
            confirm(
                f"Leave project {name}? You lose access to its slices, and your own slices there remain in it.", yes
            )
        client.projects.remove_member(name, user)
